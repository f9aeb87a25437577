"""Scalar indices: their kinds and files, and how queries use them; `verbs.indices` builds and commits them."""
