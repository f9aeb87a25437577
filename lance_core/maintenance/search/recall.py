"""Measures how many of the rows that a search should return are returned by an index.

vectors    recall@k: stored vectors are searched for; the k nearest other rows, of all rows by lance_core, are compared
           with those that pylance returns. A row that is as near as the k-th counts, whichever of equal rows it is.
words      sampled rows are searched for by the rarest of their words: the share of rows that are found
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take import take_rows

QUERIES: Final = 100
"""The number of stored vectors, or rows with words, that are searched for."""

_MOST_QUERIES: Final = 1000
_NO_ROW: Final = -1
_BATCH_ROWS: Final = 4096
_SAMPLED_ROWS: Final = 2000
_MOST_HITS: Final = 10_000
_LONGEST_WORD: Final = 40
_TOLERANCE: Final = 1e-5
_DEFAULT_NPROBES: Final = 20
_ATTEMPTS: Final = ((1, 5), (4, 1), (4, 5), (16, 5), (64, 20))
"""Factors of nprobes and refine_factor that are tried where `min_recall` is missed."""

_Floats = npt.NDArray[np.float64]


def measure_vectors(table: Any, snapshot: Snapshot, request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the recall of an index on vectors, and if it is too low, at which settings it is high enough.

    Args:
        table: The table, by pylance.
        snapshot: The same version, by lance_core.
        request: `column`, `metric`, `settings` (k, nprobes, refine_factor), `min_recall` and `queries`: vectors, or the
            URI of a table in the same storage.
    """
    column, settings = request["column"], {**request["settings"], "queries": None}
    if request["metric"] == "hamming":
        return {"value": None, "queries": 0, "note": "recall of hamming cannot be measured"}
    queries, row_ids = _sample_vectors(snapshot, column)
    if request["queries"] is not None:
        more_queries = _read_queries(request)
        queries, row_ids = np.concatenate([queries, more_queries]), row_ids + [_NO_ROW] * len(more_queries)
    if not len(queries):
        return {"value": None, "queries": 0, "note": "no row has a vector to search for"}
    limits = _find_limits(snapshot, column, request["metric"], queries, row_ids, settings["k"])
    case = _VectorCase(table, column, request["metric"], queries, row_ids, limits)
    value, notes = case.recall(settings), list[str]()
    least = request["min_recall"]
    if least is not None and value < least:
        for more_probes, refine_factor in _ATTEMPTS:
            more = {
                "k": settings["k"],
                "nprobes": more_probes * (settings["nprobes"] or _DEFAULT_NPROBES),
                "refine_factor": max(refine_factor, settings["refine_factor"] or 1),
            }
            reached = case.recall(more)
            notes.append(f"nprobes={more['nprobes']}, refine_factor={more['refine_factor']}: {reached:.3f}")
            if reached >= least:
                break
    return {"value": value, "queries": len(queries), "note": "; ".join(notes) or None}


class _VectorCase:
    """Searches whose right answers are known."""

    def __init__(
        self, table: Any, column: str, metric: str, queries: _Floats, row_ids: Sequence[int], limits: _Floats
    ) -> None:
        self.table, self.column, self.metric = table, column, metric
        self.queries, self.row_ids, self.limits = queries, row_ids, limits

    def recall(self, settings: Mapping[str, int | None]) -> float:
        """The share of the k nearest other rows that are returned."""
        k = settings["k"] or 1
        hits = total = 0
        for query, row_id, distances in zip(self.queries, self.row_ids, self.limits, strict=True):
            nearest: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
            nearest |= {"column": self.column, "q": query.astype(np.float32), "k": k + 1, "metric": self.metric}
            rows = self.table.to_table(columns=[self.column], nearest=nearest, with_row_id=True)
            is_other = np.asarray(rows["_rowid"]) != row_id
            vectors = _to_matrix(rows[self.column].combine_chunks())[is_other][:k]
            expected = int(np.isfinite(distances).sum())
            if expected:
                least = distances[expected - 1]
                near = _distances(query[None], vectors, self.metric)[0] <= least + _TOLERANCE * max(1.0, abs(least))
                hits += min(int(near.sum()), expected)
            total += expected
        return hits / total if total else 1.0


def _sample_vectors(snapshot: Snapshot, column: str) -> tuple[_Floats, list[int]]:
    """Stored vectors without nulls, NaN and infinite numbers, and the row ids of their rows."""
    rows = _sample(snapshot, column, 2 * QUERIES)
    array = rows[column].combine_chunks()
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    vectors = _to_matrix(array.drop_null())
    ids = np.asarray(rows["_rowid"])[valid]
    usable = np.isfinite(vectors).all(axis=1) & (np.abs(vectors).sum(axis=1) > 0)
    return vectors[usable][:QUERIES], ids[usable][:QUERIES].tolist()


