"""Cleanup beside readers of changes that have not consumed all versions."""

from datetime import timedelta

import pytest

import lance_core


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request, tmp_path):
    table = lance_core.write_dataset({"id": [1]}, tmp_path / "t.lance", enable_stable_row_ids=request.param)
    for number in (2, 3, 4, 5):
        table.insert({"id": [number]})
    return table


def clean(table, **options):
    options = {"retain_versions": 1, "delete_unverified": True, "error_if_tagged_old_versions": False} | options
    table.cleanup_old_versions(**options)
    return [one["version"] for one in table.version_refs()]


def test_what_a_reader_needs_stays(table):
    table.checkout_version(2).readers.hold("report")
    warnings = table.explain_cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False).warnings
    assert ("readers of changes (report) have consumed" in "\n".join(warnings)) is not table.has_stable_row_ids
    assert clean(table) == ([2, 5] if table.has_stable_row_ids else [2, 3, 4, 5])
    assert table.delta(2).get_inserted_rows().read_all()["id"].to_pylist() == [3, 4, 5]
    table.readers.hold("report")
    assert len(table.readers.release("report")) == 1
    assert clean(table) == [5]


def test_of_several_readers_the_last_one_counts(table):
    table.checkout_version(4).readers.hold("early")
    table.checkout_version(3).readers.hold("late")
    assert clean(table) == [3, 4, 5]
    assert [one["reader"] for one in table.readers.list().values()] == ["early", "late"]


def test_a_release_leaves_what_is_needed_and_what_others_hold(table):
    for version in (1, 2, 4):
        table.checkout_version(version).readers.hold("report")
    table.checkout_version(1).readers.hold("another")
    table.checkout_version(3).readers.hold("report")
    released = table.checkout_version(3).readers.release("report", needed=[1])
    assert [name.rpartition(".")[2] for name in released] == ["2"]
    assert sorted((one["reader"], one["version"]) for one in table.readers.list().values()) == [
        ("another", 1),
        ("report", 1),
        ("report", 3),
        ("report", 4),
    ]
    assert table.readers.release_older_than(timedelta(days=1)) == []
    assert len(table.readers.release_older_than(timedelta(days=-1))) == 4


def test_tags_of_users_hold_their_version_alone(table):
    table.tags.create("changes.mine", 2)
    assert clean(table) == [2, 5]
    assert table.readers.list() == {}


def test_names_of_any_letters(table):
    for reader in ("raw/photos", "éé..ø", "a" * 80):
        table.readers.hold(reader)
    assert sorted(one["reader"] for one in table.readers.list().values()) == sorted(["raw/photos", "éé..ø", "a" * 80])


def test_a_branch_goes_with_the_versions_that_readers_hold_there(table):
    branch = table.create_branch("draft")
    branch.insert({"id": [6]})
    branch.readers.hold("report")
    branch.insert({"id": [7]})
    assert clean(branch)[0] == 6
    assert clean(table) == [5]  # the branch's
    assert table.branches.sweep(timedelta(days=-1), dry_run=True).stale == ("draft",)
    table.branches.delete("draft")
    assert table.tags.list() == {}


def test_readers_with_long_names_hold_versions(tmp_path):
    table = lance_core.write_dataset({"id": [1]}, tmp_path / "t.lance")
    names = ["x" * 300, "x" * 299, "/" + "é" * 300]
    for name in names:
        table.readers.hold(name)
        table.readers.hold(name)
    assert sorted(one["reader"] for one in table.readers.list().values()) == sorted(names)
    table.insert({"id": [2]})
    assert [len(table.readers.release(name)) for name in names] == [1, 1, 1]


def test_holds_whose_tags_have_longer_names_stay_known(tmp_path):
    table = lance_core.write_dataset({"id": [1]}, tmp_path / "t.lance")
    tag = f"changes.{'y' * 200}-abcdef01.1"
    table.tags.create(tag, 1)
    table.tags.replace_metadata(tag, {"lance.reader": "y" * 200})
    assert [(one["reader"], one["version"]) for one in table.readers.list().values()] == [("y" * 200, 1)]
    table.insert({"id": [2]})
    table.readers.hold("y" * 200)
    assert table.readers.release("y" * 200) == [tag]
