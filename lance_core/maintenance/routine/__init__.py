"""Maintenance of tables by a policy: what is due of compaction, indices and cleanup, and the steps that do it."""