def _read_queries(request: Mapping[str, Any]) -> _Floats:
    """The first vectors of a user, without nulls.

    Raises:
        LanceError: The table of queries cannot be read, or has no vectors in a column of that name.
    """
    if not isinstance(request["queries"], str):
        return np.asarray(request["queries"][:_MOST_QUERIES], dtype=np.float64)
    snapshot = Handle(request["queries"], storage_options=request["options"] or None).snapshot
    vectors, count = list[_Floats](), 0
    for batch in read_batches(snapshot, request["column"]):
        if batch.column(0).null_count < len(batch):
            vectors.append(_to_matrix(batch.column(0).drop_null()))
            count += len(vectors[-1])
        if count >= _MOST_QUERIES:
            break
    if not vectors:
        raise InvalidInputError(f"the table of queries {request['queries']} has no vectors in {request['column']!r}")
    return np.concatenate(vectors)[:_MOST_QUERIES]


def _sample(snapshot: Snapshot, column: str, count: int) -> pa.Table:
    """Rows of a version with their row ids, the same ones each time."""
    options = scan_options(snapshot.manifest, [column], with_row_id=True)
    fragments = snapshot.manifest.fragments
    total = LanceScanner(snapshot, fragments, options).count_rows()
    chosen = np.random.default_rng(total).permutation(total)[:count] if total < 10 * count else None
    if chosen is None:
        chosen = np.unique(np.random.default_rng(total).integers(0, total, 2 * count))
        chosen = np.random.default_rng(total).permutation(chosen)[:count]
    return take_rows(snapshot, fragments, chosen.tolist(), options)


def _find_limits(
    snapshot: Snapshot, column: str, metric: str, queries: _Floats, row_ids: Sequence[int], k: int
) -> _Floats:
    """For each query the distances of its k nearest other rows, ascending; infinite where there are fewer rows."""
    nearest = np.full((len(queries), k), np.inf)
    own_ids = np.asarray(row_ids)
    for batch in read_batches(snapshot, column):
        array = batch.column(0)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        ids = batch.column(1).to_numpy()[valid]
        distances = _distances(queries, _to_matrix(array.drop_null()), metric)
        distances[np.isnan(distances) | (ids[None] == own_ids[:, None])] = np.inf
        both = np.concatenate([nearest, distances], axis=1)
        nearest = np.partition(both, k - 1, axis=1)[:, :k]
    return np.sort(nearest, axis=1)


def read_batches(snapshot: Snapshot, column: str) -> Iterator[pa.RecordBatch]:
    """A column of a version with the row ids."""
    options = scan_options(snapshot.manifest, [column], with_row_id=True, batch_size=_BATCH_ROWS)
    yield from LanceScanner(snapshot, snapshot.manifest.fragments, options).to_batches()


def _to_matrix(array: pa.Array) -> _Floats:
    """The vectors of an array without nulls, one a row."""
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    values = array.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return values.reshape(len(array), -1) if len(array) else np.zeros((0, 1))


def _distances(queries: _Floats, vectors: _Floats, metric: str) -> _Floats:
    """The distance of each query to each vector, as searches give it."""
    if not len(vectors):
        return np.zeros((len(queries), 0))
    products: _Floats = queries @ vectors.T
    if metric == "dot":
        return 1 - products
    lengths = (queries**2).sum(axis=1)[:, None], (vectors**2).sum(axis=1)[None]
    distances: _Floats
    with np.errstate(all="ignore"):
        if metric == "l2":
            distances = lengths[0] + lengths[1] - 2 * products
        else:
            distances = 1 - products / np.sqrt(lengths[0] * lengths[1])
    return distances


def measure_words(table: Any, snapshot: Snapshot, request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure which share of sampled rows is found by their rarest words.

    Args:
        table: The table, by pylance.
        snapshot: The same version, by lance_core.
        request: `column` and `parameters` of the index.
    """
    column, parameters = request["column"], request["parameters"]
    tokenizer = parameters.get("base_tokenizer", "simple")
    if tokenizer not in ("simple", "whitespace"):
        return {"value": None, "queries": 0, "note": f"recall of the tokenizer {tokenizer!r} cannot be measured"}
    longest = min(_LONGEST_WORD, parameters.get("max_token_length") or _LONGEST_WORD)
    rows = _sample(snapshot, column, _SAMPLED_ROWS)
    words_of_rows = [_split(value, tokenizer, longest) for value in rows[column].to_pylist()]
    counts = Counter(word for words in words_of_rows for word in words)
    hits = total = 0
    for row_id, words in zip(rows["_rowid"].to_pylist(), words_of_rows, strict=True):
        rare = min(words, key=lambda word: (counts[word], -len(word), word), default=None)
        if rare is None or total == QUERIES or counts[rare] > max(1, len(words_of_rows) // 10):
            continue
        query = {"full_text_query": {"columns": [column], "query": rare}, "limit": _MOST_HITS}
        result = table.to_table(columns=[], with_row_id=True, disable_scoring_autoprojection=True, **query)
        if len(result) < _MOST_HITS:
            total += 1
            hits += row_id in result["_rowid"].to_pylist()
    if not total:
        return {"value": None, "queries": 0, "note": "no sampled row has a rare word"}
    return {"value": hits / total, "queries": total, "note": None}


def _split(value: Any, tokenizer: str, longest: int) -> set[str]:
    """The words of a string, or of a list of strings, that an index has."""
    text = " ".join(item for item in value if item) if isinstance(value, list) else value or ""
    words = text.split() if tokenizer == "whitespace" else re.findall(r"[^\W_]+", text)
    return {word for word in words if len(word) >= 3 and len(word.encode()) < longest}
