"""Which fragments and rows can match a filter, by the segments that are trusted."""
