"""What materializations and observations show in the Dagster UI."""
