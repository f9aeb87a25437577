"""Records of the table format and their bytes; no I/O."""
