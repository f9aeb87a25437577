"""Selects the fragments and rows that can match a filter, by the index segments that are trusted."""
