"""Filters and computed columns, given as SQL strings or as Arrow expressions over the columns of a dataset."""
