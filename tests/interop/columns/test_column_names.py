"""Names of columns that other tools cannot read are rejected at every entry; tables that have them are read."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError
from lance_core.verbs.files import fragment_writer

NAMES = ["k.x", ".", "a`b", "`a`", "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version"]
REJECTED = r"cannot contain a (dot|back-tick)|is reserved for a row column"


@pytest.mark.parametrize("name", NAMES)
def test_new_columns_of_such_names_are_rejected(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2], "k": pa.array([{"x": 1}, {"x": 2}])})
    wide = rows.append_column(name, pa.array([1, 2]))
    uri = str(tmp_path / "t")
    for mode in ("create", "append", "overwrite"):
        with pytest.raises(SchemaError, match=REJECTED):
            lance_core.write_dataset(wide, uri, mode=mode)
    with pytest.raises(SchemaError, match=REJECTED):
        lance_core.write_fragments(wide, str(tmp_path / "f"))
    made = lance_core.write_dataset(rows, uri)
    with pytest.raises(SchemaError, match=REJECTED):
        lance_core.write_dataset(wide, uri, mode="overwrite")
    with pytest.raises(SchemaError):
        lance_core.write_dataset(wide, uri, mode="append")
    with pytest.raises(SchemaError, match=REJECTED):
        made.add_columns({name: "id + 1"})
    with pytest.raises(SchemaError, match=REJECTED):
        made.add_columns(pa.field(name, pa.int64()))
    with pytest.raises(SchemaError, match=REJECTED):
        made.alter_columns({"path": "id", "name": name})
    with pytest.raises(SchemaError, match=REJECTED):
        made.merge(wide.select(["id", name]), "id")
    assert lance.dataset(uri).schema.names == ["id", "k"]
    assert made.latest_version == 1


def test_fields_of_structs_may_have_them_as_in_pylance(tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array([{"a.b": 1}])})
    uri = str(tmp_path / "t")
    lance_core.write_dataset(rows, uri)
    assert lance.dataset(uri).to_table().equals(rows)


def test_tables_that_have_such_names_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(fragment_writer, "check_column_name", lambda _: None)
        made = lance_core.write_dataset(pa.table({"k.x": [1, 2], "a`b": [3, 4]}), tmp_path / "t")
    assert made.to_table().to_pydict() == {"k.x": [1, 2], "a`b": [3, 4]}
    assert made.to_table(filter="`k.x` > 1").num_rows == 1
    made.delete("`k.x` = 1")
    made.alter_columns({"path": "`k.x`", "name": "k_x"})
    assert made.schema.names == ["k_x", "a`b"]
