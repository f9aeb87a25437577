"""What a scan says that it will do is what it does."""

import re
import textwrap

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import lance_core
from lance_core.file.reader import DataFileReader
from lance_core.verbs.scan import fragment_scan
from lance_core.verbs.scan.options import ColumnOrdering
from tests.support.hypothesis_settings import examples

ROWS = pa.table({
    "id": range(1000),
    "s": [str(i % 7) for i in range(1000)],
    "st": pa.array([{"a": i, "b": {"c": i, "d": i}} for i in range(1000)]),
})  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Ten fragments of 100 rows; one is deleted, and two rows of another; a column in files of its own."""
    made = lance_core.write_dataset(ROWS, tmp_path_factory.mktemp("plan") / "t", max_rows_per_file=100)
    made.delete("id IN (1, 2) OR id >= 300 AND id < 400")
    made.add_columns({"n": "id + 1"})
    return made


def explained(dataset, *, verbose=False, **arguments):
    text = dataset.scanner(**arguments).explain_plan(verbose)
    return text.replace(f"uri={dataset.uri}, version={dataset.version}, ", "")


ALL = "fragments=9 of 9 (0-2, 4-9), rows=898, deleted rows=2"
IN = 'is_in(s, {value_set=string:[ "3", "4" ], null_matching_behavior=SKIP})'
PLANS = [
    ({}, f"LanceRead: projection=[id, s, st, n], {ALL}, files=18, file versions=[2.2]"),
    ({"columns": []}, f"LanceRead: projection=[], {ALL}, files=0"),
    (
        {"columns": ["id", "n"], "offset": 50, "limit": 120, "batch_size": 64},
        """
        Batches: rows=at most 64
          LanceRead: projection=[id, n], fragments=2 of 9 (0-1), rows=120, deleted rows=2, files=4, file versions=[2.2]
        """,
    ),
    (
        {"columns": ["s", "st.b.c"], "filter": "id > 5 AND s = '3'"},
        f"""
        Project: columns=[s, st.b.c]
          Take: columns=[st.b.c], of=rows that match
            Filter: conditions=[(id > 5), (s == "3")]
              LanceRead: projection=[id, s], {ALL}, files=9, file versions=[2.2]
        """,
    ),
    (
        {"columns": ["s"], "filter": "n > 5", "late_materialization": False, "with_row_id": True},
        f"""
        Filter: condition=(n > 5)
          LanceRead: projection=[s, n], row columns=[_rowid], {ALL}, files=18, file versions=[2.2]
        """,
    ),
    (
        {"columns": {"x": "id + 1"}, "filter": "array_sort(make_array(id)) IS NOT NULL", "limit": 3, "offset": 1},
        f"""
        Project: columns=[x = add(id, 1)]
          Limit: offset=1, limit=3, looks at=16384 rows of a fragment first, then at four times as many
            Filter: condition=invert(is_null(array_sort(make_array(id)), {{nan_is_null=false}})), in DataFusion=[array_sort, make_array]
              LanceRead: projection=[id], {ALL}, files=9, file versions=[2.2]
        """,
    ),
    (
        {"columns": [], "filter": pc.is_in(pc.field("s"), pa.array(["3", "4"]))},
        f"""
        Filter: condition=if_else(is_null(s, {{nan_is_null=false}}), null[bool], {IN})
          LanceRead: projection=[s], {ALL}, files=9, file versions=[2.2]
        """,
    ),
    (
        {"columns": ["s"], "order_by": [ColumnOrdering("st.a", ascending=False)], "filter": "id > 5", "limit": 3},
        f"""
        Take: columns=[s], of=rows in order
          Order: by=[st.a descending nulls last], rows=0 to 3
            Project: columns=[st.a]
              Take: columns=[st.a], of=rows that match
                Filter: condition=(id > 5)
                  LanceRead: projection=[id], row columns=[_rowaddr], {ALL}, files=9, file versions=[2.2]
        """,
    ),
    (
        {"columns": ["id"], "strict_batch_size": True, "order_by": ["id"]},
        f"""
        Batches: rows=8192 each but the last
          Take: columns=[id], of=rows in order
            Order: by=[id ascending nulls last], rows=0 to the last
              LanceRead: projection=[id], row columns=[_rowaddr], {ALL}, files=9, file versions=[2.2]
        """,
    ),
]


@pytest.mark.parametrize(("arguments", "plan"), PLANS, ids=[str(arguments) for arguments, _ in PLANS])
def test_plans(dataset, arguments, plan):
    assert explained(dataset, **arguments) == textwrap.dedent(plan).strip()


def test_small_files_that_are_decoded_together(tmp_path, monkeypatch):
    made = lance_core.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=100)
    assert explained(made).endswith("decoded together=10 fragments in 1 groups")
    assert explained(made, filter="id > 3").endswith("decoded together=10 fragments in 1 groups")
    assert "together" not in explained(made, limit=950)
    monkeypatch.setattr(fragment_scan, "_NEAR", ("nowhere",))
    assert explained(made).endswith("file versions=[2.2], in parallel=10 fragments, 8 at a time")
    assert "in parallel" not in explained(made, fragment_readahead=1) + explained(made, limit=950)


@pytest.fixture
def opened(monkeypatch):
    """Keys of the data files that are opened."""
    keys = []
    open_file = DataFileReader.open.__func__

    def recording(cls, store, key, **options):
        keys.append(key)
        return open_file(cls, store, key, **options)

    monkeypatch.setattr(DataFileReader, "open", classmethod(recording))
    return keys


@examples(60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    columns=st.none() | st.lists(st.sampled_from(["id", "s", "st.a", "st", "n", "_rowid"]), unique=True, max_size=3),
    limit=st.none() | st.integers(0, 950),
    offset=st.none() | st.integers(0, 950),
)
def test_a_scan_opens_the_files_and_gives_the_rows_that_it_reports(dataset, opened, columns, limit, offset):
    if columns and {"st", "st.a"} <= set(columns):
        columns.remove("st")
    scanner = dataset.scanner(columns=columns, limit=limit, offset=offset)
    plan = scanner.explain_plan(verbose=True)
    opened.clear()
    assert scanner.to_table().num_rows == int(re.search(r", rows=(\d+)", plan)[1])
    assert sorted(opened) == sorted(re.findall(r"(data/\S+\.lance)=", plan))


@pytest.mark.parametrize("filter_", ["id < 7", "n > 990 AND s = '3'", "id < 0"])
def test_a_filter_reads_its_own_columns_first(dataset, opened, filter_):
    scanner = dataset.scanner(filter=filter_, columns=["st"])
    listed = re.findall(r"(data/\S+\.lance)=", scanner.explain_plan(verbose=True))
    opened.clear()
    scanner.to_table()
    assert opened[0] == listed[0]
    assert set(listed) <= set(opened)


def measured(text):
    return {name: float(value) for name, value in re.findall(r"[:,] ([a-z ]+)=([\d.]+)", text.splitlines()[0])}


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in PLANS], ids=str)
def test_what_was_measured_stands_above_the_plan(dataset, opened, arguments):
    scanner = dataset.scanner(**arguments)
    opened.clear()
    table = scanner.to_table()
    num_files = len(set(opened))
    text = scanner.analyze_plan()
    below = textwrap.dedent(text.partition("\n")[2])
    assert re.sub(r", metrics=\[[^]]*\]", "", below) == scanner.explain_plan()
    metrics = dict(re.findall(r"(\w+)=(\d+)", re.search(r"metrics=\[(.*?)\]", below)[1]))
    assert (int(metrics["output_rows"]), int(metrics["bytes_read"])) == (table.num_rows, measured(text)["bytes read"])
    found = measured(text)
    assert found["rows"] == table.num_rows
    assert found["batches"] == len(list(scanner.to_batches()))
    # Deletions have a file of their own.
    assert found["objects"] == num_files + 1
    assert found["ranges"] >= found["reads"] >= found["objects"]
    assert found["bytes read"] > 0
    assert 0 < found["seconds"] < 60


def test_what_counting_reads(dataset):
    text = dataset.scanner().analyze_plan(count_rows=True)
    assert text.splitlines()[1] == "  Count: from=metadata"
    found = measured(text)
    assert (found["result"], found["reads"], found["bytes read"]) == (898, 0, 0)
    counted = measured(dataset.scanner(filter="id > 5").analyze_plan(count_rows=True))
    assert (counted["result"], counted["objects"]) == (894, 10)


def test_files_in_other_places_are_counted(tmp_path):
    base = tmp_path / "base"
    bases = [lance_core.DatasetBasePath(str(base), "other")]
    made = lance_core.write_dataset(ROWS.select(["id"]), tmp_path / "t", initial_bases=bases, target_bases=["other"])
    found = measured(made.scanner().analyze_plan())
    assert (found["rows"], found["objects"]) == (1000, 1)
    assert found["bytes read"] > 0


def test_object_storage_is_read_side_by_side_and_its_secrets_stay_out(s3):
    uri = f"s3://{s3.new_bucket()}/t"
    rows, options = ROWS.select(["id"]), s3.storage_options
    made = lance_core.write_dataset(rows, uri, max_rows_per_file=250, storage_options=options)
    text = made.scanner().analyze_plan()
    assert f"uri={uri}, " in text
    assert "in parallel=4 fragments, 8 at a time, metrics=[" in text
    assert (measured(text)["rows"], measured(text)["objects"]) == (1000, 4)
    assert not any(value in text for name, value in options.items() if "access_key" in name)


@pytest.mark.parametrize("use_scalar_index", [True, False])
def test_rows_in_order_are_found_by_indices_where_that_is_wanted(tmp_path, use_scalar_index):
    rows = pa.table({"id": [5, 3, 1, 2, 4, 0]})
    dataset = lance_core.write_dataset(rows, tmp_path / "t", max_rows_per_file=2)
    dataset.create_scalar_index("id", "BTREE")
    scanner = lance_core.dataset(tmp_path / "t").scanner(
        filter="id > 1", order_by=["id"], use_scalar_index=use_scalar_index
    )
    assert ("ScalarIndexQuery" in scanner.explain_plan()) == use_scalar_index
    assert scanner.to_table()["id"].to_pylist() == [2, 3, 4, 5]
