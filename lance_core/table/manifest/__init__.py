"""Manifests: whole, and the parts of them that can be read at a fraction of the cost."""
