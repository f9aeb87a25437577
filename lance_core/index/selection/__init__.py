"""The selection of the fragments and rows that can match a filter, by the segments of indices that are trusted."""
