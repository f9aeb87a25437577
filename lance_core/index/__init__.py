"""Scalar indices: their content, and the rules by which it is trusted; commits are made elsewhere."""
