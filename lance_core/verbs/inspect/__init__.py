"""Facts about a version that need no reading of rows."""
