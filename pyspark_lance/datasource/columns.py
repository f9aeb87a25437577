"""Changes of a table's columns while a stream reads the table.

columns change after the query began        the query ends with an error that names the columns; after a restart it
                                            reads the new columns
columns changed before the query began,     the rows are read in a later version that has all columns, if it has
after rows that are still to be read        their fragment with the same rows; otherwise columns that were added
                                            without values are null in these rows
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lance_core import LanceDataset, LanceFragment
from lance_core.errors import LanceError, SchemaError
from pyspark_lance.datasource.offsets import RESTART, version_at
from pyspark_lance.datasource.options import SourceOptions

__all__ = ["FragmentRead", "WatchedColumns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRead:
    """Fragments to read, the version in which they are read, and columns that it has."""

    dataset: LanceDataset
    columns: tuple[str, ...]
    fragments: tuple[LanceFragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedColumns:
    """The columns that a query reads, as they were in the version that it was planned for.

    Attributes:
        version: The version.
        columns: Type and field id of each column of the table that is read, by name.
        all_columns: Whether the query reads all columns, so that it would have to read a new column as well.
        read: Names that are read: columns, fields of columns, or row columns.
    """

    version: int
    columns: Mapping[str, tuple[pa.DataType, int]]
    all_columns: bool
    read: tuple[str, ...]

    @classmethod
    def of(cls, dataset: LanceDataset, read: Iterable[str], *, all_columns: bool) -> WatchedColumns:
        """The columns of a version.

        Args:
            dataset: The version.
            read: Names that are read: columns, fields of columns (`point.x`), or row columns (`_rowid`).
            all_columns: Whether these are all columns of the table.
        """
        names, read = _columns(dataset), tuple(read)
        roots = {name if name in names else name.partition(".")[0] for name in read}
        watched = {name: one for name, one in names.items() if name in roots}
        return cls(version=dataset.version, columns=watched, all_columns=all_columns, read=read)

    def check(self, dataset: LanceDataset) -> None:
        """Make sure that a later version has the same columns.

        Raises:
            SchemaError: The later version lacks a column, has a changed one, or has a new one that would be read.
        """
        if dataset.version <= self.version:
            return
        now = _columns(dataset)
        added = sorted(now.keys() - self.columns.keys()) if self.all_columns else []
        dropped = sorted(self.columns.keys() - now.keys())
        changed = [
            f"{name} (was {kind}, is {now[name][0]})" if now[name][0] != kind else f"{name} (another one of that name)"
            for name, (kind, number) in self.columns.items()
            if name in now and now[name] != (kind, number)
        ]
        listed = (("added", added), ("dropped or renamed", dropped), ("changed", changed))
        what = "; ".join(f"{how} {', '.join(names)}" for how, names in listed if names)
        if what:
            raise SchemaError(
                f"the columns of {dataset.uri} have changed since the stream was planned for version {self.version}: "
                f"{what}. Nothing of version {dataset.version} was read. Load the table again and restart the query "
                "with its checkpoint: it continues with the new columns"
            )

    def fits(self, dataset: LanceDataset) -> bool:
        """Whether a version has all columns with the same types and field ids."""
        now = _columns(dataset)
        return all(now.get(name) == column for name, column in self.columns.items())

    def reads(
        self, options: SourceOptions, dataset: LanceDataset, fragments: list[LanceFragment], end: LanceDataset
    ) -> list[FragmentRead]:
        """The reads of fragments that a version added.

        Args:
            options: The options that the user gave.
            dataset: The version that added the fragments.
            fragments: The fragments.
            end: The last version that is read.

        Raises:
            LanceError: A column got values after the rows were added, and the rows were moved before that.
        """
        if self.fits(dataset):
            return [FragmentRead(dataset=dataset, columns=self.read, fragments=tuple(fragments))]
        later = [one for one in (end, self._planned(options)) if one is not None and self.fits(one)]
        found: dict[int, list[LanceFragment]] = {}
        left: list[LanceFragment] = []
        for fragment in fragments:
            at = next((one for one in later if _is_intact(one, fragment)), None)
            if at is None:
                left.append(fragment)
            else:
                found.setdefault(later.index(at), []).append(fragment)
        reads = [
            FragmentRead(dataset=later[index], columns=self.read, fragments=tuple(some))
            for index, some in found.items()
        ]
        return [*reads, *self._without(options, dataset, left, later)]

    def _planned(self, options: SourceOptions) -> LanceDataset | None:
        """The version for which the query was planned; None if it was cleaned up."""
        try:
            return version_at(options, self.version)
        except LanceError:
            return None

    def _without(
        self, options: SourceOptions, dataset: LanceDataset, fragments: list[LanceFragment], later: list[LanceDataset]
    ) -> list[FragmentRead]:
        """The reads of fragments that no later version has unchanged."""
        if not fragments:
            return []
        then = _columns(dataset)
        others = [name for name, column in self.columns.items() if then.get(name) != column]
        lacking = [name for name in others if name not in then]
        numbers = {number for _, number in then.values()}
        until = max((one.version for one in later), default=dataset.version)
        for name in others:
            renamed = name in then or self.columns[name][1] in numbers
            if renamed or not _began_as_null(options, name, dataset.version, until):
                raise LanceError(
                    f"rows of version {dataset.version} of {options.uri} were moved before column {name!r} was added "
                    f"or changed, so that their values in it are not known. {RESTART}"
                )
        kept = tuple(name for name in self.read if (name if name in lacking else name.partition(".")[0]) not in lacking)
        return [FragmentRead(dataset=dataset, columns=kept, fragments=tuple(fragments))]


def _columns(dataset: LanceDataset) -> dict[str, tuple[pa.DataType, int]]:
    """Type and field id of each column."""
    numbers = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    return {field.name: (field.type, numbers[field.name]) for field in dataset.schema}


def _is_intact(later: LanceDataset, fragment: LanceFragment) -> bool:
    """Whether a later version has a fragment with all its rows."""
    now = later.get_fragment(fragment.fragment_id)
    return now is not None and now.metadata.num_rows == fragment.metadata.num_rows


def _began_as_null(options: SourceOptions, name: str, version: int, until: int) -> bool:
    """Whether the version that added a column, one of those after `version` up to `until`, gave it no values."""
    before = version_at(options, version)
    for number in range(version + 1, until + 1):
        after = version_at(options, number)
        if name in after.schema.names and name not in before.schema.names:
            return all(
                (now := after.get_fragment(one.fragment_id)) is None or len(now.data_files()) == len(one.data_files())
                for one in before.get_fragments()
            )
        before = after
    return False
