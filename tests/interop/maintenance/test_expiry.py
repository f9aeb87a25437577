"""Rows expire by their age: what is deleted is what pylance deletes by the same condition, and nothing else changes."""

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core import maintenance
from lance_core.cli.app import cli
from lance_core.errors import InvalidInputError, MaintenanceFailedError, SchemaError
from lance_core.maintenance import MaintenancePolicy

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
AGES = [2000, 900, 500, 401, 399, 30, 0, None]
KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")),
    pa.date32(),
    pa.date64(),
]
POLICY = MaintenancePolicy(expire_rows_older_than="400d", expire_by="at", cleanup_older_than=None)


def times(ages, kind=KINDS[0]):
    """Times of these ages in days, half a day older, as a column."""
    moments = [None if age is None else NOW - dt.timedelta(days=age, hours=12) for age in ages]
    if pa.types.is_date(kind):
        return pa.array([moment and moment.date() for moment in moments], kind)
    return (
        pa.array([moment and moment.replace(tzinfo=None) for moment in moments], pa.timestamp("s"))
        .cast(pa.timestamp(kind.unit))
        .view(kind)
    )


def table_of(ages, kind=KINDS[0], first=0):
    return pa.table({"id": range(first, first + len(ages)), "at": times(ages, kind)})


def by_day(uri, **options):
    """A table with a fragment per day, the oldest first."""
    for first, age in enumerate((600, 500, 450, 300, 20, 1)):
        lance.write_dataset(table_of([age] * 4, first=4 * first), uri, mode="append", **options)
    return lance_core.dataset(uri)


def ids(uri, **options):
    ours = lance_core.dataset(uri, **options).to_table(columns=["id"])["id"].to_pylist()
    assert sorted(lance.dataset(uri, **options).to_table(columns=["id"])["id"].to_pylist()) == sorted(ours)
    return sorted(ours)


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t.lance")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("indexed", [False, True])
def test_types(uri, kind, indexed):
    lance.write_dataset(table_of(AGES, kind), uri)
    if indexed:
        lance_core.dataset(uri).create_scalar_index("at", "ZONEMAP")
    report = maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert (report.outcome, report.done["rows_expired"]) == ("done", 4)
    assert ids(uri) == [4, 5, 6, 7], "a null has no age"
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).outcome == "healthy"


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("merges", [False, True])
def test_one_commit(uri, stable, merges):
    table = by_day(uri, enable_stable_row_ids=stable)
    policy = (
        POLICY
        if merges
        else MaintenancePolicy(
            expire_rows_older_than="400d", expire_by="at", cleanup_older_than=None, target_rows_per_fragment=1
        )
    )
    before = lance.dataset(uri).to_table(columns=["id"], filter="id >= 12", with_row_id=True)
    report = maintenance.maintain(table, policy)
    assert (report.done["rows_expired"], report.steps[0].step) == (12, "expire")
    assert report.steps[0].version_after == report.steps[0].version_before + 1
    assert report.done["bytes_expired"] == sum(
        file.file_size_bytes
        for fragment in lance.dataset(uri, version=6).get_fragments()[:3]
        for file in fragment.data_files()
    )
    transaction = lance.dataset(uri).read_transaction(7)
    assert transaction.operation.deleted_fragment_ids == [0, 1, 2]
    assert "at" in transaction.operation.predicate
    assert ids(uri) == list(range(12, 24))
    assert len(lance.dataset(uri).get_fragments()) == (1 if merges else 3)
    if stable:
        assert lance.dataset(uri).to_table(columns=["id"], with_row_id=True) == before
    version = lance.dataset(uri).version
    assert maintenance.maintain(lance_core.dataset(uri), policy).outcome == "healthy"
    assert lance.dataset(uri).version == version
    lance.dataset(uri).validate()


