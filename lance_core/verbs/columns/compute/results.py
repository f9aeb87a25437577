"""Values that were computed and are not committed yet: in memory, and staged in files that no version refers to.

    data/computed-<name>-<uuid>.lance    one file per `commit_every` rows: _rowid, inputs, error, the columns
                                         schema metadata: code version, and inputs in the order of their digest

A later run finds the staged files by their names and uses a value if row and digest of its inputs are the same. A
commit removes the files that it has used up; the cleanup of versions removes others once they are old.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import LanceError
from lance_core.file.metadata import FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.file.writer import DataFileWriter
from lance_core.schema import Schema, schema_from_arrow, schema_to_arrow, typed_schema
from lance_core.store import note_begun
from lance_core.table.paths import data_key
from lance_core.verbs.columns.compute.computation import STATE, Computation
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.projection import ROW_ID, with_types

Offsets = npt.NDArray[np.int64]
StagedPlaces = list[tuple[Offsets, str, Offsets]]
"""Rows of a fragment: their offsets, their staged file, and their numbers in it."""
_CODE: Final = b"code"
_INPUTS: Final = b"inputs"
_KEPT_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes of staged rows stay in memory, so that they are not read again."""


@dataclass(slots=True, kw_only=True, eq=False)
class _ComputedPart:
    """Computed rows: a table, or a staged file, or both."""

    key: str = ""
    table: pa.Table | None = None
    reader: DataFileReader | None = None

    def read(self, rows: Offsets) -> pa.Table:
        """Rows by their numbers, in any order."""
        if self.table is not None:
            first, count = int(rows[0]), len(rows)
            is_run = int(rows[-1]) - first + 1 == count and bool((np.diff(rows) == 1).all())
            return self.table.slice(first, count) if is_run else self.table.take(pa.array(rows))
        assert self.reader is not None
        ascending, places = np.unique(rows, return_inverse=True)
        schema = typed_schema(self.reader.schema)
        batches = [with_types(batch, schema) for batch in self.reader.read(rows=ascending)]
        return pa.Table.from_batches(batches).take(pa.array(places))


