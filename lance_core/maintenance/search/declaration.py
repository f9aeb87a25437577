"""Declarations of indices: a mapping from columns to kinds and parameters, and the parameters that are chosen.

    {"embedding": {"kind": "IVF_PQ", "metric": "cosine", "min_recall": 0.95}, "body": "FTS", "id": "BTREE"}

What a declaration leaves out is chosen from the rows of the table and the dimensions of its vectors:

    num_partitions     rows / 4096, for the HNSW kinds rows / 1048576; rounded up, from 1 to 4096
    num_sub_vectors    the largest divisor of the dimensions that is at most an eighth of them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import isfinite
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.index.kinds.registry import BY_NAME
from lance_core.verbs.indices.create import kind_and_parameters, reject_index_name

_IVF: Final = ("num_partitions", "filter_nan", "sample_rate", "max_iters")
_HNSW: Final = (*_IVF, "m", "ef_construction", "max_level")
_PQ: Final = ("num_sub_vectors", "num_bits")
VECTOR_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "IVF_FLAT": _IVF,
    "IVF_SQ": (*_IVF, "num_bits"),
    "IVF_PQ": (*_IVF, *_PQ),
    "IVF_RQ": (*_IVF, "num_bits"),
    "IVF_HNSW_FLAT": _HNSW,
    "IVF_HNSW_SQ": (*_HNSW, "num_bits"),
    "IVF_HNSW_PQ": (*_HNSW, *_PQ),
}
"""The kinds for vectors, each with the parameters of pylance's `create_index` that it takes."""

_FLAGS: Final = ("with_position", "lower_case", "stem", "remove_stop_words", "ascii_folding", "prefix_only")
_NAMES: Final = ("base_tokenizer", "language")
_COUNTS: Final = ("max_token_length", "min_ngram_length", "max_ngram_length", "block_size")
TEXT_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "FTS": (*_FLAGS, *_NAMES, *_COUNTS, "custom_stop_words"),
    "NGRAM": (),
}
"""The kinds for text, each with the parameters of pylance's `create_scalar_index` that it takes."""

_LANGUAGES: Final = (
    *("Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian"),
    *("Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish"),
)
_TOKENIZERS: Final = ("simple", "whitespace", "raw", "ngram", "icu", "icu/split", "code", "jieba", "lindera/...")
_CHOICES: Final[Mapping[str, tuple[object, ...]]] = {
    "language": _LANGUAGES,
    "base_tokenizer": _TOKENIZERS,
    "block_size": (128, 256),
}
"""What pylance 14 takes; models of jieba and lindera have names of their own."""

_DIMENSIONS_PER_CODE: Final = 8  # of IVF_RQ, whose codes are whole bytes
_BITS: Final = {"IVF_PQ": (4, 8), "IVF_HNSW_PQ": (4, 8), "IVF_RQ": tuple(range(1, 10))}
_NGRAM_LENGTH: Final = 3
"""pylance's default of `min_ngram_length` and of `max_ngram_length`."""

_ALIASES: Final = {"INVERTED": "FTS"}
METRICS: Final = ("l2", "cosine", "dot", "hamming")
_METRIC_ALIASES: Final = {"euclidean": "l2"}
_EARLY_ROWS: Final = 256
"""Rows below which all vectors are compared as fast as an index is searched."""

_PQ_BITS: Final = 8