@pytest.mark.parametrize("writer", [lance, lance_core])
def test_files_that_a_zone_map_knows_are_not_opened(uri, writer):
    table = by_day(uri)
    lance.write_dataset(table_of([700, 650, 601, 402], first=24), uri, mode="append")
    table.checkout_latest()
    writer.dataset(uri).create_scalar_index("at", "ZONEMAP")
    for fragment in lance.dataset(uri).get_fragments():
        for file in fragment.data_files():
            Path(uri, "data", file.path).unlink()
    policy = MaintenancePolicy(
        expire_rows_older_than="400d",
        expire_by="at",
        cleanup_older_than=None,
        target_rows_per_fragment=1,
        refresh_indices=False,
    )
    report = maintenance.maintain(lance_core.dataset(uri), policy)
    assert report.done["rows_expired"] == 16
    assert lance.dataset(uri).count_rows() == 12
    assert table.version == 7


@pytest.mark.parametrize("ages", [[500, None], [None, None], [500, 1], [1, 500], [1, 1]])
def test_a_zone_map_knows_what_stays(uri, ages):
    lance.write_dataset(table_of([500, 500]), uri)
    lance.write_dataset(table_of(ages, first=2), uri, mode="append")
    lance.dataset(uri).create_scalar_index("at", "ZONEMAP")
    maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert ids(uri) == [place + 2 for place, age in enumerate(ages) if age != 500]


def test_fragments_with_rows_of_several_ages(uri):
    """Files are rewritten after the deletion, in the same run, and the next run finds nothing to do."""
    for first in range(0, 40, 4):
        lance.write_dataset(table_of([500, 300, None, 20], first=first), uri, mode="append")
    report = maintenance.maintain(lance_core.dataset(uri), POLICY)
    assert (report.outcome, report.done["rows_expired"], report.done["fragments_removed"]) == ("done", 10, 10)
    assert ids(uri) == [n for n in range(40) if n % 4]
    assert [fragment.physical_rows for fragment in lance.dataset(uri).get_fragments()] == [30]
    files = [file for fragment in lance.dataset(uri, version=10).get_fragments() for file in fragment.data_files()]
    assert report.done["bytes_read"] == sum(file.file_size_bytes for file in files), "a rewrite was begun for nothing"
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).outcome == "healthy"


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_dry_run_counts_what_the_run_does(uri, indexed, mixed):
    table = by_day(uri)
    if mixed:
        lance.write_dataset(table_of([500] * 3 + [20] * 3, first=24), uri, mode="append")
    if indexed:
        lance_core.dataset(uri).create_scalar_index("at", "ZONEMAP")
    table.checkout_latest()
    dry = maintenance.maintain(table, POLICY, dry_run=True)
    version = table.version
    assert lance.dataset(uri).version == version
    assert dry.outcome == "done"
    done = maintenance.maintain(table, POLICY)
    names = {"rows_expired", "bytes_expired", "fragments_removed", "fragments_added", "bytes_read", "indices_refreshed"}
    assert {name: dry.done.get(name) for name in names} == {name: done.done.get(name) for name in names}
    assert dry.done["rows_expired"] == 12 + 3 * mixed
    assert (dry.after.fragments, dry.after.rows, dry.after.versions) == (
        done.after.fragments, done.after.rows, done.after.versions
    )  # fmt: skip


def test_tags_and_branches_keep_their_rows(uri):
    table = by_day(uri)
    table.tags.create("audit", 4)
    table.create_branch("dev")
    report = maintenance.maintain(
        table, MaintenancePolicy(expire_rows_older_than="400d", expire_by="at", retain_versions=1)
    )
    assert report.done["rows_expired"] == 12
    assert "tag audit" in report.expired_rows_in
    assert "branch dev" in report.expired_rows_in
    assert lance.dataset(uri, version="audit").count_rows() == 16
    assert lance.dataset(uri).checkout_version(("dev", None)).count_rows() == 24
    assert ids(uri) == list(range(12, 24))
    branch = lance_core.dataset(uri).checkout_version(("dev", None))
    assert "rows_expired" not in maintenance.maintain(branch, POLICY).done, "branches expire with main, by promotion"


@pytest.mark.parametrize("age", ["400y", "9000y"])
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_ages_before_all_times(uri, age, unit):
    lance.write_dataset(table_of(AGES, pa.timestamp(unit)), uri)
    policy = MaintenancePolicy(expire_rows_older_than=age, expire_by="at")
    assert maintenance.maintain(lance_core.dataset(uri), policy).outcome == "healthy"


