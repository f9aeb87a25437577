"""The Lance table, branch and rows that an asset and its partitions stand for, and the settings of their writes."""
