import pickle
import traceback

import pytest

from lance_core.errors import InvalidInputError
from lance_core.store import StorageOptions, canonical_uri, open_store
from lance_core.store.coalesce import merge_ranges
from lance_core.store.options import parse_seconds


def test_no_value_shows():
    options = StorageOptions({"AWS_SECRET_ACCESS_KEY": "canary", "aws_region": "eu"})
    for text in (repr(options), str(options), f"{options}"):
        assert "canary" not in text
        assert "aws_secret_access_key" in text
    assert dict(options)["aws_secret_access_key"] == "canary"
    assert pickle.loads(pickle.dumps(options)) == options


def test_spellings_of_other_libraries_are_taken():
    s3fs_style = {
        "key": "k",
        "secret": "s",
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://h", "region_name": "r"},
    }
    assert StorageOptions(s3fs_style).for_s3() == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_skip_signature": "false",
        "aws_endpoint": "http://h",
        "aws_region": "r",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"key": "canary", "aws_access_key_id": "other"},
        {"aws_acces_key_id": "canary"},
        {"key": ["canary"]},
        {"a": "canary", "A": "x"},
    ],
)
def test_mistakes_name_the_key_and_never_the_value(options):
    with pytest.raises(InvalidInputError) as caught:
        StorageOptions(options).for_s3()
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("/a//b/../c/", "/a/c"),
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a/b", "/a/b"),
        ("s3:/bucket/a", "s3://bucket/a"),
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("S3A://bucket/a", "s3://bucket/a"),
        ("memory://x", "memory://x"),
        ("abfss://box@account.dfs.core.windows.net/t", "abfss://box@account.dfs.core.windows.net/t"),
    ],
)
def test_one_spelling(uri, canonical):
    assert canonical_uri(uri) == canonical


@pytest.mark.parametrize("uri", ["s3://key:canary@bucket/t", "s3://bucket/t?X-Amz-Signature=canary", "", "s3://"])
def test_uris_with_credentials_are_rejected(uri):
    with pytest.raises(InvalidInputError) as caught:
        open_store(uri)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5", 1.5), ("1.5s", 1.5), ("500ms", 0.5), ("500 millis", 0.5), ("2 minutes", 120), ("3 m", 180)],
)
def test_durations(text, seconds):
    assert parse_seconds("timeout", text) == seconds


@pytest.mark.parametrize("text", ["", "canary", "500 milliseconds", "30S", "9999999999999y"])
def test_other_strings_are_no_durations_and_are_not_shown(text):
    with pytest.raises(
        InvalidInputError, match="'timeout' is not a duration, such as 30, 30s, 500ms or 1h 30m"
    ) as raised:
        parse_seconds("timeout", text)
    assert "canary" not in "".join(traceback.format_exception(raised.value))


def test_ranges_are_merged_over_small_gaps_only():
    ranges = [(100, 110), (0, 10), (12, 20), (500, 505), (105, 130), (7, 7)]
    merged = merge_ranges(ranges, max_gap=5, max_size=1000)
    assert [(read.start, read.end) for read in merged] == [(0, 20), (100, 130), (500, 505)]
    assert [read.members for read in merged] == [(1, 2), (0, 4), (3,)]
    assert len(merge_ranges([(i * 10, i * 10 + 10) for i in range(10)], max_gap=5, max_size=50)) == 1  # touching
    assert len(merge_ranges([(i * 11, i * 11 + 10) for i in range(10)], max_gap=5, max_size=50)) == 3