@dataclass(slots=True)
class Results:
    """The computed rows of one run.

    Attributes:
        snapshot: The version that the rows are in.
        computation: The computation.
        read_version: The version that is recorded as the one in which the inputs were read.
        tag: A part of the names of the files that are staged.
        num_waiting: Rows in memory that are not staged.
    """

    snapshot: Snapshot
    computation: Computation
    read_version: int
    tag: str
    num_waiting: int = 0
    _waiting: list[pa.Table] = field(default_factory=list)
    _open: _ComputedPart = field(default_factory=_ComputedPart)
    _file_schema: Schema | None = None
    _kept_bytes: int = 0
    _places: dict[int, list[tuple[Offsets, _ComputedPart, Offsets]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, fragment_id: int, offsets: Offsets, rows: pa.Table) -> None:
        """Add computed rows of a fragment."""
        numbers = np.arange(self.num_waiting, self.num_waiting + len(offsets))
        self._places[fragment_id].append((offsets, self._open, numbers))
        self._waiting.append(rows)
        self.num_waiting += len(offsets)

    def reuse(self, fragment_id: int, offsets: Offsets, staged: StagedRows, places: Offsets) -> None:
        """Add rows that an earlier run has staged, by their places among these."""
        for number, part in enumerate(staged.parts):
            chosen = staged.files[places] == number
            if chosen.any():
                self._places[fragment_id].append((offsets[chosen], part, staged.rows[places[chosen]]))

    def stage(self) -> None:
        """Write the rows in memory to a file of their own."""
        if not self.num_waiting:
            return
        key = data_key(f"{prefix_of(self.computation.name)}{self.tag}{uuid.uuid4().hex}.lance")
        note_begun(key)
        rows = pa.concat_tables(self._waiting).combine_chunks()
        if self._file_schema is None:
            metadata = {
                _CODE: self.computation.code_version.encode(),
                _INPUTS: json.dumps(self.computation.inputs).encode(),
            }
            self._file_schema = schema_from_arrow(rows.schema.with_metadata(metadata)).with_ids(0)
        version = FileVersion.from_string(self.snapshot.manifest.data_storage_version)
        writer = DataFileWriter(self.snapshot.store, key, self._file_schema, version=version)
        try:
            writer.write(rows)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        self._open.key = key
        self._kept_bytes += rows.nbytes
        is_kept = self._kept_bytes <= _KEPT_BYTES
        self._open.table = rows if is_kept else None
        self._open.reader = None if is_kept else DataFileReader.open(self.snapshot.store, key)
        self._open, self._waiting, self.num_waiting = _ComputedPart(), [], 0

    def export(self) -> dict[int, StagedPlaces]:
        """The places of all rows, which are staged, by fragment."""
        return {
            fragment_id: [(offsets, part.key, numbers) for offsets, part, numbers in pieces]
            for fragment_id, pieces in self._places.items()
        }

    def add_staged(self, places: dict[int, StagedPlaces]) -> None:
        """Add rows that another process has staged, by their places."""
        parts: dict[str, _ComputedPart] = {}
        for fragment_id, pieces in places.items():
            for offsets, key, numbers in pieces:
                if key not in parts:
                    parts[key] = _ComputedPart(key=key, reader=DataFileReader.open(self.snapshot.store, key))
                self._places[fragment_id].append((offsets, parts[key], numbers))

    def has(self, fragment_id: int) -> bool:
        """Whether a fragment has rows here."""
        return fragment_id in self._places

    def take(self, fragment_id: int) -> ComputedRows:
        """Take the rows of a fragment."""
        if self.num_waiting:
            self._open.table = pa.concat_tables(self._waiting).combine_chunks()
        pieces = self._places.pop(fragment_id)
        parts = list({id(part): part for _, part, _ in pieces}.values())
        offsets = np.concatenate([piece[0] for piece in pieces])
        places = np.concatenate([np.full(len(piece[0]), parts.index(piece[1])) for piece in pieces])
        numbers = np.concatenate([piece[2] for piece in pieces])
        if not (np.diff(offsets) > 0).all():
            order = np.argsort(offsets, kind="stable")
            offsets, places, numbers = offsets[order], places[order], numbers[order]
        return ComputedRows(
            offsets=offsets, places=places, numbers=numbers, parts=parts,
            computation=self.computation, version=self.read_version,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRows:
    """The computed rows of a fragment, which are read as they are written to its file.

    Attributes:
        offsets: Their offsets, ascending.
        places: The part that has each row.
        numbers: The number of each row in its part.
        parts: The parts.
        computation: The computation.
        version: The version that is recorded as the one in which the inputs were read.
    """

    offsets: Offsets
    places: Offsets
    numbers: Offsets
    parts: list[_ComputedPart]
    computation: Computation
    version: int

    def slice(self, first: int, count: int) -> pa.Table:
        """Some of the rows: the columns, and the record of each row."""
        names = ["inputs", "error", *self.computation.columns.names]
        places, numbers = self.places[first : first + count], self.numbers[first : first + count]
        chosen = np.unique(places).tolist()
        tables = [self.parts[place].read(numbers[places == place]).select(names) for place in chosen]
        rows = pa.concat_tables(tables)
        if len(chosen) > 1:
            order = np.argsort(np.concatenate([np.flatnonzero(places == place) for place in chosen]), kind="stable")
            rows = rows.take(pa.array(order))
        inputs, error = (rows.column(name).combine_chunks() for name in names[:2])
        code = pa.repeat(pa.scalar(self.computation.code_version, pa.string()), rows.num_rows)
        read = pa.repeat(pa.scalar(self.version, pa.int64()), rows.num_rows)
        state = pa.StructArray.from_arrays([code, inputs, read, error.is_valid()], fields=list(STATE))
        return rows.select(names[2:]).append_column(self.computation.state_name, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows that earlier runs have staged by the same code.

    Attributes:
        keys: The files.
        parts: Their rows, one part for each file.
        ids: The stable row ids, ascending.
        inputs: The digests of the inputs by which they were computed.
        errors: The errors of the function; null where it did not fail.
        files: The number of the file of each row.
        rows: The number of each row in its file.
    """

    keys: list[str]
    parts: list[_ComputedPart]
    ids: npt.NDArray[np.uint64]
    inputs: npt.NDArray[np.int64]
    errors: pa.Array
    files: Offsets
    rows: Offsets

    def find(self, ids: npt.NDArray[np.uint64], inputs: npt.NDArray[np.int64], *, with_failed: bool) -> Offsets:
        """The number of the staged row for each row; -1 for rows that have to be computed."""
        result = np.full(len(ids), -1, np.int64)
        first, end = np.searchsorted(self.ids, ids), np.searchsorted(self.ids, ids, side="right")
        is_usable = with_failed | np.asarray(self.errors.is_null())
        for number in range(int((end - first).max(initial=0))):  # a row may have been staged again with other inputs
            rows = np.flatnonzero(first + number < end)
            places = first[rows] + number
            is_same = (self.inputs[places] == inputs[rows]) & is_usable[places]
            result[rows[is_same]] = places[is_same]
        return result


def prefix_of(name: str) -> str:
    """The beginning of the names of staged files of a computation."""
    return f"computed-{name.encode().hex()}-"


def rows_schema(computation: Computation) -> pa.Schema:
    """The columns of computed rows."""
    fields = [pa.field(ROW_ID, pa.uint64()), pa.field("inputs", pa.int64()), pa.field("error", pa.string())]
    return pa.schema([*fields, *computation.columns.remove_metadata()])


def list_staged_computations(snapshot: Snapshot) -> list[Computation]:
    """The computations of staged files that can be read, and whose inputs the version has; the newest file last."""
    computations = []
    for meta in sorted(snapshot.store.list(data_key("computed-")), key=attrgetter("modified")):
        with suppress(LanceError):  # its writer was killed, or a run has removed it
            schema = DataFileReader.open(snapshot.store, meta.key).schema
            metadata = schema_to_arrow(schema).metadata
            computation = Computation(
                name=bytes.fromhex(meta.key.split("-")[1]).decode(), code_version=metadata[_CODE].decode(),
                inputs=tuple(json.loads(metadata[_INPUTS])), columns=pa.schema(list(typed_schema(schema))[3:]),
            )  # fmt: skip
            computation.input_ids(snapshot.manifest)
            computations.append(computation)
    return computations


def find_staged(
    snapshot: Snapshot, computation: Computation, is_wanted: Callable[[str], bool] | None = None
) -> StagedRows:
    """Find what earlier runs have staged; files that cannot be read, or have other columns, are left to the cleanup.

    Args:
        snapshot: The version.
        computation: The computation.
        is_wanted: Whether a file is read, by its key; None for all.
    """
    keys, parts, columns = [], [], []
    for meta in snapshot.store.list(data_key(prefix_of(computation.name))):
        if is_wanted is not None and not is_wanted(meta.key):
            continue
        try:
            reader = DataFileReader.open(snapshot.store, meta.key)
            arrow = schema_to_arrow(reader.schema)
            if (arrow.metadata or {}).get(_CODE) != computation.code_version.encode():
                continue
            if typed_schema(reader.schema).remove_metadata() != rows_schema(computation):
                continue
            few = reader.schema.project([ROW_ID, "inputs", "error"])
            table = pa.Table.from_batches(reader.read(few), schema=schema_to_arrow(few))
        except LanceError:
            continue  # its writer was killed, or a cleanup has removed it
        keys.append(meta.key)
        parts.append(_ComputedPart(key=meta.key, reader=reader))
        columns.append(table.columns)
    ids = np.concatenate([np.zeros(0, np.uint64), *(each[0].to_numpy() for each in columns)])
    inputs = np.concatenate([np.zeros(0, np.int64), *(each[1].to_numpy() for each in columns)])
    errors = pa.chunked_array([chunk for each in columns for chunk in each[2].chunks], pa.string()).combine_chunks()
    counts = [len(each[0]) for each in columns]
    files = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)]).astype(np.int64)
    order = np.argsort(ids, kind="stable")
    return StagedRows(
        keys=keys,
        parts=parts,
        ids=ids[order],
        inputs=inputs[order],
        errors=errors.take(pa.array(order)),
        files=files[order],
        rows=rows[order],
    )
