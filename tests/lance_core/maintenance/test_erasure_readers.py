"""Erasures beside readers of changes: their versions go, and no tag of theirs is moved."""

import pytest

import lance_core


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(request, tmp_path):
    """Version 1 has the rows 1 and 2, version 2 row 4 as well, version 3 row 5."""
    table = lance_core.write_dataset({"id": [1, 2]}, tmp_path / "t.lance", enable_stable_row_ids=request.param)
    table.insert({"id": [4]})
    table.insert({"id": [5]})
    return table


def held(table):
    return sorted((one["reader"], one["branch"], one["version"]) for one in table.readers.list().values())


@pytest.mark.parametrize("retag", [False, True])
def test_a_version_that_a_reader_holds_is_removed_with_its_tag(table, retag):
    table.checkout_version(1).readers.hold("early")
    table.checkout_version(2).readers.hold("report")
    planned = table.erase_rows("id = 4", dry_run=True, delete_unverified=True, retag=retag)
    assert (planned.obstacles, planned.readers_released) == ((), ("report",))
    assert held(table) == [("early", None, 1), ("report", None, 2)]
    report = table.erase_rows("id = 4", delete_unverified=True, retag=retag)
    assert report.proven, report
    assert (report.obstacles, report.tags_moved, report.readers_released) == ((), {}, ("report",))
    assert 2 in report.versions_removed["main"]
    assert held(table) == [("early", None, 1)]


def test_a_reader_of_the_latest_version_is_released_too(table):
    table.readers.hold("report")
    planned = table.erase_rows("id = 4", dry_run=True)
    assert planned.readers_released == ("report",)
    report = table.erase_rows("id = 4", delete_unverified=True)
    assert report.proven, report
    assert report.readers_released == ("report",)
    assert held(table) == []


def test_versions_of_branches_are_released_as_well(table):
    branch = table.create_branch("work", 1)
    branch.insert({"id": [4]})
    branch.readers.hold("report")
    branch.insert({"id": [6]})
    table.checkout_version(1).readers.hold("early")
    report = table.erase_rows("id = 4", delete_unverified=True)
    assert report.proven, report
    assert report.readers_released == ("report",)
    assert held(table) == [("early", None, 1)]


def test_tags_of_users_beside_one_of_a_reader_stay_obstacles(table):
    table.checkout_version(2).readers.hold("report")
    table.tags.create("changes.mine", 2)
    report = table.erase_rows("id = 4", delete_unverified=True)
    assert [(one.kind, one.path) for one in report.obstacles] == [("tag", "changes.mine")]
    assert held(table) == [("report", None, 2)]
    report = table.erase_rows("id = 4", delete_unverified=True, retag=True)
    assert report.proven, report
    assert report.tags_moved == {"changes.mine": table.version}
    assert report.readers_released == ("report",)
    assert held(table) == []


def test_an_erasure_that_finds_nothing_releases_no_reader(table):
    table.checkout_version(2).readers.hold("report")
    report = table.erase_rows("id = 9", delete_unverified=True, retag=True)
    assert (report.proven, report.readers_released) == (True, ())
    assert held(table) == [("report", None, 2)]
