"""Asset checks on tables."""
