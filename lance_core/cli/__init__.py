"""The `lance` command."""
