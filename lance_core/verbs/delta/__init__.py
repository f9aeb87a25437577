"""The rows that differ between two versions."""
