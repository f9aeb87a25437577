"""Promote columns that a branch added: by a Merge, which adds columns, their files and rows in one version.

    branch                                   parent, latest version          parent, then
    ------                                   ----------------------          ------------
    columns  id vector(7)                    id                              id vector(9): ids are the parent's
    1  a.lance: id     b.lance: vector(7)    1  a.lance: id                  1  a.lance: id     b.lance: vector(9)
    2  was removed                           2  c.lance: id                  2  c.lance: id, all rows deleted
    3  d.lance: id vector(7)                                                 3  d.lance: id vector(9)

The changes of rows are rebased as an Update from the fork version to the latest version (`rebase`,
`rebase_without_history`). The Merge has the fragments that result from this Update. As a Merge cannot remove fragments,
it keeps a removed fragment with all rows deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyroaring import BitMap

from lance_core.errors import RetryableConflictError, SchemaError
from lance_core.schema import Field, Schema
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge, Update
from lance_core.table.operations.base import ApplyContext
from lance_core.verbs.refs.changes import Branch, columns_of

_FIRST_ID: Final = 1 << 24
"""The first temporary id of columns that get their ids by the commit; no table has ids as high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedColumns:
    """The columns that a branch has and its parent's fork version lacks.

    Attributes:
        fields: The columns, with temporary ids, which no version uses.
        own_ids: The temporary ids by the ids that the branch gave.
    """

    fields: tuple[Field, ...] = ()
    own_ids: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, branch: Branch) -> AddedColumns:
        """Find the columns that a branch added.

        Raises:
            SchemaError: The branch has dropped or changed columns, or added columns that cannot be null, or files of
                version 0.1; the message names the columns.
        """
        before, after = branch.parent.manifest.schema, branch.head.manifest.schema
        parent_columns, branch_columns = columns_of(before), columns_of(after)
        dropped = sorted(parent_columns.keys() - branch_columns.keys())
        changed = sorted(
            name
            for name in branch_columns.keys() & parent_columns.keys()
            if branch_columns[name] != parent_columns[name]
        )
        added = tuple(field for field in after.fields if field.name not in parent_columns)
        strict = sorted(field.name for field in added if not field.nullable)
        if dropped or changed:
            raise SchemaError(
                f"branch {branch.name!r} has other columns than version {branch.fork_version} of {branch.parent_name}: "
                f"dropped {dropped}, changed {changed}; a promotion can only add columns. Change the columns of "
                f"{branch.parent_name}, fork again and write the rows to the new branch"
            )
        if strict:
            raise SchemaError(
                f"branch {branch.name!r} added the columns {strict}, which cannot be null, while rows of "
                f"{branch.parent_name} may have no value for them: make them nullable on the branch by alter_columns"
            )
        if added and branch.head.manifest.data_storage_version == "0.1":
            raise SchemaError(
                f"branch {branch.name!r} added the columns {[field.name for field in added]}, whose ids are stored in "
                f"its files of version 0.1: add the columns to {branch.parent_name}, and fork again"
            )
        fields = Schema(fields=tuple(field.without_ids() for field in added)).with_ids(_FIRST_ID).fields
        return cls(fields=fields, own_ids=_pair_ids(added, fields))

    def __bool__(self) -> bool:
        """Whether the branch added columns."""
        return bool(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in self.fields)

    def renumber(self, update: Update) -> Update:
        """An Update with temporary ids instead of the branch's, which the parent may have given to other columns."""
        return _replace_ids(update, self.own_ids) if self.own_ids else update

    def check_names(self, latest: Manifest) -> None:
        """Check that a version has no column with the name of an added column.

        Raises:
            RetryableConflictError: The version has such a column.
        """
        clash = sorted(set(self.names) & set(latest.schema.names))
        if clash:
            raise RetryableConflictError(
                f"version {latest.version} has the columns {clash}, which the branch adds as well"
            )

    def merge(self, update: Update, latest: Manifest) -> tuple[Merge, dict[str, bytes]]:
        """The Merge that adds the columns and makes the changes of an Update, and its deletion files' content by key.

        Args:
            update: The changes of rows and columns, with the ids of `fields`; new fragments are numbered.
            latest: The version.

        Raises:
            RetryableConflictError: The version has a column of one of the names.
        """
        self.check_names(latest)
        bare = tuple(field.without_ids() for field in self.fields)
        schema = replace(latest.schema, fields=(*latest.schema.fields, *bare)).with_ids(latest.max_field_id + 1)
        new_fields = schema.fields[len(latest.schema.fields) :]
        ids = _pair_ids(self.fields, new_fields)
        version = latest.version + 1
        numbered = _replace_ids(update, ids)
        result = numbered.apply(replace(latest, schema=schema), ApplyContext(version=version))
        emptied, files = [], {}
        for number in numbered.removed_fragment_ids:
            fragment = latest.fragments.get(number)
            if fragment is None:
                raise RetryableConflictError(f"fragment {number} has been removed since the fork")
            file, data = DeletionVector(BitMap(range(fragment.physical_rows))).to_file(latest.version)
            emptied.append(replace(fragment, deletion_file=file))
            files[file.key(number)] = data
        fragments = sorted([*result.fragments, *emptied], key=lambda fragment: fragment.id)
        return Merge(fragments=tuple(fragments), schema=schema, preserves_nullability=True, updated_rows={}), files


def _pair_ids(before: Sequence[Field], after: Sequence[Field]) -> dict[int, int]:
    """The field ids of some columns, each with the id of the same field in `after`, nested fields included."""
    return {
        old.id: new.id
        for old_field, new_field in zip(before, after, strict=True)
        for (old, _), (new, _) in zip(old_field.walk(), new_field.walk(), strict=True)
    }


def _replace_ids(update: Update, ids: Mapping[int, int]) -> Update:
    """The Update with field ids replaced."""

    def numbered(field_ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ids.get(field_id, field_id) for field_id in field_ids)

    def of_file(file: DataFile) -> DataFile:
        return replace(file, fields=numbered(file.fields))

    def of_fragment(fragment: Fragment) -> Fragment:
        return replace(fragment, files=tuple(of_file(file) for file in fragment.files))

    return replace(
        update,
        updated_fragments=tuple(of_fragment(fragment) for fragment in update.updated_fragments),
        new_fragments=tuple(of_fragment(fragment) for fragment in update.new_fragments),
        fields_modified=numbered(update.fields_modified),
        updated_fragment_fields={key: numbered(field_ids) for key, field_ids in update.updated_fragment_fields.items()},
    )
