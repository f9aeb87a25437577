"""Repetition and definition levels: from nested arrays to levels, and paths to their leaves."""
