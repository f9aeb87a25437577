"""The tasks of a merge, an update or a delete: new rows into data files, removed rows into bitmaps.

    columns of the table | __lance_addr | __lance_id | __lance_kind
    ---------------------+--------------+------------+-------------
    new values           | null         | null       | 0  insert
    new values           | where it was | stable id  | 1  update: the row moves
    (not looked at)      | where it is  |            | 2  delete

The driver writes the deletion vectors of the bitmaps and commits. Two rows that replace the same row, and two new rows
of one key, are an error: the source must have each key once.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import MAX_EXACT_KEYS, FragmentMetadata, FragmentWriter
from lance_core.errors import InvalidInputError
from pyspark_lance.engine.sessions import use_cores_of_task
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.names import columns_named
from pyspark_lance.writing.row_checks import AMBIGUOUS, hashes_of_keys
from pyspark_lance.writing.task import BUFFERED_BYTES, REPORTED, copied, parts

__all__ = ["ADDRESS", "DELETE", "INSERT", "KIND", "ROW_ID", "UPDATE", "ChangeReport", "ChangeTask"]

ADDRESS: Final = "__lance_addr"
ROW_ID: Final = "__lance_id"
KIND: Final = "__lance_kind"
INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """The report of one task.

    Attributes:
        fragments: New fragments, as `FragmentMetadata.to_json` gives them.
        gone: Rows that go, by fragment id.
        counts: Rows inserted, updated, deleted.
        keys: Hashes of the keys of rows that are new (`lance_core.key_hashes`); None if they are too many.
        error: Code and message of an error of the data, if there is one.
    """

    fragments: tuple[dict[str, Any], ...] = ()
    gone: Mapping[int, BitMap] = field(default_factory=dict)
    counts: tuple[int, int, int] = (0, 0, 0)
    keys: npt.NDArray[np.uint64] | None = None
    error: tuple[str, str] | None = None

    def to_bytes(self) -> bytes:
        """The report as JSON."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found["gone"] = {key: base64.b85encode(rows.serialize()).decode() for key, rows in self.gone.items()}
        found["keys"] = None if self.keys is None else base64.b85encode(self.keys.tobytes()).decode()
        return json.dumps(found).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ChangeReport:
        """The report that `to_bytes` wrote.

        Raises:
            LanceError: It has an error of the data, which is raised with its class.
        """
        found: dict[str, Any] = json.loads(data)
        if found["error"] is not None:
            code, message = found["error"]
            raise REPORTED[code](message)
        gone = {int(key): BitMap.deserialize(base64.b85decode(rows)) for key, rows in found["gone"].items()}
        keys = None if found["keys"] is None else np.frombuffer(base64.b85decode(found["keys"]), np.uint64)
        return cls(fragments=tuple(found["fragments"]), gone=gone, counts=tuple(found["counts"]), keys=keys)

    def metadata(self) -> list[FragmentMetadata]:
        """The new fragments."""
        return [FragmentMetadata.from_json(one) for one in self.fragments]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """The function that runs on each partition; it is pickled.

    Attributes:
        uri: The table.
        job: Start of the names of all files of this change.
        stored: Schema of the table; None if no rows are written.
        on: The key.
        stable: Whether rows have ids that stay.
        most_keys: Keys of new rows that are reported, by their hashes; None for any number.
        options: Further arguments of `FragmentWriter`.
    """

    uri: str
    job: str
    stored: pa.Schema | None
    on: Sequence[str] = ()
    stable: bool = False
    most_keys: int | None = MAX_EXACT_KEYS
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the batches of a partition; gives the report as bytes.

        Raises:
            LanceError: The storage failed. What was written so far is deleted.
        """
        use_cores_of_task()
        output = _Changes(self, f"{self.job}-{partition}-{attempt}-")
        try:
            for part in parts(batches):
                output.add(part)
            return output.finish().to_bytes()
        except tuple(REPORTED.values()) as error:
            output.discard()
            return ChangeReport(error=(error.code, str(error))).to_bytes()
        except BaseException:
            output.discard()
            raise


class _Changes:
    """The changes of one task. Rows that move and rows that are new lie in files of their own where rows have ids."""

    def __init__(self, task: ChangeTask, prefix: str) -> None:
        self._task = task
        self._prefix = prefix
        self._convert: BatchConverter | None = None
        self._writers: dict[int, FragmentWriter] = {}
        self._ids: list[npt.NDArray[np.uint64]] = []
        self._gone: dict[int, BitMap] = {}
        self._keys: list[pa.Table] = []
        self._counts: Counter[int] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        kinds = batch.column(KIND).to_numpy()
        for kind in (INSERT, UPDATE, DELETE):
            rows = np.flatnonzero(kinds == kind)
            if not len(rows):
                continue
            part = batch if len(rows) == len(kinds) else batch.take(pa.array(rows))
            self._counts[kind] += len(rows)
            if kind != INSERT:
                self._take_away(part)
            else:
                self._note_keys(part)
            if kind != DELETE:
                self._write(kind, part)

    def finish(self) -> ChangeReport:
        keys = self._new_keys()
        fragments: list[FragmentMetadata] = []
        for kind, writer in self._writers.items():
            made = writer.finish()
            if kind == UPDATE and self._ids:
                ids, start = np.concatenate(self._ids), 0
                for one in made:
                    one.set_row_ids(ids[start : start + one.physical_rows])
                    start += one.physical_rows
            fragments += made
        counts = (self._counts[INSERT], self._counts[UPDATE], self._counts[DELETE])
        return ChangeReport(
            fragments=tuple(one.to_json() for one in fragments), gone=self._gone, counts=counts, keys=keys
        )

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()

    def _take_away(self, part: pa.RecordBatch) -> None:
        """Note removed rows, and reject to remove one twice."""
        addresses = part.column(ADDRESS).to_numpy()
        fragments = addresses >> 32
        order = np.argsort(fragments, kind="stable")
        starts = np.flatnonzero(np.diff(fragments[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            rows = BitMap((addresses[order[start:end]] & 0xFFFF_FFFF).astype(np.uint32))
            known = self._gone.setdefault(int(fragments[order[start]]), BitMap())
            if len(rows) < end - start or known.intersect(rows):
                raise InvalidInputError(f"{AMBIGUOUS}{self._twice(part, addresses)}")
            known |= rows

    def _twice(self, part: pa.RecordBatch, addresses: npt.NDArray[np.int64]) -> str:
        """The key of a row that is removed twice, if both occurrences are in this batch."""
        found, counts = np.unique(addresses, return_counts=True)
        if not (counts > 1).any() or not self._task.on:
            return f" of one row of the table; the key is {list(self._task.on)}"
        row = int(np.flatnonzero(addresses == found[np.argmax(counts > 1)])[0])
        keys = columns_named(part, self._task.on)
        return " " + ", ".join(f"{name} = {keys.column(name)[row].as_py()!r}" for name in self._task.on)

    def _note_keys(self, part: pa.RecordBatch) -> None:
        on, stored = list(self._task.on), self._task.stored
        if on and stored is not None:
            # In the table's types: others hash keys that they insert in these.
            schema = pa.schema([stored.field(name) for name in on])
            own = columns_named(part, on)
            keys = copied(BatchConverter(own.schema, schema)(own))
            self._keys.append(pa.Table.from_batches([keys]))

    def _new_keys(self) -> npt.NDArray[np.uint64] | None:
        """Hashes of the keys of new rows; each key must be there once."""
        if not self._keys:
            return np.zeros(0, np.uint64)
        keys = hashes_of_keys(pa.concat_tables(self._keys))
        return None if self._task.most_keys is not None and len(keys) > self._task.most_keys else keys

    def _write(self, kind: int, part: pa.RecordBatch) -> None:
        stored = self._task.stored
        assert stored is not None, "a change that only deletes has no other rows"
        if self._convert is None or self._convert.source != part.schema:
            self._convert = BatchConverter(part.schema, stored)
        place = kind if self._task.stable else INSERT
        writer = self._writers.get(place)
        if writer is None:
            writer = FragmentWriter(
                self._task.uri,
                stored,
                file_prefix=self._prefix,
                max_buffered_bytes=BUFFERED_BYTES,
                **self._task.options,
            )
            self._writers[place] = writer
        writer.write(self._convert(part))
        if kind == UPDATE and self._task.stable:
            self._ids.append(part.column(ROW_ID).to_numpy().astype(np.uint64))
