"""What operations work on: a version of a dataset, its stores, its references, and the files of a write."""
