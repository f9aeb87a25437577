"""Compaction: facts about fragments -> `plan` -> `tasks`, each a `rewrite` -> one commit (`compaction`)."""