def test_writers_go_on(uri, monkeypatch):
    """Rows that are written between the survey and the commit stay, or expire if they are old; no commit is lost."""
    table = by_day(uri)
    from lance_core.maintenance.routine import steps

    def expire_after_writers(dataset, report, context, expire=steps.expire):
        lance.write_dataset(table_of([700, 10], first=100), uri, mode="append")
        lance.dataset(uri).delete("id = 0 OR id = 13")
        lance.dataset(uri).update({"at": "NULL"}, where="id = 1")
        return expire(dataset, report, context)

    monkeypatch.setattr(steps, "expire", expire_after_writers)
    report = maintenance.maintain(table, POLICY)
    assert report.outcome == "done"
    assert ids(uri) == [1, 12, *range(14, 24), 101]


def test_one_field_without_the_other():
    with pytest.raises(InvalidInputError, match="expire_rows_older_than and expire_by go together: give expire_by"):
        MaintenancePolicy(expire_rows_older_than="400d")
    with pytest.raises(InvalidInputError, match="give expire_rows_older_than as well"):
        MaintenancePolicy(expire_by="at")
    with pytest.raises(InvalidInputError, match="expire_by must be a name or None, not ''"):
        MaintenancePolicy(expire_rows_older_than="400d", expire_by="")
    with pytest.raises(InvalidInputError, match="expire_rows_older_than must be a positive duration"):
        MaintenancePolicy(expire_rows_older_than=dt.timedelta(0), expire_by="at")
    assert MaintenancePolicy(expire_rows_older_than="never", expire_by="at").age_of_rows is None


@pytest.mark.parametrize(
    ("column", "problem"),
    [("nothing", "no column of the table"), ("id", "type int64, which has no order of time"), ("day", "type string")],
)
def test_columns_of_no_time(tmp_path, column, problem):
    uri = str(tmp_path / "lake" / "t.lance")
    rows = table_of(AGES).append_column("day", pa.array(["2020-01-01"] * len(AGES)))
    for _ in range(6):
        lance.write_dataset(rows, uri, mode="append")
    policy = MaintenancePolicy(expire_rows_older_than="1d", expire_by=column, retain_versions=1)
    with pytest.raises(SchemaError, match=rf"expire_by '{column}' is .*{problem}.*the table has 'at'"):
        maintenance.maintain(lance_core.dataset(uri), policy)
    with pytest.raises(MaintenanceFailedError, match=problem):
        maintenance.maintain_lake(str(tmp_path / "lake"), policy)
    assert lance.dataset(uri).version == 6, "nothing was written"


def test_lake_and_its_log(tmp_path):
    """The policy of a lake expires rows of its tables; the log, which has other columns, is maintained all the same."""
    by_day(str(tmp_path / "a.lance"))
    by_day(str(tmp_path / "b.lance"))
    policies = {"b": {"expire_rows_older_than": "never"}}
    for _ in range(2):
        reports = maintenance.maintain_lake(tmp_path, POLICY, policies=policies)
    assert [report.outcome for report in reports] == ["healthy", "healthy"]
    assert (len(ids(str(tmp_path / "a.lance"))), len(ids(str(tmp_path / "b.lance")))) == (12, 24)
    log = lance.dataset(str(tmp_path / "_maintenance" / "log.lance")).to_table()
    assert [row["table"] for row in log.to_pylist() if row["step"] == "expire"] == ["a"]


def test_the_manifest_of_a_namespace_does_not_expire(tmp_path):
    uri = str(tmp_path / "__manifest")
    lance.write_dataset({"object_id": ["a"]}, uri)
    assert maintenance.maintain(lance_core.dataset(uri), POLICY).outcome == "healthy"


def test_command(uri):
    by_day(uri).tags.create("audit", 4)
    arguments = ["maintain", uri, "--expire-rows-older-than", "400d", "--expire-by", "at", "--json"]
    dry = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert '"rows_expired": 12' in dry.output, dry.output
    assert '"expired_rows_in": "tag audit"' in dry.output
    result = CliRunner().invoke(cli, arguments)
    assert '"rows_expired": 12' in result.output, result.output
    assert ids(uri) == list(range(12, 24))
    rejected = CliRunner().invoke(cli, ["maintain", uri, "--expire-by", "at"])
    assert (rejected.exit_code, "go together" in rejected.output) == (1, True)
