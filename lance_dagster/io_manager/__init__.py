"""The IO manager: writes each output of a step by one commit, and loads inputs from tables."""
