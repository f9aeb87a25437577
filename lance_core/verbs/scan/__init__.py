"""Read rows."""
