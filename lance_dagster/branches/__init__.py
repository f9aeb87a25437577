"""A branch per run or backfill: written, audited, promoted, discarded."""
