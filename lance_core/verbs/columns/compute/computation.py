"""What a computation is, and what the table records of it.

    column `_<name>`    struct of each row, in the same file as the computed columns:
                          code      the code version by which the cells were computed; null in a row that was not
                          inputs    the digest of the inputs (`digests`)
                          read      the version in which the inputs were read; on a branch the fork version
                          failed    whether the function failed on the row, whose cells are null then
    watermark `computed.<name>`, its part "rows"
                        {"code": "...", "settled": 7, "own": [[3, 5], [9, 9]], "last": 11, "checked": [11, 40, [1]],
                         "inputs": ["..."]}
                          settled   a version in which no row of the table was due; 0 for none
                          own       versions that changed no input: commits of cells, and those whose rows were compared
                          last      the version for which the newest commit of cells was made
                          checked   a version, its highest fragment id, and the ids of the inputs: in fragments up to
                                    there, files that have inputs and cells belong together (`input_files`)
                          inputs    those of the newest commit of cells, in the order in which they are digested
                        its other parts: those of runs beside others, until a later run joins them with its own

The cells and their record move together: with updates, compaction, promotion, restore and undo, by either library. The
watermark only spares reads: without it all rows that changed since they were read are compared by their digests.

Versions of a branch are not those of main, to which a promotion brings the cells: a branch records the fork version, up
to which both have the same history, and leaves the watermark as it is. The commits of cells of a branch have a property
`lance-dagster.computed.<name>`, the version for which they were computed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.schema.forms import schema_to_arrow
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.watermarks import PREFIX, WatermarkMove, watermarks
from lance_core.verbs.columns.compute.input_files import find_shared_version, keeps_inputs, transactions_since
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.scanner import LanceScanner

NAME_KEY: Final = "lance-dagster.computed"
"""The metadata of fields that names their computation."""
_FIRST_VERSION: Final = "2.1"
_INPUTS_KEY: Final = b"lance-dagster.computed.inputs"
"""The metadata of the record that names the inputs."""

STATE: Final = pa.struct([("code", pa.string()), ("inputs", pa.int64()), ("read", pa.int64()), ("failed", pa.bool_())])
_UNKNOWN_CODE: Final = "unknown"
_PART: Final = "rows"
COMMIT_KEY: Final = "lance-dagster.computed."
"""The beginning of the transaction property of a commit of cells on a branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Columns that a function computes from others.

    Attributes:
        name: Its name, by which later runs continue it.
        inputs: The columns that the function reads, in the order in which they are digested.
        columns: The columns that it returns, all of which may be null.
        code_version: The version of the function: rows of another one are computed again.
        batch_names: The inputs in the order in which the function gets them; empty for that of `inputs`.
    """

    name: str
    inputs: tuple[str, ...]
    columns: pa.Schema
    code_version: str
    batch_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text, what in ((self.name, "name"), (self.code_version, "code_version")):
            if not text or not isinstance(text, str):
                raise InvalidInputError(f"{what} must be a string that is not empty, not {text!r}")
        if not self.inputs or not self.columns.names:
            raise InvalidInputError(f"computation {self.name!r}: inputs and columns need a column each")
        if self.state_name in self.columns.names:
            raise InvalidInputError(
                f"computation {self.name!r} keeps the record of each row in the column {self.state_name!r}: give the "
                "column or the computation another name"
            )
        strict = [field.name for field in self.columns if not field.nullable]
        if strict:
            raise SchemaError(
                f"computation {self.name!r}: column {strict[0]!r} must be nullable, as rows whose call failed have null"
            )

    @property
    def state_name(self) -> str:
        """The column that records how the cells of each row were computed."""
        return _state_name(self.name)

    def in_recorded_order(self, manifest: Manifest) -> Computation:
        """The computation with inputs in the order in which a version records them, so that another order is no change.

        Other inputs than those that the column was created with are sorted by name.
        """
        for field in manifest.schema.fields:
            if field.name == self.state_name and _INPUTS_KEY.decode() in field.metadata:
                recorded = tuple(json.loads(field.metadata[_INPUTS_KEY.decode()]))
                order = recorded if sorted(recorded) == sorted(self.inputs) else tuple(sorted(self.inputs))
                return replace(self, inputs=order, batch_names=self.batch_names or self.inputs)
        return self

    def input_ids(self, manifest: Manifest) -> tuple[int, ...]:
        """The ids of the fields of the inputs in a version, in order."""
        return tuple(field.id for field, _ in manifest.schema.project(list(self.inputs)).walk())

    @property
    def output(self) -> pa.Schema:
        """The columns that are written: those of the function, and the record of each row."""
        return computed_schema(self.name, self.inputs, self.columns)

    def check(self, manifest: Manifest, root: str) -> None:
        """Reject a table whose columns the computation cannot read or set.

        Raises:
            SchemaError: An input is missing, or a computed column has another type.
            InvalidInputError: A column exists and is not of this computation.
            UnsupportedError: The table has no stable row ids, or files of a version without null structs.
        """
        if manifest.data_storage_version < _FIRST_VERSION:
            raise UnsupportedError(
                f"{root} has files of version {manifest.data_storage_version}, which have no null structs: the record "
                f"of a row that is not computed needs version {_FIRST_VERSION}. Write the table again, by "
                'write_dataset(..., mode="overwrite", data_storage_version="2.2")'
            )
        if not manifest.uses_stable_row_ids:
            raise UnsupportedError(
                f"{root} has no stable row ids, by which computed values are kept with their rows: "
                "LanceDataset.migrate_to_stable_row_ids gives it such ids"
            )
        manifest.schema.project(list(self.inputs))
        clash = set(self.output.names) & set(self.inputs)
        if clash:
            raise InvalidInputError(f"computation {self.name!r} reads and sets the column {min(clash)!r}")
        fields = {field.name: field for field in schema_to_arrow(manifest.schema)}
        for field in self.output:
            present = fields.get(field.name)
            if present is not None and (present.metadata or {}).get(NAME_KEY.encode()) != self.name.encode():
                raise InvalidInputError(
                    f"{root} has the column {field.name!r} already, which computation {self.name!r} does not own: "
                    "drop or rename that column, or give the computed one another name"
                )
            if present is not None and present.type != field.type:
                raise SchemaError(
                    f"column {field.name!r} of {root} is {present.type}, and computation {self.name!r} returns "
                    f"{field.type}: drop the column, or give the new one another name"
                )


def computed_schema(name: str, inputs: Sequence[str], columns: pa.Schema) -> pa.Schema:
    """The columns that a computation writes: those of its function, and the record of each row.

    Args:
        name: The computation.
        inputs: The columns that the function reads.
        columns: The columns of its function; the record has the metadata of the first one.

    Examples:
        >>> lance.computed_schema("words", ["text"], pa.schema([("count", pa.int32())])).names
        ['count', '_words']
    """
    marked = [field.with_metadata({**(field.metadata or {}), NAME_KEY: name}) for field in columns]
    metadata = {**marked[0].metadata, _INPUTS_KEY: json.dumps(list(inputs))}
    return pa.schema([*marked, pa.field(_state_name(name), STATE, metadata=metadata)])


def list_computations(snapshot: Snapshot) -> list[Computation]:
    """The computations whose columns a version has, by their names, with the code version of the newest commit."""
    fields: dict[str, list[pa.Field]] = defaultdict(list)
    for field in schema_to_arrow(snapshot.manifest.schema):
        if (name := (field.metadata or {}).get(NAME_KEY.encode())) is not None:
            fields[name.decode()].append(field)
    computations = []
    for name, members in sorted(fields.items()):
        inputs = [json.loads(field.metadata[_INPUTS_KEY]) for field in members if field.name == _state_name(name)]
        columns = [field for field in members if field.name != _state_name(name)]
        if inputs and columns:  # a user may have dropped a column
            record = Record.read(snapshot, name)
            code, names = record.code or _read_newest_code(snapshot, name), record.inputs or tuple(inputs[0])
            computations.append(Computation(name=name, inputs=names, columns=pa.schema(columns), code_version=code))
    return computations


def _read_newest_code(snapshot: Snapshot, name: str) -> str:
    """The code version of the cells that were read last, for a table that has no record, as after a promotion."""
    options = scan_options(snapshot.manifest, [_state_name(name)])
    newest = (-1, _UNKNOWN_CODE)
    for batch in LanceScanner(snapshot, snapshot.manifest.fragments, options).to_batches():
        codes, _, read, _ = batch.column(0).flatten()
        version = pc.max(read).as_py()
        if version is not None and version > newest[0]:
            newest = version, codes[pc.index(read, version).as_py()].as_py()
    return newest[1]


def _key(name: str) -> str:
    return f"computed.{name}"


def _state_name(name: str) -> str:
    return f"_{re.sub(r'[^0-9A-Za-z_]', '_', name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the table records of a computation, as the docstring of the module describes it.

    Attributes:
        code: The code version of the newest commit.
        settled: A version in which no row was due by `code`; 0 for none.
        own_versions: Versions that changed no input.
        own_otherwise: Versions that changed no input, but whose cells may be by another code version, as on a branch.
        parts: The records of runs beside others, by part of the watermark: code version and position.
        last: The version for which the newest commit of cells was made; None for none.
        checked: A version, its highest fragment id, and the ids of the inputs, for which all fragments were checked.
        inputs: The inputs of the newest commit; empty for those that the column was created with.
        position: The watermark as it is stored; None for none.
    """

    code: str = ""
    settled: int = 0
    own_versions: frozenset[int] = frozenset()
    own_otherwise: frozenset[int] = frozenset()
    parts: tuple[tuple[str, str, str], ...] = ()
    last: int | None = None
    checked: tuple[int, int, tuple[int, ...]] | None = None
    inputs: tuple[str, ...] = ()
    position: str | None = None

    @classmethod
    def read(cls, snapshot: Snapshot, name: str) -> Record:
        """The record in a version; the version of the newest commit is looked for in the history."""
        marks = {part: mark.position for part, mark in watermarks(snapshot.manifest.config, _key(name)).items()}
        records = {part: cls._parse(snapshot, name, position) for part, position in marks.items()}
        record = records.pop(_PART, cls())
        versions, otherwise = set(record.own_versions), set(_find_own_of_branch(snapshot, name))
        for other in records.values():
            (versions if other.code == record.code else otherwise).update(other.own_versions)
        return replace(
            record,
            own_versions=frozenset(versions),
            own_otherwise=frozenset(otherwise),
            parts=tuple((part, other.code, marks[part]) for part, other in records.items()),
        )

    @classmethod
    def _parse(cls, snapshot: Snapshot, name: str, position: str) -> Record:
        stored = json.loads(position)
        versions = {version for first, last in stored["own"] for version in range(first, last + 1)}
        return cls(
            code=stored["code"],
            settled=stored["settled"],
            own_versions=frozenset(versions | find_own(snapshot, name, position, stored["last"])),
            last=stored["last"],
            checked=None if stored["checked"] is None else (*stored["checked"][:2], tuple(stored["checked"][2])),
            inputs=tuple(stored.get("inputs", ())),
            position=position,
        )

    def after_commit(
        self,
        *,
        code: str,
        inputs: tuple[str, ...],
        settled: int,
        version: int,
        compared: frozenset[int],
        checked: tuple[int, int, tuple[int, ...]] | None,
    ) -> Record:
        """The record after a commit of cells.

        Args:
            code: The code version of the cells.
            inputs: The inputs, in the order in which they are digested.
            settled: A version in which no row is due once the cells are committed; 0 for none.
            version: The version for which the cells were computed.
            compared: Versions that changed no input, as all their rows were compared.
            checked: What is recorded as `checked`; None for what was.
        """
        record = replace(
            self, code=code, settled=settled, own_versions=self.own_versions | compared, last=version,
            checked=checked or self.checked, inputs=inputs,
        )  # fmt: skip
        ranges = to_ranges(record.own_versions)
        stored = {"code": code, "settled": settled, "own": ranges, "last": version, "checked": record.checked}
        return replace(record, position=json.dumps(stored | {"inputs": inputs}, separators=(",", ":")))

    def move_from(self, before: Record, name: str, by: str, *, is_alone: bool) -> tuple[Record, dict[str, str]]:
        """The transaction properties that record this in place of an earlier record, and what is recorded then.

        Args:
            before: The earlier record.
            name: The computation.
            by: The owner of the lease.
            is_alone: Whether no other run goes on: the records of such runs are joined with this one.
        """
        part = _PART if is_alone else by
        moves = [WatermarkMove(name=_key(name), parts=(part,), before=before.position, after=self.position, by=by)]
        joined = [other for other in self.parts if self.settled or other[1] == self.code == before.code]
        for other, _, position in joined:
            moves.append(WatermarkMove(name=_key(name), parts=(other,), before=position, after=None, by=by))
        rest = tuple(other for other in self.parts if other not in joined)
        return replace(self, parts=rest), WatermarkMove.properties(moves)


def find_own(snapshot: Snapshot, name: str, position: str, last: int) -> set[int]:
    """The version of the commit that moved the watermark here, if no version since `last` may have set inputs."""
    for version, transaction in enumerate(transactions_since(snapshot, last), last + 1):
        if transaction is None:
            return set()
        moves = WatermarkMove.of({k: v for k, v in transaction.properties.items() if k == f"{PREFIX}{_key(name)}"})
        if any(move.after == position for move in moves):
            return {version}
        if not moves and not keeps_inputs(transaction):
            return set()
    return set()


def _find_own_of_branch(snapshot: Snapshot, name: str) -> Iterator[int]:
    """Yield the versions of commits of cells on a branch, before which no other one has set inputs meanwhile."""
    if snapshot.manifest.branch is None:
        return
    fork = changing = find_shared_version(snapshot)
    for version, transaction in enumerate(transactions_since(snapshot, fork), fork + 1):
        computed_for = None if transaction is None else transaction.properties.get(f"{COMMIT_KEY}{name}")
        if computed_for is not None and int(computed_for) >= changing:
            yield version
        elif not keeps_inputs(transaction):
            changing = version


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """The first and the last number of each range of consecutive ones."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
