"""Ranges that an S3 server copies into new objects: what passes through this process, and servers that copy none."""

import random
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from lance_core.errors import ObjectNotFoundError, StoreError, UnsupportedError
from lance_core.store import open_store
from lance_core.store import s3_client as s3_client_module
from lance_core.store.s3_client import S3Client, s3_client
from tests.s3_endpoint import SECRET

MB = 1 << 20
DATA = random.Random(3).randbytes(17 * MB)


@pytest.fixture
def root(s3):
    return f"s3://{s3.new_bucket()}/deep/dataset"


@pytest.fixture
def requests(monkeypatch):
    """Requests and the bytes of their bodies, both ways; `requests.answer(method, function)` puts in an answer."""
    made, answers = [], {}
    request_once = S3Client._once

    async def counted(self, method, parameters):
        entry = [method, len(parameters.get("Body", b"")), parameters]
        made.append(entry)
        answer = answers.get(method)
        given = await request_once(self, method, parameters) if answer is None else answer(parameters)
        if method == "get_object":
            entry[1] = len(given["Body"])
        return given

    monkeypatch.setattr(S3Client, "_once", counted)
    monkeypatch.setattr(s3_client_module, "_FIRST_PAUSE_S", 0.0)
    return SimpleNamespace(
        made=made, answer=answers.__setitem__, num_bytes=lambda: sum(size for _, size, _ in made), answers=answers
    )


@pytest.fixture
def store(s3, root, requests):
    store = open_store(root, s3.storage_options)
    store.put("source", DATA)
    s3_client(store.options).copies_parts = None
    requests.made.clear()
    yield store
    s3_client(store.options).copies_parts = None


