"""Scalar indices: what they say of rows, and what of that is to be trusted. Nothing here commits."""
