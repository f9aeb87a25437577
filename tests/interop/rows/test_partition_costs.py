"""Work on one partition opens the files of one partition, however many there are: counted, with a zone map on it."""

from datetime import date, timedelta

import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import index_partitions
from lance_core.store.local import LocalStore

FIRST = date(2015, 1, 1)
READS = ("get", "get_range", "get_tail", "get_ranges")
MOST_OPENED = 4


def days(first: int, count: int, rows: int = 3) -> pa.Table:
    """Some rows for each of some days."""
    which = [FIRST + timedelta(days=first + i // rows) for i in range(count * rows)]
    return pa.table({"day": pa.array(which, pa.date32()), "n": range(count * rows)})


def day(number: int) -> str:
    """A filter for one day."""
    return f"day = date '{FIRST + timedelta(days=number)}'"


def one_per_day(dataset: lance_core.LanceDataset, first: int, count: int) -> None:
    """Append days, each in a file of its own, in one version."""
    made = [one for i in range(count) for one in lance_core.write_fragments(days(first + i, 1), dataset)]
    lance_core.commit_fragments(dataset, made, dataset.schema)


@pytest.fixture
def opened(monkeypatch):
    """Counts the files that something reads, manifests left out."""
    keys: set[str] = set()
    for name in READS:
        real = getattr(LocalStore, name)

        def noting(self, key, *rest, real=real):
            keys.add(f"{self.root}/{key}")
            return real(self, key, *rest)

        monkeypatch.setattr(LocalStore, name, noting)

    def count(job):
        keys.clear()
        job()
        return {folder: sum(f"/{folder}/" in key for key in keys) for folder in ("data", "_indices")}

    return count


@pytest.fixture(params=[20, 120])
def uri(request, tmp_path):
    """`days` days, a file each, with the zone map that the IO manager makes."""
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(days(0, request.param), uri, max_rows_per_file=3)
    assert index_partitions(dataset, ["day"], max_unindexed_fragments=10) == ["day_idx"]
    return uri


def replace_day(uri: str, number: int) -> lance_core.WriteResult:
    """Replace a day by one row."""
    dataset, rows = lance_core.dataset(uri), days(number, 1, rows=1)
    one = lance_core.Slice(name="day", conditions={"day": lance_core.Equals(rows["day"][0].as_py())})
    made = lance_core.write_fragments(rows, dataset)
    return lance_core.commit_fragments(dataset, made, dataset.schema, mode="replace", slices=lance_core.Slices([one]))


def test_a_replacement_opens_what_is_uncovered_and_no_more(uri, opened):
    assert opened(lambda: replace_day(uri, 5)) == {"data": 0, "_indices": 1}
    one_per_day(lance_core.dataset(uri), 1000, 7)
    uncovered = 1 + 7
    counted = opened(lambda: replace_day(uri, 6))
    assert sum(counted.values()) <= MOST_OPENED + uncovered
    assert lance_core.dataset(uri).count_rows(day(6)) == 1


@pytest.mark.parametrize(
    ("verb", "most"),
    [
        (lambda dataset: dataset.to_table(filter=day(7)), 1),
        (lambda dataset: dataset.count_rows(day(7)), 0),
        (lambda dataset: dataset.scanner(filter=day(7), limit=1).to_table(), 1),
        (lambda dataset: dataset.take([0, 1]), 1),
        (lambda dataset: dataset.delete(day(7)), 0),
        (lambda dataset: dataset.delete(f"{day(7)} AND n % 2 = 0"), 1),
        (lambda dataset: dataset.update({"n": "n + 1"}, day(7)), 1),
        (lambda dataset: dataset.merge_insert("day").when_matched_update_all().execute(days(7, 1, rows=1)), 1),
    ],
    ids=["read", "count", "limit", "take", "delete", "delete some", "update", "merge_insert"],
)
def test_a_verb_opens_the_files_of_its_day(uri, opened, verb, most):
    counted = opened(lambda: verb(lance_core.dataset(uri)))
    assert counted["data"] <= most
    assert counted["_indices"] <= 1


def test_a_refresh_opens_only_new_files(uri, opened):
    one_per_day(lance_core.dataset(uri), 1000, 64)
    dataset = lance_core.dataset(uri)
    assert index_partitions(dataset, ["day"]) == []
    counted = opened(lambda: index_partitions(dataset, ["day"], max_unindexed_fragments=63))
    assert counted == {"data": 64, "_indices": 1}
    assert dataset.stats.index_stats("day_idx")["num_unindexed_fragments"] == 0
