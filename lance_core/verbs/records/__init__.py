"""What users hold of fragments, operations, transactions and indices."""
