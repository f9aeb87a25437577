"""Finds rows of a version by a condition or by their keys, as offsets by fragment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_core import LanceDataset
from lance_core.row_addresses import bitmaps_by_fragment
from pyspark_lance.keys.equality import join_by_key


def find_rows_where(dataset: LanceDataset, condition: str) -> dict[int, BitMap]:
    """Offsets of the rows that meet a condition, by fragment id."""
    return _by_fragment(dataset.scanner(columns=["_rowaddr"], filter=condition).to_batches())


def find_rows_with_keys(dataset: LanceDataset, keys: pa.Table) -> dict[int, BitMap]:
    """Offsets of the rows that have one of the keys, by fragment id. A key that contains a null equals no other."""
    return _by_fragment(join_by_key(dataset, keys, ["_rowaddr"]))


def _by_fragment(batches: Iterable[Any]) -> dict[int, BitMap]:
    rows_of_fragments: dict[int, BitMap] = {}
    for batch in batches:
        for number, rows in bitmaps_by_fragment(batch.column("_rowaddr").to_numpy()).items():
            rows_of_fragments[number] = rows_of_fragments[number] | rows if number in rows_of_fragments else rows
    return rows_of_fragments
