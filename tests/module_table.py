"""The table of packages and their tests in tests/README.md: `python -m tests.module_table` writes it, a test checks it.

A package is tested by the folder that mirrors it, and by the tests in `FROM_OUTSIDE`, which mostly use public names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "tests" / "README.md"
BEGIN, END = "<!-- tests of modules: make module-table -->", "<!-- end -->"
PACKAGES = ("lance_core", "pyspark_lance", "lance_dagster")

FROM_OUTSIDE = {
    "lance_core": ["tests/test_public_api.py", "tests/test_pylance_names.py"],
    "lance_core/commit": ["tests/faults", "tests/interop/rows/test_stale_handles.py"],
    "lance_core/dataset": ["tests/interop"],
    "lance_core/encoding": [
        "tests/interop/format/test_encoding_requests.py",
        "tests/interop/format/test_data_files.py",
    ],
    "lance_core/encoding/legacy": ["tests/interop/format/test_legacy_dictionaries.py"],
    "lance_core/encoding/structural": ["tests/lance_core/encoding/test_levels.py", "tests/interop/rows/test_blobs.py"],
    "lance_core/encoding/v2_0": ["tests/lance_core/encoding/test_old_integers.py"],
    "lance_core/file": ["tests/interop/format/test_data_files.py", "tests/interop/format/test_historical_tables.py"],
    "lance_core/index": [
        "tests/interop/indices/test_building_indices.py",
        "tests/interop/indices/test_random_indices.py",
    ],
    "lance_core/maintenance": [
        "tests/interop/maintenance/test_compaction.py",
        "tests/interop/maintenance/test_cleanup.py",
    ],
    "lance_core/store": ["tests/faults/test_s3_faults.py"],
    "lance_core/table": ["tests/interop/rows/test_operations.py"],
    "lance_core/verbs/columns": [
        "tests/interop/columns/test_changing_columns.py",
        "tests/interop/columns/test_casting_columns.py",
    ],
    "lance_core/verbs/columns/write_columns": ["tests/interop/columns/test_write_columns.py"],
    "lance_core/verbs/delta": ["tests/interop/changes/test_delta.py", "tests/interop/changes/test_same_columns.py"],
    "lance_core/verbs/expressions/sql": [
        "tests/interop/sql/test_sql_by_hypothesis.py",
        "tests/interop/sql/test_sql_values.py",
    ],
    "lance_core/verbs/indices": ["tests/interop/indices/test_building_indices.py"],
    "lance_core/verbs/inspect": ["tests/interop/format/test_tables.py"],
    "lance_core/verbs/refs": ["tests/interop/refs/test_branching.py"],
    "lance_core/verbs/rows": ["tests/interop/rows/test_changing_rows.py", "tests/interop/rows/test_update_values.py"],
    "lance_core/verbs/scan": ["tests/interop/rows/test_reading.py", "tests/interop/format/test_scattered_rows.py"],
    "lance_core/verbs/write": ["tests/interop/rows/test_writing_options.py"],
    "lance_dagster/cli": ["tests/lance_dagster/lineage/test_lineage.py"],
    "lance_dagster/components": ["tests/lance_dagster/test_components.py"],
    "lance_dagster/handlers": [
        "tests/lance_dagster/io_manager/test_kinds.py",
        "tests/lance_dagster/io_manager/test_write.py",
        "tests/lance_dagster/loading/test_load.py",
    ],
    "lance_dagster/undo": ["tests/lance_dagster/lineage/test_lineage.py", "tests/lance_dagster/test_agreement.py"],
    "pyspark_lance/catalog": [
        "tests/pyspark_lance/statements/test_directory_catalog.py",
        "tests/pyspark_lance/statements/test_names.py",
    ],
}


def folders() -> Iterator[Path]:
    """The folders of the packages and their sub-packages."""
    for package in PACKAGES:
        for init in sorted((ROOT / package).rglob("__init__.py")):
            if "_proto" not in init.parts:
                yield init.parent


def table() -> str:
    """The table, as Markdown."""
    lines = ["| package | its tests |", "|---|---|"]
    for folder in folders():
        name = str(folder.relative_to(ROOT))
        mirror = f"tests/{name}"
        tests = [mirror] if (ROOT / mirror).is_dir() else []
        tests += [one for one in FROM_OUTSIDE.get(name, []) if (ROOT / one).exists()]
        text = ", ".join(f"`{one}`" for one in tests) or f"those of `{folder.relative_to(ROOT).parent}`"
        lines.append(f"| `{name}` | {text} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The text of the page with the current table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
