"""Indices for search that a policy declares: what is due, the child processes that build, measured recall, records."""
