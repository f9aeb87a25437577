"""Manifests, and parts of them that are read at a fraction of the cost."""
