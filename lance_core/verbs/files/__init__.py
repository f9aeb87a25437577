"""Write data files, and fit rows to the schema of a dataset."""
