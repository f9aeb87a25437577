"""The public records of fragments, operations, transactions and indices."""
