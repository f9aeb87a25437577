"""Erasure: survey what holds the rows -> obstacles -> delete, rewrite, clean up (`erase`) -> proof -> report."""
