"""Compactions on S3: the server joins the pages, and the process moves what is left."""

import random
from types import SimpleNamespace

import lance
import numpy as np
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_core
from lance_core.errors import StoreError
from lance_core.maintenance import compact
from lance_core.store import open_store
from lance_core.store import s3_client as s3_client_module
from lance_core.store.s3_client import S3Client, s3_client
from tests.s3_endpoint import SECRET
from tests.support.data_files import pages_of

MB = 1 << 20


@pytest.fixture
def table_uri(s3):
    table_uri = f"s3://{s3.new_bucket()}/t"
    s3_client(open_store(table_uri, s3.storage_options).options).copies_parts = None
    yield table_uri
    s3_client(open_store(table_uri, s3.storage_options).options).copies_parts = None


def rows(first, count, width=256):
    """Rows with a column of large pages, one of middle-sized ones, and a small one."""
    rng = np.random.default_rng(first)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * width, dtype=np.float32)), width)
    ids = pa.array(range(first, first + count))
    return pa.table({"id": ids, "label": pa.array(rng.integers(0, 9, count)).cast(pa.int8()), "vector": vectors})


def fill(table_uri, s3, counts, library=lance_core):
    first = 0
    for count in counts:
        library.write_dataset(rows(first, count), table_uri, mode="append", storage_options=s3.storage_options)
        first += count
    return lance_core.dataset(table_uri, storage_options=s3.storage_options)


def read(table_uri, s3):
    """The rows, as both libraries read them."""
    ours, theirs = (
        library.dataset(table_uri, storage_options=s3.storage_options).to_table() for library in (lance_core, lance)
    )
    assert ours.equals(theirs)
    return theirs


@pytest.fixture
def moved(monkeypatch):
    """The bodies of requests, both ways, and the requests that fail, by their method."""
    found = SimpleNamespace(num_bytes=0, methods=[], failing={})
    request_once = S3Client._once

    async def counted(self, method, parameters):
        found.methods.append(method)
        if method in found.failing:
            raise found.failing[method]
        given = await request_once(self, method, parameters)
        found.num_bytes += len(given["Body"] if method == "get_object" else parameters.get("Body", b""))
        return given

    monkeypatch.setattr(S3Client, "_once", counted)
    monkeypatch.setattr(s3_client_module, "_FIRST_PAUSE_S", 0.0)
    return found


def http_error(status, code):
    response = {"Error": {"Code": code, "Message": "injected"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Injected")


def uploads(table_uri, s3):
    client = s3_client(open_store(table_uri, s3.storage_options).options)

    async def request():
        return await client.request("list_multipart_uploads", Bucket=table_uri.split("/")[2])

    return client.run(request).get("Uploads", [])


def data_files(table_uri, s3):
    return {found.key for found in open_store(table_uri, s3.storage_options).list("data/")}


@pytest.mark.on_ceph
@pytest.mark.parametrize("library", [lance, lance_core], ids=lambda library: library.__name__)
def test_pages_do_not_pass_through_the_process(table_uri, s3, moved, library):
    dataset = fill(table_uri, s3, [9_000] * 4, library)
    expected = read(table_uri, s3)
    size = sum(file.file_size_bytes for fragment in dataset.get_fragments() for file in fragment.metadata.files)
    assert size > 4 * 8.5 * MB
    moved.num_bytes = 0
    compact(dataset)
    assert moved.num_bytes < 0.02 * size
    assert moved.methods.count("upload_part_copy") == 4
    assert len(dataset.get_fragments()) == 1
    assert read(table_uri, s3).equals(expected)
    lance.dataset(table_uri, storage_options=s3.storage_options).validate()
    assert uploads(table_uri, s3) == []


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.sampled_from([50, 5_600, 7_000, 11_000]), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    deleted=st.booleans(),
)
def test_the_server_makes_the_file_that_the_process_would_make(s3, counts, seed, deleted):
    files, tables = [], []
    for copies in (None, False):
        table_uri = f"s3://{s3.new_bucket()}/t"
        dataset = fill(table_uri, s3, counts, random.Random(seed).choice([lance, lance_core]))
        if deleted:
            dataset.delete(f"id = {seed % sum(counts)}")
        client = s3_client(dataset.snapshot.store.options)
        client.copies_parts = copies
        compact(dataset)
        client.copies_parts = None
        paths = [file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files]
        files.append([bytes(dataset.snapshot.store.get(f"data/{path}")) for path in paths])
        tables.append(read(table_uri, s3))
    assert files[0] == files[1]
    assert tables[0].equals(tables[1])
    assert tables[0].num_rows == sum(counts) - deleted


def test_the_pages_are_those_of_the_sources(table_uri, s3):
    dataset = fill(table_uri, s3, [9_000] * 2)
    before = pages_of(table_uri, s3.storage_options)[0]
    compact(dataset, {"compaction_mode": "force_binary_copy"})
    after, priorities = pages_of(table_uri, s3.storage_options)
    assert after == before
    assert priorities[0] == [0, 9_000]


@pytest.mark.parametrize(
    ("method", "status", "code"),
    [("upload_part_copy", 501, "NotImplemented"), ("complete_multipart_upload", 400, "InvalidPart")],
)
def test_a_server_that_does_not_copy_parts_gets_a_file_all_the_same(table_uri, s3, moved, method, status, code):
    dataset = fill(table_uri, s3, [9_000] * 2)
    expected = read(table_uri, s3)
    moved.failing[method] = http_error(status, code)
    if method == "upload_part_copy":
        compact(dataset)
        assert moved.methods.count(method) == 1
    else:
        real = S3Client.request

        async def once(self, name, **parameters):
            if name == "abort_multipart_upload":
                moved.failing.clear()
            return await real(self, name, **parameters)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(S3Client, "request", once)
            compact(dataset)
    assert s3_client(dataset.snapshot.store.options).copies_parts is False
    assert len(dataset.get_fragments()) == 1
    assert read(table_uri, s3).equals(expected)
    assert uploads(table_uri, s3) == []
    assert len(data_files(table_uri, s3)) == 3


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "method", ["create_multipart_upload", "upload_part_copy", "upload_part", "complete_multipart_upload", "head_object"]
)
def test_a_compaction_that_fails_leaves_the_table_as_it_was(table_uri, s3, moved, method):
    dataset = fill(table_uri, s3, [9_000] * 2)
    expected, version, files = read(table_uri, s3), dataset.version, data_files(table_uri, s3)
    moved.failing[method] = http_error(403, "AccessDenied")
    with pytest.raises(StoreError) as caught:
        compact(dataset)
    assert SECRET not in str(caught.value)
    moved.failing.clear()
    assert lance_core.dataset(table_uri, storage_options=s3.storage_options).version == version
    assert read(table_uri, s3).equals(expected)
    assert data_files(table_uri, s3) == files
    assert uploads(table_uri, s3) == []
    compact(dataset)
    assert read(table_uri, s3).equals(expected)


@pytest.mark.on_ceph
def test_a_deep_clone_moves_no_data(table_uri, s3, moved):
    dataset = fill(table_uri, s3, [9_000] * 2)
    expected = read(table_uri, s3)
    moved.num_bytes = 0
    moved.methods.clear()
    clone = dataset.deep_clone(table_uri + "-clone", dataset.version, storage_options=s3.storage_options)
    assert moved.methods.count("copy_object") == 2
    assert moved.num_bytes < 100_000
    assert read(clone.uri, s3).equals(expected)
