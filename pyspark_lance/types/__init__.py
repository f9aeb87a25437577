"""Conversion of types, values and column names between Spark, Arrow and Lance."""
