"""The state of a table against a maintenance policy."""
