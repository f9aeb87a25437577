"""One version of a dataset: where it is, its manifest, and the stores that its files lie in."""
