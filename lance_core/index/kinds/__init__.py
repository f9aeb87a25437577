"""The kinds of scalar indices, one module each, and the registry of them."""
