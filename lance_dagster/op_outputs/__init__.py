"""Storage of outputs of ops, which are no assets, and their removal."""
