"""Extension types at every level of a column: each verb gives what pylance gives, values and types."""

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import LanceError
from tests.interop.pairs import Pair

ROWS = 6
IDS = pa.array(range(ROWS))
UUIDS = pa.array([bytes([n] * 16) for n in range(ROWS)], pa.uuid())
TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.float32(), [2, 2]),
    pa.array([[float(n)] * 4 for n in range(ROWS)], pa.list_(pa.float32(), 4)),
)
FLAGS = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1] * 3, pa.int8()))
ENDS = pa.array(range(ROWS + 1), pa.int32())


def struct_of(values):
    return pa.StructArray.from_arrays([values, IDS], ["value", "n"])


COLUMNS = {
    "uuid": UUIDS,
    "tensor": TENSORS,
    "struct of uuid": struct_of(UUIDS),
    "struct of tensor": struct_of(TENSORS),
    "struct of bool8": struct_of(FLAGS),
    "list of uuid": pa.ListArray.from_arrays(ENDS, UUIDS),
    "list of structs of uuid": pa.ListArray.from_arrays(ENDS, struct_of(UUIDS)),
}
LATER = pa.table({"id": [4, 5, 6], "z": [40, 50, 60]})


def source(dataset):
    return dataset.to_table().slice(2).drop_columns(["z"])


VERBS = {
    "merge": lambda d, _: d.merge_insert("id").when_matched_update_all().execute(d.to_table().slice(2)) and None,
    "merge of some columns": lambda d, _: d.merge_insert("id").when_matched_update_all().execute(source(d)) and None,
    "merge without the column": lambda d, _: (
        d.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(LATER) and None
    ),
    "conditional merge": lambda d, _: (
        d.merge_insert("id").when_matched_update_all("target.id > 3").execute(d.to_table().slice(2)) and None
    ),
    "add_columns by SQL": lambda d, _: d.add_columns({"copy": "x", "more": "id + 1"}),
    "add_columns of a type": lambda d, _: d.add_columns(pa.field("new", d.schema.field("x").type)),
    "update": lambda d, _: d.update({"id": "id + 10"}, where="id > 3") and None,
    "delete": lambda d, _: d.delete("id > 3 AND x IS NOT NULL") and None,
    "scan": lambda d, _: d.to_table(columns={"renamed": "x", "n": "id + 1"}, filter=pc.field("id") > 2),
    "take": lambda d, _: d.take([4, 1]),
    "append": lambda d, library: library.write_dataset(d.to_table(), d, mode="append") and None,
}


@pytest.mark.variants(20)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_verb_gives_what_pylance_gives(tmp_path, column, verb):
    pair = Pair(tmp_path, pa.table({"id": IDS, "x": COLUMNS[column], "z": IDS}))
    pair.run(VERBS[verb], check=False)
    ours, reference = (lance.dataset(uri).to_table().sort_by("id") for uri in (pair.uris["ours"], pair.uris["theirs"]))
    assert ours.schema.equals(reference.schema)
    assert ours.equals(reference)
    assert lance_core.dataset(pair.uris["ours"]).to_table().sort_by("id").equals(ours)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_without_rows_can_be_written_and_merged(tmp_path, column):
    kind = COLUMNS[column].type
    schema = pa.schema({"id": pa.int64(), "x": kind})
    dataset = lance_core.write_dataset([], tmp_path / "t", schema=schema)
    result = (
        dataset.merge_insert("id")
        .when_not_matched_insert_all()
        .execute(pa.table({"id": IDS, "x": COLUMNS[column]}, schema=schema))
    )
    assert result["num_inserted_rows"] == ROWS
    assert lance.dataset(tmp_path / "t").to_table().schema.field("x").type == kind


def test_a_condition_on_an_extension_type_names_the_column(tmp_path):
    dataset = lance_core.write_dataset(pa.table({"id": IDS, "x": COLUMNS["struct of uuid"]}), tmp_path / "t")
    assert dataset.count_rows("x.n > 3") == 2
    with pytest.raises(LanceError, match="x"):
        dataset.count_rows("x > 3")
