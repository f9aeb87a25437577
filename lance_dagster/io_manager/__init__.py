"""The IO manager: outputs of steps become commits, tables become inputs."""
