"""Public functions that show schemas, manifests, fragments and transactions for debugging: pylance's `lance.debug`."""

from lance_core.verbs.inspect.debug import format_fragment, format_manifest, format_schema, list_transactions

__all__ = ["format_fragment", "format_manifest", "format_schema", "list_transactions"]
