"""Build, merge and drop indices."""
