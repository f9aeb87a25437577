"""Loads tables as inputs of steps."""
