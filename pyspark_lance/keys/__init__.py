"""Equality of keys as Spark's joins define it, and filters made of keys."""
