"""Values of another extension type, or of other parameters, are rejected before a file is written, as by pylance."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError, SchemaError

pd = pytest.importorskip("pandas", reason="an extra")

BYTES = pa.array([b"a" * 16, b"b" * 16], pa.binary(16))


def extension(kind, storage):
    return pa.ExtensionArray.from_storage(kind, storage)


def of_pandas(values):
    return pa.Table.from_pandas(pd.DataFrame({"p": values}))["p"].combine_chunks()


def periods(frequency):
    return of_pandas(pd.period_range("2020", periods=2, freq=frequency))


def intervals(closed):
    return of_pandas(pd.interval_range(0, 2, closed=closed))


def tensors(shape, **names):
    return extension(
        pa.fixed_shape_tensor(pa.int64(), shape, **names), pa.array([[1] * 6] * 2, pa.list_(pa.int64(), 6))
    )


def opaque(name, vendor="vendor"):
    return extension(pa.opaque(pa.binary(16), name, vendor), BYTES)


def struct_of(values):
    return pa.StructArray.from_arrays([values], ["x"])


UUIDS = extension(pa.uuid(), BYTES)
OTHERS = {
    "period": (periods("M"), periods("D")),
    "interval": (intervals("right"), intervals("left")),
    "tensor": (tensors([2, 3]), tensors([3, 2])),
    "tensor with names": (tensors([2, 3]), tensors([2, 3], dim_names=["a", "b"])),
    "opaque type": (opaque("a"), opaque("b")),
    "opaque vendor": (opaque("a"), opaque("a", "other")),
    "another type": (UUIDS, opaque("a")),
    "a type into plain storage": (BYTES, UUIDS),
    "in a struct": (struct_of(UUIDS), struct_of(opaque("a"))),
    "in a list": tuple(pa.ListArray.from_arrays([0, 1, 2], values) for values in (UUIDS, opaque("a"))),
}


def table(values):
    return pa.table({"k": [1, 2], "p": values})


def merge(library, uri, rows):
    merging = library.dataset(uri).merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
    merging.execute(rows)


def update_columns(library, uri, rows):
    library.dataset(uri).get_fragments()[0].update_columns(rows, left_on="k")


VERBS = {
    "append": lambda library, uri, rows: library.write_dataset(rows, uri, mode="append"),
    "insert": lambda library, uri, rows: library.dataset(uri).insert(rows),
    "fragments": lambda library, uri, rows: library.fragment.write_fragments(rows, uri),
    "merge": merge,
    "update_columns": update_columns,
}


@pytest.mark.variants(10)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", OTHERS)
def test_another_type_is_rejected_as_by_pylance(tmp_path, case, verb):
    first, second = map(table, OTHERS[case])
    for library, error in ((lance, (OSError, ValueError)), (lance_core, SchemaError)):
        uri = str(tmp_path / library.__name__)
        library.write_dataset(first, uri)
        with pytest.raises(error, match="extension"):
            VERBS[verb](library, uri, second)
        VERBS[verb](library, uri, first)  # the same type is taken
    assert len(list((tmp_path / "lance_core" / "data").iterdir())) <= 2


@pytest.mark.parametrize("case", OTHERS)
def test_columns_are_not_written_with_another_type(tmp_path, case):
    first, second = map(table, OTHERS[case])
    dataset = lance_core.write_dataset(first, tmp_path / "t")
    with pytest.raises(SchemaError, match="convert the values"):
        dataset.write_columns(second, on="k")
    with pytest.raises(LanceError, match=r"convert the values|a key of type (struct|list)"):
        dataset.write_columns(second, on="p")
    with pytest.raises(SchemaError, match="cast"):
        dataset.alter_columns({"path": "p", "data_type": OTHERS[case][1].type})
    assert dataset.version == dataset.latest_version == 1


@pytest.mark.variants(4)
@pytest.mark.parametrize("case", [case for case in OTHERS if case != "a type into plain storage"])
def test_batches_and_computed_columns_are_of_the_types_that_were_announced(tmp_path, case):
    first, second = map(table, OTHERS[case])
    schema, (batch,) = first.schema, second.to_batches()
    for library, error in ((lance, OSError), (lance_core, SchemaError)):
        with pytest.raises(error, match="extension"):
            library.write_dataset(iter([batch]), str(tmp_path / library.__name__), schema=schema)
    dataset = lance_core.write_dataset({"k": [1, 2]}, tmp_path / "t", enable_stable_row_ids=True)

    def compute(rows: pa.RecordBatch):
        return batch.select(["p"])

    columns = pa.schema([schema.field("p")])
    with pytest.raises(SchemaError, match="extension"):
        dataset.compute_columns(compute, inputs="k", columns=columns, name="p", code_version="1")


def test_parameters_that_are_written_in_another_way_are_the_same(tmp_path):
    """Writers in other languages put spaces into JSON: what is read from such a table can be appended to it."""
    spaced = {"ARROW:extension:name": "arrow.fixed_shape_tensor", "ARROW:extension:metadata": '{ "shape": [2, 3] }'}
    field = pa.field("p", pa.list_(pa.int64(), 6), metadata=spaced)
    rows = pa.table([[1, 2], tensors([2, 3]).storage], schema=pa.schema([pa.field("k", pa.int64()), field]))
    dataset = lance_core.write_dataset(rows, tmp_path / "t")
    dataset.insert(dataset.to_table())
    assert dataset.to_table()["p"].type == tensors([2, 3]).type
    assert dataset.count_rows() == 4


def test_storage_without_a_type_is_taken(tmp_path):
    """Rows of Spark and of most databases have no extension types."""
    dataset = lance_core.write_dataset(table(UUIDS), tmp_path / "t")
    dataset.insert(table(BYTES))
    assert dataset.to_table() == pa.concat_tables([table(UUIDS)] * 2)
