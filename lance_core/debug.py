"""Public functions that describe records, under pylance's names: `lance.debug`."""

from lance_core.verbs.inspect.debug import format_fragment, format_manifest, format_schema, list_transactions

__all__ = ["format_fragment", "format_manifest", "format_schema", "list_transactions"]
