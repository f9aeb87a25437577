"""Compaction, index builds and deep clones whose tasks run on executors."""
