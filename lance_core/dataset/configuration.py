"""Methods of `LanceDataset` that change configuration and metadata, each in a new version; the handle moves to it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from lance_core.commit.loop import commit
from lance_core.errors import ArgumentTypeError, SchemaError
from lance_core.table.operations import UpdateConfig, UpdateMap
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle

Changes = Mapping[str, str | None]
"""New values by key; None removes a key."""


class ConfigurationVerbs(Handle):
    """Methods that change the configuration, and the metadata of the table, its schema and its fields.

    With `replace`, the given values are the whole new map. Otherwise they are merged into the existing map, and None
    removes a key.
    """

    @property
    def schema_metadata(self) -> dict[str, str]:
        """Metadata of the schema; bytes that are not UTF-8 are shown as U+FFFD, and stay unchanged in the table."""
        return {key: value.decode(errors="replace") for key, value in self._manifest.schema.metadata.items()}

    def update_config(self, values: Changes, *, replace: bool = False) -> dict[str, str]:
        """Change the configuration, and return all of it.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.update_config({"owner": "data"})
            {'owner': 'data'}
        """
        self._commit_change(UpdateConfig(config=_make_map(values, replace)))
        return self.config()

    def delete_config_keys(self, keys: Sequence[str]) -> None:
        """Remove keys from the configuration; missing keys are ignored.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> written = table.update_config({"owner": "data"})
            >>> table.delete_config_keys(["owner"])
            >>> table.config()
            {}
        """
        self._commit_change(UpdateConfig(config=UpdateMap(entries=dict.fromkeys(keys))))

    def update_metadata(self, values: Changes, *, replace: bool = False) -> dict[str, str]:
        """Change the table's metadata, and return all of it.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.update_metadata({"source": "PyPI"})
            {'source': 'PyPI'}
        """
        self._commit_change(UpdateConfig(table_metadata=_make_map(values, replace)))
        return self.metadata

    def update_schema_metadata(self, values: Changes, *, replace: bool = False) -> dict[str, str]:
        """Change the schema's metadata, and return all of it.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.update_schema_metadata({"source": "PyPI"})
            {'source': 'PyPI'}
        """
        self._commit_change(UpdateConfig(schema_metadata=_make_map(values, replace)))
        return self.schema_metadata

    def update_field_metadata(self, field_updates: Mapping[str, Changes], *, replace: bool = False) -> None:
        """Change the metadata of fields.

        Args:
            field_updates: Changes by dotted path of the field.
            replace: Whether the changes replace all metadata of these fields.

        Raises:
            SchemaError: There is no such field.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.update_field_metadata({"delay": {"unit": "minutes"}})
            >>> flights.schema.field("delay").metadata
            {b'unit': b'minutes'}
        """
        changes = {self._find_field_id(path): _make_map(values, replace) for path, values in field_updates.items()}
        self._commit_change(UpdateConfig(field_metadata=changes))

    def replace_schema_metadata(self, new_metadata: Mapping[str, str]) -> None:
        """Replace the schema's metadata; `update_schema_metadata` with `replace` is the newer name.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.replace_schema_metadata({"source": "PyPI"})
            >>> table.schema.metadata
            {b'source': b'PyPI'}
        """
        _warn_deprecated("replace_schema_metadata", "update_schema_metadata(metadata, replace=True)")
        self.update_schema_metadata(new_metadata, replace=True)

    def replace_field_metadata(self, field_name: str, new_metadata: Mapping[str, str]) -> None:
        """Replace a field's metadata; `update_field_metadata` with `replace` is the newer name.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.replace_field_metadata("delay", {"unit": "minutes"})
            >>> flights.schema.field("delay").metadata
            {b'unit': b'minutes'}
        """
        _warn_deprecated("replace_field_metadata", "update_field_metadata({path: metadata}, replace=True)")
        self.update_field_metadata({field_name: new_metadata}, replace=True)

    def _find_field_id(self, path: str) -> int:
        try:
            return self._manifest.schema.column(path).id
        except SchemaError as error:
            raise SchemaError(f"Field {path!r} not found: {error}") from error

    def _commit_change(self, operation: UpdateConfig) -> None:
        transaction = Transaction(read_version=self.version, operation=operation)
        self._manifest = commit(self._store, transaction, base=self._manifest).manifest


def _make_map(values: Changes, replace: bool) -> UpdateMap:
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(f"metadata is a mapping of strings, not {values!r:.80}")
    for key, value in values.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str)):
            raise ArgumentTypeError(
                f"keys and values of metadata are strings, not {key!r:.80}: a {type(value).__name__}"
            )
    entries = {key: value for key, value in values.items() if not (replace and value is None)}
    return UpdateMap(entries=entries, replace=replace)


def _warn_deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated. Use {new} instead.", DeprecationWarning, stacklevel=3)
