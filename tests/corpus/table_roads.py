"""The roads of tables of early releases of pylance: read, verified and changed as they are, by both libraries."""

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_core
from lance_core.maintenance.verify.files import verify
from tests.corpus.sample import Sample
from tests.corpus.values import different_values

__all__ = ["TABLE_ROADS"]

LIBRARIES = {"lance_core": lance_core, "pylance": lance}


def _merged(table: Any, rows: pa.Table) -> object:
    some = rows.set_column(0, "id", pa.array(range(5, 5 + rows.num_rows), pa.int64()))
    return table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(some)


# ruff: noqa: ARG005 - verbs take the table and its rows, which not all need
VERBS: dict[str, Callable[[Any, pa.Table], object]] = {
    "nothing": lambda table, rows: None,
    "append": lambda table, rows: table.insert(rows),
    "delete": lambda table, rows: table.delete("id % 3 = 1"),
    "update": lambda table, rows: table.update({"n": "n + 1"}, "id > 4"),
    "merge": _merged,
    "add columns": lambda table, rows: table.add_columns({"added": "id * 2"}),
    "rename a column": lambda table, rows: table.alter_columns({"path": "s", "name": "s2"}),
    "drop a column": lambda table, rows: table.drop_columns(["n"]),
    "index": lambda table, rows: table.create_scalar_index("id", "BTREE", replace=True),
    "index of text": lambda table, rows: table.create_scalar_index("s", "BITMAP", replace=True),
    "index refresh": lambda table, rows: table.optimize.optimize_indices(),
    "compaction": lambda table, rows: table.optimize.compact_files(materialize_deletions_threshold=0.0),
    "cleanup": lambda table, rows: table.cleanup_old_versions(dt.timedelta(0)),
    "restore": lambda table, rows: table.checkout_version(1).restore(),
    "overwrite": lambda table, rows: table.delete("true"),
}


def _differences(folder: Path, what: str) -> str | None:
    """How the two copies of a table differ, read by either library; or what is damaged in ours."""
    tables = {
        f"{reader} of {writer}'s": library.dataset(str(folder / writer)).to_table()
        for writer in LIBRARIES
        for reader, library in LIBRARIES.items()
    }
    (_, expected), *others = tables.items()
    for name, stored in others:
        difference = different_values(stored, expected)
        if difference is not None:
            return f"after {what}, {name}: {difference}"
    ours = lance_core.dataset(folder / "lance_core")
    if (
        ours.count_rows() != expected.num_rows
        or lance_core.dataset(folder / "pylance").count_rows() != expected.num_rows
    ):
        return f"after {what}, {ours.count_rows()} rows are counted"
    for writer in LIBRARIES:
        problems = verify(lance_core.dataset(folder / writer))
        if problems:
            return f"after {what} by {writer}, verify says {problems[0]}"
    for condition in ("id = 5", "id > 3 AND id < 9", "id IS NULL"):
        counts = {library.dataset(str(folder / "pylance")).count_rows(condition) for library in LIBRARIES.values()}
        if len(counts) > 1:
            return f"after {what}, {condition} has {counts} rows"
    return None


def change(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
    """Take each verb on a fresh copy of the table, then all of them on one by either library in turn."""
    folder.mkdir(parents=True)
    source = sample.write(folder)
    for number, (what, verb) in enumerate(VERBS.items()):
        place = folder / str(number)
        errors = {}
        for name, library in LIBRARIES.items():
            shutil.copytree(source, place / name)
            try:
                verb(library.dataset(str(place / name)), rows)
            except BaseException as error:  # noqa: BLE001 - pylance panics with errors that are no Exception
                errors[name] = error
        if "lance_core" in errors and "pylance" not in errors:
            return f"{what}: pylance can, but: {errors['lance_core']!r}"
        difference = None if errors else _differences(place, what)
        if difference is not None:
            return difference
    for library in LIBRARIES.values():  # in turn, on one table
        for what, verb in VERBS.items():
            if what not in ("restore", "overwrite", "rename a column", "drop a column", "add columns"):
                try:
                    verb(library.dataset(str(source)), rows)
                except BaseException as error:  # noqa: BLE001 - judged; pylance panics, and has no early indices
                    if library is lance_core:
                        return f"{what} in turn: {error!r}"
                problems = verify(lance_core.dataset(source))
                if problems:
                    return f"{library.__name__}, {what} in turn: verify says {problems[0]}"
        tables = [reader.dataset(str(source)).to_table() for reader in LIBRARIES.values()]
        difference = different_values(*tables)
        if difference is not None:
            return f"after all changes in turn: {difference}"
    return None


TABLE_ROADS: dict[str, Callable[[Sample, pa.Table, Path], str | None]] = {"table": change}
