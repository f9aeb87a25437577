"""Outputs of ops that are not assets, and their removal."""
