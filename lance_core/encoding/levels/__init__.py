"""Repetition and definition levels of nested arrays, and the paths to their leaves."""
