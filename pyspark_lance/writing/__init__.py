"""Writing frames: options, schema, tasks on executors, one commit."""
