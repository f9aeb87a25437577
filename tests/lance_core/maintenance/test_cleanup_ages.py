"""From when the age of a version counts: its commit, as in pylance, or the commit of the version that followed."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.errors import InvalidInputError, UnsupportedError

WEEK = timedelta(days=7)


@pytest.fixture
def monthly(tmp_path, monkeypatch):
    """A table whose good version is 40 days old, and its bad one of today; an older version was replaced long ago."""
    for days in (70, 40, 0):
        clock = SimpleNamespace(**vars(time))
        clock.time_ns = lambda days=days: time.time_ns() - days * 86_400 * 10**9
        monkeypatch.setattr("lance_core.commit.loop.time", clock)
        table = lance_core.write_dataset({"id": [days]}, tmp_path / "t.lance", mode="overwrite")
    monkeypatch.undo()
    return table


def versions(table):
    return [one["version"] for one in table.version_refs()]


def test_an_age_of_pylance_counts_from_the_commit(monthly):
    monthly.cleanup_old_versions(WEEK)
    assert versions(monthly) == [3]


def test_the_good_version_outlives_a_bad_write(monthly):
    assert monthly.explain_cleanup_old_versions(WEEK, age_from="replacement").stats.old_versions == 1
    monthly.cleanup_old_versions(WEEK, age_from="replacement")
    assert versions(monthly) == [2, 3]
    assert monthly.checkout_version(2).to_table().to_pylist() == [{"id": 40}]


def test_a_version_counts_from_the_next_that_exists(monthly):
    monthly.cleanup_old_versions(versions=[2])
    monthly.cleanup_old_versions(WEEK, age_from="replacement")
    assert versions(monthly) == [1, 3]


def test_the_command_counts_from_the_replacement(monthly):
    for arguments in (["--older-than", "7d"], []):
        done = CliRunner().invoke(cli, ["cleanup", monthly.uri, *arguments])
        assert done.exit_code == 0, done.output
        assert versions(monthly) == [2, 3]


def test_another_word(monthly):
    with pytest.raises(InvalidInputError, match="age_from must be one of 'commit', 'replacement', not 'read'"):
        monthly.cleanup_old_versions(WEEK, age_from="read")


@pytest.mark.parametrize("verb", ["cleanup_old_versions", "explain_cleanup_old_versions"])
def test_an_argument_that_is_not_offered_is_named(tmp_path, verb):
    table = lance_core.write_dataset(pa.table({"k": [1]}), tmp_path / "t")
    with pytest.raises(UnsupportedError, match="cleanup_old_versions: not offered: before_version"):
        getattr(table, verb)(before_version=3)
