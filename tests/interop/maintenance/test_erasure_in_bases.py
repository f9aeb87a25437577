"""Erasures of tables with base paths: proven where nothing that the table may have left there can hold the rows."""

import datetime as dt
import sys

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, maintain
from tests import processes
from tests.interop.maintenance.test_erasure import s3_bucket
from tests.interop.maintenance.test_moves import KILLED_WITHIN_A_COPY

TODAY = dt.datetime.now(dt.UTC).date()
WHERE = "email = 'bob'"


def rows(email, age):
    return pa.table({"email": [email] * 3, "day": pa.array([TODAY - dt.timedelta(days=age)] * 3, pa.date32())})


def create(place, *, name="t.lance", moves=True, is_root=False, cold=None):
    """A table with rows of Bob and Eve in the base path "cold", and of Ann in its own folder."""
    uri = str(place / name)
    for email, age in (("bob", 120), ("eve", 100), ("ann", 0)):
        lance.write_dataset(rows(email, age), uri, mode="append")
    table = lance_core.dataset(uri)
    table.add_bases([lance_core.DatasetBasePath(cold or str(place / "cold"), name="cold", is_dataset_root=is_root)])
    if moves:
        assert move(table).done["files_moved"] == 2
    return lance_core.dataset(uri)


def move(table, target="cold"):
    return maintain(
        table,
        MaintenancePolicy(
            move_older_than="90d", move_by="day", move_to=target, target_rows_per_fragment=1, cleanup_older_than=None
        ),
    )


def files_with(place, mark=b"bob"):
    return [path.name for path in place.rglob("*") if path.is_file() and mark in path.read_bytes()]


def test_a_base_path_below_the_root(tmp_path):
    uri = tmp_path / "t.lance"
    table = create(tmp_path, cold=str(uri / "cold"))
    assert table.erase_rows(WHERE, delete_unverified=True).proven
    assert not files_with(tmp_path)
    assert len(list((uri / "cold").iterdir())) == 1
    (uri / "cold" / "notes").write_text("bob")
    assert [each.kind for each in table.erase_rows(WHERE).remaining] == ["base"]


@pytest.mark.parametrize("is_root", [False, True])
@pytest.mark.parametrize("where", ["never", "there", "back"])
def test_a_base_path_of_tiers(tmp_path, is_root, where):
    table = create(tmp_path, moves=where != "never", is_root=is_root)
    if where == "back":
        assert move(table, ".").done["files_moved"] == 2
    report = table.erase_rows(WHERE, delete_unverified=True)
    assert (report.proven, report.remaining) == (True, ())
    assert not files_with(tmp_path)
    assert sorted(lance.dataset(table.uri).to_table()["email"].to_pylist()) == ["ann"] * 3 + ["eve"] * 3
    assert len(list((tmp_path / "cold").rglob("*.lance"))) == (where == "there")
    assert table.erase_rows(WHERE).proven


def test_the_part_of_a_copy_of_a_killed_move(tmp_path):
    """It goes with the file that was copied, or once it is old; until then it is named, as a run may write it."""
    table, cold = create(tmp_path, moves=False), tmp_path / "cold"
    processes.run([sys.executable, "-c", KILLED_WITHIN_A_COPY, table.uri], check=False)
    assert len(files_with(cold)) == 1
    table.checkout_latest()
    assert table.erase_rows(WHERE).proven
    assert list(cold.iterdir()) == []
    assert move(table).done["files_moved"] == 1
    part = cold / f"{next(cold.iterdir()).name}#7"
    part.write_bytes(b"bob")
    (finding,) = table.erase_rows(WHERE).remaining
    assert (finding.kind, finding.path, part.name in finding.message) == ("base", str(cold), True)
    assert table.erase_rows(WHERE, delete_unverified=True).proven
    assert not part.exists()


@pytest.mark.parametrize("is_root", [False, True])
def test_files_that_no_call_removes(tmp_path, is_root):
    root, base = str(tmp_path / "t"), tmp_path / "second"
    base.mkdir()
    bases = [lance_core.DatasetBasePath(str(base), name="second", is_dataset_root=is_root)]
    table = lance_core.write_dataset(rows("bob", 0), root, initial_bases=bases, target_bases=["second"])
    table.insert(rows("eve", 0))
    (finding,) = table.erase_rows(WHERE, delete_unverified=True).remaining
    (path,) = base.rglob("*.lance")
    assert (finding.kind, finding.path) == ("base", str(base))
    assert path.name in finding.message
    assert "remove those that no other table has, then erase again" in finding.message
    path.unlink()
    report = table.erase_rows(WHERE)
    assert (report.proven, table.to_table()["email"].to_pylist()) == (True, ["eve"] * 3)


def test_a_base_path_that_tables_share(tmp_path):
    """Copies of moves of other tables are known as such; their other files are read, and count if they cannot be."""
    table, cold = create(tmp_path), tmp_path / "cold"
    create(tmp_path, name="other.lance")  # with rows of Bob, which are erased there
    bases = [lance_core.DatasetBasePath(str(cold), name="cold")]
    clicks = str(tmp_path / "clicks.lance")
    lance_core.write_dataset(rows("kim", 0), clicks, initial_bases=bases, target_bases=["cold"])
    lance_core.write_dataset(rows("bob", 0), cold / "below.lance")
    assert table.erase_rows(WHERE, delete_unverified=True).proven
    assert files_with(cold)
    lance_core.write_dataset({"n": [1]}, tmp_path / "numbers.lance", initial_bases=bases, target_bases=["cold"])
    (finding,) = table.erase_rows(WHERE, delete_unverified=True).remaining
    assert (finding.kind, "1 file" in finding.message) == ("base", True)
    other = lance_core.dataset(tmp_path / "other.lance").erase_rows(WHERE, delete_unverified=True)
    assert [each.kind for each in other.remaining] == ["base"]
    assert files_with(cold) == files_with(cold / "below.lance")


def test_a_link_and_a_foreign_file(tmp_path):
    table = create(tmp_path)
    (tmp_path / "cold" / "notes.txt").write_text("bob")
    (tmp_path / "cold" / "link").symlink_to(tmp_path)
    (finding,) = table.erase_rows(WHERE, delete_unverified=True).remaining
    assert (finding.kind, "2 files" in finding.message) == ("base", True)
    assert "link, notes.txt" in finding.message


@pytest.mark.slow
def test_on_s3(s3):
    bucket, client, options = s3_bucket(s3)
    uri, cold = f"s3://{s3.new_bucket()}/t.lance", f"s3://{bucket}/cold"
    for email, age in (("bob", 120), ("ann", 0)):
        lance.write_dataset(rows(email, age), uri, mode="append", storage_options=options)
    table = lance_core.dataset(uri, storage_options=options)
    table.add_bases([lance_core.DatasetBasePath(cold, name="cold")])
    assert move(table).done["files_moved"] == 1
    upload = client.create_multipart_upload(Bucket=bucket, Key="cold/part.lance")["UploadId"]
    (finding,) = table.erase_rows(WHERE, delete_unverified=True).remaining
    assert (finding.kind, finding.path, "part.lance" in finding.message) == ("base", cold, True)
    client.abort_multipart_upload(Bucket=bucket, Key="cold/part.lance", UploadId=upload)
    assert table.erase_rows(WHERE, dry_run=True).proven
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    client.put_object(Bucket=bucket, Key="cold/x", Body=b"bob")
    client.delete_object(Bucket=bucket, Key="cold/x")
    (finding,) = table.erase_rows(WHERE, dry_run=True).remaining
    assert (finding.kind, finding.path, "noncurrent versions" in finding.message) == ("base", cold, True)