_MOST_PARTITIONS: Final = 4096
_ROWS_PER_PARTITION: Final = {True: 1024 * 1024, False: 4096}  # of HNSW kinds, and of others
_DIMENSIONS_PER_SUB_VECTOR: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDeclaration:
    """An index that a table is to have.

    Attributes:
        column: The column, or the dotted path to a field of a struct.
        kind: One of `VECTOR_PARAMETERS`, `TEXT_PARAMETERS` or lance_core's scalar kinds, such as "BTREE".
        metric: Of vectors "l2", "cosine", "dot" or "hamming"; None for other kinds.
        name: The name of the index; None for `<column>_idx`, or that of an index by somebody else that is adopted.
        min_recall: The recall below which the index is built again; None for no such limit.
        k: The number of neighbours at which recall is measured.
        nprobes: The number of partitions that are searched when recall is measured; None for pylance's default.
        refine_factor: How many times k rows are compared by their stored vectors; None for none.
        queries: Vectors that are searched for beside stored ones when recall is measured, or the URI of a table that
            has them in a column of the same name; None for stored ones alone.
        min_rows: The rows from which the index is built: 256 with a vector for kinds of vectors, else 1; at least
            `least_vectors`.
        retrain_growth: An index on vectors is built again when the table has this many times the rows of its training.
        parameters: Parameters of the build, under pylance's names.
    """

    column: str
    kind: str
    metric: str | None = None
    name: str | None = None
    min_recall: float | None = None
    k: int = 10
    nprobes: int | None = None
    refine_factor: int | None = None
    queries: str | Sequence[Sequence[float]] | None = None
    min_rows: int = 1
    retrain_growth: float = 4.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_vector(self) -> bool:
        """Whether the index is on vectors."""
        return self.kind in VECTOR_PARAMETERS

    @property
    def needs_pylance(self) -> bool:
        """Whether lance_core does not build the kind itself."""
        return self.is_vector or self.kind in TEXT_PARAMETERS

    @property
    def least_vectors(self) -> int:
        """The fewest vectors that the index can be trained on: one a partition, and one a code of the PQ kinds."""
        codes: int = 2 ** self.parameters.get("num_bits", _PQ_BITS) if "PQ" in self.kind else 1
        return max(codes, int(self.parameters.get("num_partitions", 1)))

    @property
    def build_key(self) -> dict[str, Any]:
        """What makes an index another one if it changes: kind, metric and parameters of the build."""
        return {"kind": self.kind, "metric": self.metric, "parameters": dict(self.parameters)}

    @property
    def search_settings(self) -> dict[str, Any]:
        """The settings at which recall is measured; `queries` is the URI of a table, or a digest of vectors."""
        settings = {"k": self.k, "nprobes": self.nprobes, "refine_factor": self.refine_factor}
        if self.queries is None:
            return settings
        vectors = None if isinstance(self.queries, str) else json.dumps(self.queries)
        return {**settings, "queries": self.queries if vectors is None else f"{crc32(vectors.encode()):08x}"}

    def explain_misfit(self, column_type: pa.DataType) -> str | None:
        """Why a column of a type cannot have the index; None if it can."""
        what = f"a column of type {column_type} cannot have an index of kind {self.kind}"
        if self.is_vector:
            values = vector_values(column_type)
            if values is None or not (pa.types.is_floating(values) or pa.types.is_uint8(values)):
                return f"{what}: it needs a fixed_size_list of floats, or of uint8 with hamming"
            if pa.types.is_uint8(values) != (self.metric == "hamming"):
                return f"{what} and metric {self.metric}: hamming is for uint8, and the other metrics are for floats"
            size = column_type.list_size
            if isinstance(self.queries, list) and len(self.queries[0]) != size:
                return f"{what}: its queries have {len(self.queries[0])} dimensions, not {size}"
            if self.kind == "IVF_RQ" and size % _DIMENSIONS_PER_CODE:
                return f"{what}: it needs a number of dimensions that {_DIMENSIONS_PER_CODE} divides, not {size}"
            if size % (self.parameters.get("num_sub_vectors") or 1):
                return f"{what}: num_sub_vectors must divide its {size} dimensions"
            return None
        if self.needs_pylance:
            fits = _is_string(column_type) or (self.kind == "FTS" and _is_list_of_strings(column_type))
            return None if fits else f"{what}: it needs strings"
        return None if bool(BY_NAME[self.kind].accepts(column_type)) else what

    def choose_parameters(self, rows: int, dimensions: int) -> dict[str, Any]:
        """The parameters by which the index is built; the head of the module has the rule.

        Args:
            rows: The rows of the table, or fewer if not all have a vector.
            dimensions: The dimensions of the vectors; 0 for other kinds.
        """
        chosen = dict(self.parameters)
        if self.is_vector:
            count = -(-rows // _ROWS_PER_PARTITION["HNSW" in self.kind])
            chosen.setdefault("num_partitions", max(1, min(count, _MOST_PARTITIONS)))
        if "PQ" in self.kind and "num_sub_vectors" not in chosen:
            most = max(1, dimensions // _DIMENSIONS_PER_SUB_VECTOR)
            chosen["num_sub_vectors"] = next(size for size in range(most, 0, -1) if dimensions % size == 0)
        return chosen


def vector_values(column_type: pa.DataType) -> pa.DataType | None:
    """The type of the numbers of a vector; None if the type is not one of vectors."""
    return column_type.value_type if pa.types.is_fixed_size_list(column_type) else None


def _is_string(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(column_type) or pa.types.is_large_string(column_type))


def _is_list_of_strings(column_type: pa.DataType) -> bool:
    is_list = pa.types.is_list(column_type) or pa.types.is_large_list(column_type)
    return bool(is_list and _is_string(column_type.value_type))


def parse_declarations(indices: Any) -> tuple[IndexDeclaration, ...]:
    """The declarations of a policy, or of an asset's metadata `lance/indices`.

    Args:
        indices: By column, a kind, or a mapping with `kind`, fields of `IndexDeclaration`, and parameters of the kind;
            None for no declarations.

    Raises:
        InvalidInputError: A kind, field, parameter or value is not possible.

    Examples:
        >>> maintenance.parse_declarations({"body": "FTS"})[0].kind
        'FTS'
    """
    if indices is None:
        return ()
    if not isinstance(indices, Mapping):
        raise InvalidInputError(f'indices must be a mapping such as {{"body": "FTS"}}, not {indices!r:.80}')
    declarations = tuple(_parse_declaration(column, entry) for column, entry in indices.items())
    names = [declaration.name for declaration in declarations if declaration.name is not None]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InvalidInputError(f"indices: the name {min(repeated)!r} is given to two columns")
    return declarations


def _parse_declaration(column: object, entry: object) -> IndexDeclaration:
    if not isinstance(column, str) or not column:
        raise InvalidInputError(f"indices: a column is named by a string, not by {column!r}")
    where = f"indices[{column!r}]"
    fields = {"kind": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping) or not isinstance(fields.get("kind"), str):
        raise InvalidInputError(f'{where} must be a kind such as "FTS", or a mapping with `kind`, not {entry!r:.80}')
    kind = _ALIASES.get(fields["kind"].upper(), fields["kind"].upper())
    parameters = VECTOR_PARAMETERS.get(kind) or TEXT_PARAMETERS.get(kind)
    if parameters is None:
        kinds = [*VECTOR_PARAMETERS, *TEXT_PARAMETERS, *BY_NAME]
        if kind not in kinds:
            raise InvalidInputError(f"{where}: there is no kind {fields['kind']!r}{_hint(kind, kinds)}")
        parameters = tuple(BY_NAME[kind].parameters) if kind in BY_NAME else ()
    is_vector, has_recall = kind in VECTOR_PARAMETERS, kind in VECTOR_PARAMETERS or kind == "FTS"
    options = {
        "name": True,
        "min_rows": True,
        "min_recall": has_recall,
        **dict.fromkeys(("metric", "k", "nprobes", "refine_factor", "queries", "retrain_growth"), is_vector),
    }
    names = [*(name for name, fits in options.items() if fits), *parameters]
    unknown = next((name for name in fields if name not in ("kind", *names)), None)
    if unknown is not None:
        raise InvalidInputError(f"{where}: {kind} has no field {unknown!r}{_hint(str(unknown), names)}")
    chosen = {name: value for name, value in fields.items() if value is not None and name != "kind"}
    build = {name: _check(where, name, value) for name, value in chosen.items() if name not in options}
    if kind in BY_NAME:
        _in_place(where, kind_and_parameters, kind, build)
    checked = {name: _check(where, name, value) for name, value in chosen.items() if name in options}
    _reject_misfits(where, kind, build)
    if "name" in checked:
        _in_place(where, reject_index_name, checked["name"])
    if is_vector:
        checked["metric"] = _check_metric(where, kind, checked.get("metric", "l2"))
        checked.setdefault("min_rows", _EARLY_ROWS)
    declaration = IndexDeclaration(column=column, kind=kind, parameters=build, **checked)
    return replace(declaration, min_rows=max(declaration.min_rows, declaration.least_vectors))


def _in_place(where: str, check: Callable[..., object], *arguments: object) -> None:
    """Run a check, whose error gets the place.

    Raises:
        InvalidInputError: The check failed.
    """
    try:
        check(*arguments)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from error


def _reject_misfits(where: str, kind: str, build: Mapping[str, Any]) -> None:
    """Reject parameters that pylance would reject only when it builds.

    Raises:
        InvalidInputError: A value is none of those that the kind takes, or two do not fit each other.
    """
    for name, values in {**_CHOICES, "num_bits": _BITS.get(kind, ())}.items():
        value = build.get(name)
        if value is None or not values or value in values or str(value).startswith(("jieba/", "lindera/")):
            continue
        hint = _hint(value.capitalize() if name == "language" else str(value), [str(each) for each in values])
        raise InvalidInputError(f"{where}: {kind} has no {name} {value!r}{hint}")
    least, most = (build.get(name, _NGRAM_LENGTH) for name in ("min_ngram_length", "max_ngram_length"))
    if least > most:
        raise InvalidInputError(f"{where}: min_ngram_length, {least}, is above max_ngram_length, {most}")


def _check_metric(where: str, kind: str, metric: str) -> str:
    name = _METRIC_ALIASES.get(metric.lower(), metric.lower())
    if name not in METRICS:
        raise InvalidInputError(f"{where}: there is no metric {metric!r}{_hint(name, METRICS)}")
    if name == "hamming" and kind != "IVF_FLAT":
        raise InvalidInputError(f"{where}: the metric hamming is for vectors of uint8, which only IVF_FLAT takes")
    return name


def _check(where: str, name: str, value: Any) -> Any:
    """The value of a field or parameter.

    Raises:
        InvalidInputError: The value is of the wrong type or out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in (*_FLAGS, "filter_nan"):
        needed, fits = "True or False", isinstance(value, bool)
    elif name in (*_NAMES, "name", "metric"):
        needed, fits = "a name", isinstance(value, str) and bool(value)
    elif name == "custom_stop_words":
        needed, fits = "a list of words", isinstance(value, list) and all(isinstance(word, str) for word in value)
    elif name == "min_recall":
        needed, fits = "a share above 0 and up to 1", is_number and 0 < value <= 1
    elif name == "retrain_growth":
        needed, fits = "a number above 1", is_number and value > 1
    elif name == "queries":
        needed, fits = "vectors of one length, or the URI of a table", bool(value) and _are_queries(value)
    elif name == "probability":
        return value  # the kind checks it
    else:
        needed, fits = "a positive whole number", is_number and isinstance(value, int) and value > 0
    if not fits:
        raise InvalidInputError(f"{where}: {name} must be {needed}, not {value!r:.80}")
    return value


def _are_queries(value: Any) -> bool:
    if not isinstance(value, list):
        return isinstance(value, str)
    numbers = [number for vector in value if isinstance(vector, list) for number in vector]
    return len({len(vector) if isinstance(vector, list) else 0 for vector in value}) == 1 and bool(
        numbers and all(isinstance(number, int | float) and isfinite(number) for number in numbers)
    )


def _hint(name: str, names: Any) -> str:
    nearest = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; is {nearest[0]!r} meant?" if nearest else f"; there are {', '.join(names)}"
