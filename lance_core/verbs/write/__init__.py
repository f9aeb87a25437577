"""Write rows and commit what was written."""
