"""The change feed of a table: rows that were inserted, updated and deleted between two versions."""
