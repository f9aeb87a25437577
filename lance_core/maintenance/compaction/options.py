"""Options of a compaction: those of pylance with its names and defaults, and some that only this library has.

An option that is not given comes from the table's configuration under `lance.compaction.<name>`, if `_CONFIGURABLE` has
it, else from the defaults. pylance does not have `apart_fragment_ids`, `deletions_only`, `partition_by`,
`repair_pages`, `merge_results` and `target_bytes_per_fragment`, and ignores them in the configuration and in the JSON
of a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, Self

from lance_core.errors import ArgumentTypeError, InvalidInputError

CONFIG_PREFIX: Final = "lance.compaction."

REENCODE: Final = "reencode"
TRY_COPY: Final = "try_binary_copy"
FORCE_COPY: Final = "force_binary_copy"
COMPACTION_MODES: Final = (REENCODE, TRY_COPY, FORCE_COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """The options of a compaction: which fragments to rewrite, and how.

    Attributes:
        target_rows_per_fragment: Fragments with fewer rows are merged with their neighbours; a task writes
            `rows // target` files of equal size, at least one.
        target_bytes_per_fragment: Fragments of at least this many bytes are not merged, however few rows they have, and
            a task takes fragments until they have this many bytes. A compaction is repeated while its results are
            smaller and can be merged. None applies only the target of rows. Not in pylance.
        max_rows_per_group: Accepted for compatibility with pylance, without effect.
        max_bytes_per_file: Bytes after which a new file is started, counted between batches; None for no limit. A
            fragment of at least this many bytes is not merged.
        materialize_deletions: Whether a fragment with many deletions is rewritten even without neighbours.
        materialize_deletions_threshold: The share of deleted rows above which a fragment has many deletions: with 0 any
            deletion is enough, with 1 none is.
        num_threads: Tasks that run at a time, in processes; None chooses by the number of processors and the amount of
            data.
        batch_size: Rows that are read at a time; None leaves it to the files.
        io_buffer_size: Accepted for compatibility with pylance, without effect: reads are bounded by pages.
        defer_index_remap: Record moved rows in the fragment reuse index, so that indices still cover them.
        compaction_mode: "reencode" decodes and encodes all rows; "try_binary_copy" copies pages where that is
            possible; "force_binary_copy" raises where it is not. None is "try_binary_copy".
        binary_copy_read_batch_bytes: Bytes that a copy of pages reads at a time.
        max_source_fragments: Take the first tasks whose fragments together do not exceed this number.
        max_source_rows: Take the first tasks whose live rows together do not exceed this number.
        max_source_bytes: Take the first tasks whose data files together do not exceed this number of bytes.
        excluded_fragment_ids: Fragments that stay as they are; fragments on both sides of one are not merged.
        apart_fragment_ids: Fragments that are merged only with each other. Not in pylance.
        data_storage_version: Version of the new files; None for the dataset's.
        deletions_only: Rewrite only the fragments with many deletions, each into one fragment.
        partition_by: Columns that must have one value in all rows of a merged fragment.
        repair_pages: Also rewrite the fragments in which `verify` finds pages that other readers misread. This reads
            the metadata of all data files.
        merge_results: Also merge fragments that only this compaction makes neighbours, as new fragments follow all
            fragments that stay. Without it, a second compaction merges them.
    """

    target_rows_per_fragment: int = 1024 * 1024
    target_bytes_per_fragment: int | None = None
    max_rows_per_group: int = 1024
    max_bytes_per_file: int | None = None
    materialize_deletions: bool = True
    materialize_deletions_threshold: float = 0.1
    num_threads: int | None = None
    batch_size: int | None = None
    io_buffer_size: int | None = None
    defer_index_remap: bool = False
    compaction_mode: str | None = None
    binary_copy_read_batch_bytes: int = 16 * 1024 * 1024
    max_source_fragments: int | None = None
    max_source_rows: int | None = None
    max_source_bytes: int | None = None
    excluded_fragment_ids: tuple[int, ...] = ()
    apart_fragment_ids: tuple[int, ...] = ()
    data_storage_version: str | None = None
    deletions_only: bool = False
    partition_by: tuple[str, ...] = ()
    repair_pages: bool = False
    merge_results: bool = False

    def __post_init__(self) -> None:
        """Reject invalid values."""
        if self.compaction_mode is not None and self.compaction_mode not in COMPACTION_MODES:
            valid = ", ".join(f'"{mode}"' for mode in COMPACTION_MODES)
            raise InvalidInputError(f'Invalid compaction mode "{self.compaction_mode}". Valid values: {valid}')
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Integral):
                raise InvalidInputError(f"CompactionOptions::{name} must be a whole number, not {value!r}")
            if value is not None and value < 1:
                raise InvalidInputError(
                    f"CompactionOptions::{name} must be greater than 0"
                    + (" (use None for no limit)" if name.startswith("max_source") else f", got {value}")
                )
        self._check_flags()
        for name in _AT_LEAST_NOTHING:
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                raise InvalidInputError(f"CompactionOptions::{name} must be a number, not {value!r}")
            if value is not None and not value >= 0:  # also rejects NaN
                raise InvalidInputError(f"CompactionOptions::{name} must be at least 0, not {value}")
        if self.deletions_only and not self.materialize_deletions:
            raise InvalidInputError("deletions_only contradicts materialize_deletions=False; leave one of them out")

    @property
    def may_leave_small_fragments(self) -> bool:
        """Whether results may have to be merged again: the bytes of small files are not those of the merged file."""
        limits = (self.max_source_fragments, self.max_source_rows, self.max_source_bytes)
        return self.target_bytes_per_fragment is not None and limits == (None, None, None) and not self.deletions_only

    def _check_flags(self) -> None:
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, int) and type(value).__name__ not in ("bool", "bool_"):  # of numpy
                raise ArgumentTypeError(f"CompactionOptions::{name} must be True or False, not {value!r}")

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None, config: Mapping[str, str]) -> Self:
        """Options from arguments, a table's configuration and the defaults.

        Args:
            arguments: The arguments; None values count as not given.
            config: The table's configuration.

        Raises:
            InvalidInputError: An option is not known, or its value cannot be used.
        """
        values: dict[str, Any] = {}
        for name, parse in _CONFIGURABLE.items():
            string = config.get(CONFIG_PREFIX + name)
            if string is not None:
                try:
                    values[name] = parse(string)
                except ValueError as error:
                    raise InvalidInputError(f"table config {CONFIG_PREFIX}{name}={string!r}: {error}") from error
        names = {field.name for field in dataclasses.fields(cls)}
        for name, value in (arguments or {}).items():
            if name not in names:
                raise InvalidInputError(f"Invalid compaction option: {name}")
            if value is not None:
                values[name] = _items(name, value) if name in _TUPLES else value
        return cls(**values)

    @property
    def copies_pages(self) -> bool:
        """Whether pages are to be copied where that is possible."""
        return self.compaction_mode != REENCODE

    def to_json(self) -> dict[str, Any]:
        """The options as an object for `json.dumps`, in pylance's form."""
        data = dataclasses.asdict(self)
        for name in _TUPLES:
            data[name] = list(data[name])
        return {
            **data,
            "index_remap_mode": "Direct",
            "enable_binary_copy": self.compaction_mode in (TRY_COPY, FORCE_COPY),
            "enable_binary_copy_force": self.compaction_mode == FORCE_COPY,
            "max_overlays_per_fragment": 10,
            "has_eager_remappable_index": None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `to_json`, or the options in a plan of pylance; unknown keys are ignored."""
        names = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names and value is not None}
        for name in _TUPLES.keys() & values.keys():
            values[name] = tuple(values[name])
        if values.get("compaction_mode") in _MODES_OF_JSON:
            values["compaction_mode"] = _MODES_OF_JSON[values["compaction_mode"]]
        return cls(**values)


def _items(name: str, value: object) -> tuple[Any, ...]:
    """The items of an option that is a list."""
    kind, words = _TUPLES[name]
    if not isinstance(value, str | bytes | Mapping) and isinstance(value, Iterable):
        items = tuple(value)
        if all(isinstance(item, kind) for item in items):
            return items
    raise ArgumentTypeError(f"CompactionOptions::{name} must be a list of {words}, not {value!r}")


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _names(string: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in string.split(",") if name.strip())


# pylance names modes by its enum's variants in some plans.
_MODES_OF_JSON: Final = {"Reencode": REENCODE, "TryBinaryCopy": TRY_COPY, "ForceBinaryCopy": FORCE_COPY}

_TUPLES: Final[Mapping[str, tuple[type, str]]] = {
    "excluded_fragment_ids": (Integral, "ids of fragments"),
    "apart_fragment_ids": (Integral, "ids of fragments"),
    "partition_by": (str, "names of columns"),
}
_FLAGS: Final = ("materialize_deletions", "defer_index_remap", "deletions_only", "repair_pages", "merge_results")
_AT_LEAST_NOTHING: Final = (
    "target_rows_per_fragment",
    "max_rows_per_group",
    "max_bytes_per_file",
    "materialize_deletions_threshold",
)
"""Options for which pylance accepts 0."""
_AT_LEAST_ONE: Final = (
    "target_bytes_per_fragment",
    "num_threads",
    "batch_size",
    "binary_copy_read_batch_bytes",
    "max_source_fragments",
    "max_source_rows",
    "max_source_bytes",
)

_CONFIGURABLE: Final[dict[str, Callable[[str], Any]]] = {
    "target_rows_per_fragment": int,
    "target_bytes_per_fragment": int,
    "max_rows_per_group": int,
    "max_bytes_per_file": int,
    "materialize_deletions": _flag,
    "materialize_deletions_threshold": float,
    "defer_index_remap": _flag,
    "batch_size": int,
    "compaction_mode": str,
    "binary_copy_read_batch_bytes": int,
    "max_source_fragments": int,
    "max_source_rows": int,
    "max_source_bytes": int,
    "data_storage_version": str,
    "partition_by": _names,
}
