"""Changes of a table's columns while a stream reads the table.

columns change after the query began        the query ends with an error that names the columns; after a restart it
                                            reads the new columns
columns changed before the query began,     the rows are read in a later version that has all columns, if one has
after rows that are still to be read        their fragment with the same rows; otherwise columns that were renamed
                                            are read by their former names, and columns that were added without
                                            values are null in these rows
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core import LanceDataset, LanceFragment
from lance_core.errors import LanceError, SchemaError
from pyspark_lance.datasource.offsets import RESTART, version_at
from pyspark_lance.datasource.options import SourceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRead:
    """Fragments to read, the version in which they are read, and columns that it has.

    Attributes:
        dataset: The version.
        columns: Its names of the columns.
        fragments: The fragments.
        renamed: The current names of columns that were renamed since, by the version's names.
    """

    dataset: LanceDataset
    columns: tuple[str, ...]
    fragments: tuple[LanceFragment, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)


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
        watched = {name: column for name, column in names.items() if name in roots}
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
            f"{name} (was {kind}, is {now[name][0]})"
            if now[name][0] != kind
            else f"{name} (replaced by another column)"
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
        later = [version for version in (end, self._open(options, self.version)) if version is not None]
        until = max((version.version for version in later if self.fits(version)), default=dataset.version)
        between = (self._open(options, number) for number in range(dataset.version + 1, until))
        reads: list[FragmentRead] = []
        left = fragments
        for later_version in itertools.chain(later, between):
            if later_version is None or not self.fits(later_version):
                continue
            intact = [fragment for fragment in left if _is_intact(later_version, fragment)]
            if intact:
                reads.append(FragmentRead(dataset=later_version, columns=self.read, fragments=tuple(intact)))
                left = [fragment for fragment in left if fragment not in intact]
            if not left:
                return reads
        return [*reads, self._read_moved_fragments(options, dataset, left, until)]

    def _open(self, options: SourceOptions, version: int) -> LanceDataset | None:
        """A version of the table; None if it was cleaned up."""
        try:
            return version_at(options, version)
        except LanceError:
            return None

    def _read_moved_fragments(
        self, options: SourceOptions, dataset: LanceDataset, fragments: list[LanceFragment], until: int
    ) -> FragmentRead:
        """The read of fragments that no later version has unchanged.

        Raises:
            LanceError: A column got values after the rows were moved.
        """
        then = _columns(dataset)
        changed_names = [name for name, column in self.columns.items() if then.get(name) != column]
        names_then = {column: name for name, column in then.items()}
        # A filter has the current names, and cannot be evaluated on columns with other names.
        renamed = {
            name for name in changed_names if self.columns[name] in names_then and options.value("filter") is None
        }
        lacking = {name for name in changed_names if name not in renamed}
        numbers = {number for _, number in then.values()}
        for name in lacking:
            is_changed = name in then or self.columns[name][1] in numbers
            if is_changed or not _was_added_as_null(options, name, dataset.version, until):
                raise LanceError(
                    f"rows of version {dataset.version} of {options.uri} were moved before column {name!r} was added "
                    f"or changed, so that their values in it are not known. {RESTART}; startingVersion="
                    f"{dataset.version + 1} or later skips these rows"
                )
        read: dict[str, str] = {}
        for name in self.read:
            root = name if name in self.columns else name.partition(".")[0]
            if root not in lacking:
                read[name] = names_then[self.columns[root]] + name[len(root) :] if root in renamed else name
        return FragmentRead(
            dataset=dataset,
            columns=tuple(read.values()),
            fragments=tuple(fragments),
            renamed={then: now for now, then in read.items() if then != now},
        )


def _columns(dataset: LanceDataset) -> dict[str, tuple[pa.DataType, int]]:
    """Type and field id of each column."""
    numbers = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    return {field.name: (field.type, numbers[field.name]) for field in dataset.schema}


def _is_intact(later: LanceDataset, fragment: LanceFragment) -> bool:
    """Whether a later version has a fragment with all its rows."""
    now = later.get_fragment(fragment.fragment_id)
    return now is not None and now.metadata.num_rows == fragment.metadata.num_rows


def _was_added_as_null(options: SourceOptions, name: str, version: int, until: int) -> bool:
    """Whether the version that added a column, one of those after `version` up to `until`, gave it no values."""
    before = version_at(options, version)
    for number in range(version + 1, until + 1):
        after = version_at(options, number)
        if name in after.schema.names and name not in before.schema.names:
            return all(
                (now := after.get_fragment(fragment.fragment_id)) is None
                or len(now.data_files()) == len(fragment.data_files())
                for fragment in before.get_fragments()
            )
        before = after
    return False
