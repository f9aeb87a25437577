"""Write data files, and make rows fit what they are written for."""