def rejected(status, code):
    def answer(parameters):
        response = {"Error": {"Code": code, "Message": "injected"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(response, "UploadPartCopy")

    return answer


def copy(target, key, *pieces, source=None):
    """Write an object of bytes, and of ranges of the source."""
    with target.open_writer(key) as writer:
        for piece in pieces:
            if isinstance(piece, tuple):
                writer.copy_range(source or target, "source", *piece)
            elif isinstance(piece, bytes):
                writer.write(piece)
            else:
                raise piece


def uploads(store):
    client = s3_client(store.options)
    bucket = store.root.split("/")[2]

    async def request():
        return await client.request("list_multipart_uploads", Bucket=bucket)

    return client.run(request).get("Uploads", [])


def methods(requests):
    return [method for method, _, _ in requests.made]


@pytest.mark.variants(3)
@pytest.mark.on_ceph
@pytest.mark.parametrize(
    ("pieces", "most_bytes"),
    [
        ([(0, 17 * MB)], 0),
        ([(0, 17 * MB), b"tail"], 4),
        ([(1, 5 * MB + 1), (6 * MB, 17 * MB), b"tail"], 4),
        ([b"head", (0, 17 * MB)], 10 * MB),
        ([(0, 3 * MB), (4 * MB, 17 * MB)], 12 * MB),
        ([b"head", (7, 9 * MB), (0, 6 * MB)], 30 * MB),
        ([(0, 3 * MB), b"middle", (9, 4 * MB)], 14 * MB + 6),
        ([bytes(9 * MB), (0, 17 * MB), bytes(6 * MB), (0, 6 * MB), b"tail"], 24 * MB + 4),
    ],
)
def test_ranges_and_bytes_in_any_order(store, requests, pieces, most_bytes):
    copy(store, "target", *pieces)
    through = requests.num_bytes()
    expected = b"".join(DATA[slice(*piece)] if isinstance(piece, tuple) else piece for piece in pieces)
    assert store.head("target").size == len(expected)
    assert bytes(store.get("target")) == expected
    assert through <= most_bytes


def test_the_source_must_be_what_it_was(store, requests):
    copy(store, "target", (0, 6 * MB))
    e_tag = store.head("source").e_tag
    asked = [parameters["CopySourceIfMatch"] for method, _, parameters in requests.made if method == "upload_part_copy"]
    assert asked == [e_tag]
    requests.answer("upload_part_copy", rejected(412, "PreconditionFailed"))
    with pytest.raises(StoreError, match="source: was written again while it was copied"):
        copy(store, "other", (0, 6 * MB))
    with pytest.raises(ObjectNotFoundError):
        store.head("other")


@pytest.mark.parametrize(
    ("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (400, "InvalidRequest")]
)
def test_a_server_that_copies_no_parts_is_asked_once(store, requests, status, code):
    requests.answer("upload_part_copy", rejected(status, code))
    for key in ("one", "two"):
        copy(store, key, (0, 17 * MB))
        assert bytes(store.get(key)) == DATA
    asked = [parameters for method, _, parameters in requests.made if method == "upload_part_copy"]
    assert len(asked) == 1
    assert s3_client(store.options).copies_parts is False


def test_a_server_that_takes_a_copy_for_an_upload(store, requests):
    requests.answer("upload_part_copy", lambda _: {"ETag": "of nothing"})
    copy(store, "target", (0, 17 * MB))
    assert bytes(store.get("target")) == DATA
    assert methods(requests).count("upload_part_copy") == 1


def test_a_server_that_joins_no_copied_parts_is_remembered(store, s3, requests):
    requests.answer("complete_multipart_upload", rejected(400, "InvalidPart"))
    with pytest.raises(UnsupportedError, match="does not offer complete_multipart_upload") as caught:
        copy(store, "target", (0, 17 * MB))
    assert SECRET not in str(caught.value)
    assert uploads(store) == []
    requests.answers.clear()
    requests.made.clear()
    copy(store, "target", (0, 17 * MB))
    assert "upload_part_copy" not in methods(requests)
    assert bytes(store.get("target")) == DATA


def test_a_server_that_copies_other_bytes_is_found_out(store, s3, requests, monkeypatch):
    real = S3Client._once

    async def whole(self, method, parameters):
        kept = {name: value for name, value in parameters.items() if name != "CopySourceRange"}
        return await real(self, method, kept)

    monkeypatch.setattr(S3Client, "_once", whole)
    with pytest.raises(UnsupportedError, match="has 17825792 bytes instead of 6291456"):
        copy(store, "target", (0, 6 * MB))
    assert [found.key for found in store.list("")] == ["source"]
    store.delete("source")
    assert uploads(store) == []


def test_a_copy_that_is_proven_takes_one_request_per_part(store, requests):
    copy(store, "proof", (0, 17 * MB))
    begun, copied, completed = "create_multipart_upload", "upload_part_copy", "complete_multipart_upload"
    assert methods(requests) == [begun, "head_object", copied, completed, "head_object"]
    requests.made.clear()
    copy(store, "target", (0, 17 * MB), (5, 17 * MB), b"tail")
    assert sorted(methods(requests)) == sorted([begun, "head_object", copied, copied, "upload_part", completed])


@pytest.mark.parametrize("failing", ["head_object", "create_multipart_upload", "upload_part_copy", "upload_part"])
def test_a_copy_that_fails_leaves_nothing(store, s3, requests, failing):
    copy(store, "proof", (0, 6 * MB))
    store.delete("proof")
    requests.answer(failing, rejected(403, "AccessDenied"))
    with pytest.raises(StoreError, match="access is denied") as caught:
        copy(store, "target", (0, 6 * MB), b"tail")
    assert SECRET not in str(caught.value)
    requests.answers.clear()
    assert [found.key for found in store.list("")] == ["source"]
    assert uploads(store) == []


@pytest.mark.on_ceph
def test_an_interruption_leaves_no_upload(store, s3):
    with pytest.raises(KeyboardInterrupt):
        copy(store, "target", (0, 17 * MB), KeyboardInterrupt())
    assert uploads(store) == []
    assert [found.key for found in store.list("")] == ["source"]


def test_objects_of_other_buckets_and_users_are_read(store, s3, requests):
    other = open_store(f"s3://{s3.new_bucket()}/t", s3.storage_options)
    copy(other, "target", (0, 6 * MB), source=store)
    assert bytes(other.get("target")) == DATA[: 6 * MB]
    same = open_store(store.root, s3.storage_options | {"client_max_retries": "2"})
    copy(same, "target", (0, 6 * MB), source=store)
    assert "upload_part_copy" not in methods(requests)


def test_a_shorter_source_is_an_error(store):
    for end in (17 * MB + 1, 40 * MB):
        with pytest.raises(StoreError, match=f"bytes up to {end} wanted, the object has {17 * MB}"):
            copy(store, "target", (0, end))
    with pytest.raises(ObjectNotFoundError, match="missing"), store.open_writer("target") as writer:
        writer.copy_range(store, "missing", 0, 6 * MB)
