"""The kinds of scalar indices, one module each, and their registry."""
