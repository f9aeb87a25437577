import multiprocessing
import os
import pickle
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from lance_core.errors import InvalidInputError, StoreError
from lance_core.store import conditions, open_store
from lance_core.store import s3 as s3_module
from lance_core.store import s3_client as s3_client_module
from lance_core.store.s3_client import S3Client, s3_client
from lance_core.testing import StoreConformance


@pytest.fixture
def root(s3):
    return f"s3://{s3.new_bucket()}/deep/dataset"


class TestS3Store(StoreConformance):
    @pytest.fixture
    def store(self, s3, root):
        return open_store(root, s3.storage_options)


def test_one_verb_is_one_request(s3, root, monkeypatch):
    store = open_store(root, s3.storage_options)
    store.put_if_absent("probe", b"")  # proves the server
    made = []
    client = s3_client(store.options)
    request_once = type(client)._once
    monkeypatch.setattr(
        type(client), "_once", lambda self, method, p: (made.append(method), request_once(self, method, p))[1]
    )
    store.put_if_absent("a", b"0123456789")
    store.get("a")
    store.get_tail("a", 4)
    store.get_ranges("a", [(0, 2), (4, 6), (8, 10)])
    list(store.list("", limit=5))
    assert made == ["put_object", "get_object", "get_object", "get_object", "list_objects_v2"]


@pytest.fixture
def requests(monkeypatch):
    """The requests that are made, as method and parameters; `requests.answer(method, function)` puts in an answer."""
    made, answers = [], {}
    request_once = S3Client._once

    async def recorded(self, method, parameters):
        made.append((method, parameters))
        answer = answers.get(method)
        return await request_once(self, method, parameters) if answer is None else answer(parameters)

    monkeypatch.setattr(S3Client, "_once", recorded)
    made_requests = SimpleNamespace(made=made, answer=answers.__setitem__)
    monkeypatch.setattr(s3_client_module, "_FIRST_PAUSE_S", 0.0)
    return made_requests


def keys_of(parameters):
    return [found["Key"].rpartition("/")[2] for found in parameters["Delete"]["Objects"]]


def test_a_thousand_objects_are_removed_by_one_request(s3, root, requests):
    store = open_store(root, s3.storage_options)
    for key in ("a", "b", "c/d"):
        store.put(key, b"x")
    requests.made.clear()
    keys = ["a", *(f"missing{number}" for number in range(2_000)), "c/d"]
    assert store.delete_many(keys) == {}
    assert [(method, len(found["Delete"]["Objects"])) for method, found in requests.made] == [
        ("delete_objects", 1_000), ("delete_objects", 1_000), ("delete_objects", 2)
    ]  # fmt: skip
    assert [found.key for found in store.list("")] == ["b"]
    assert store.delete_many([]) == {}


def test_keys_that_could_not_be_removed_are_sent_again_or_reported(s3, root, requests):
    store = open_store(root, s3.storage_options)

    def answer(parameters):
        failing = {"slow": "SlowDown", "denied": "AccessDenied", "broken": "InternalError"}
        if len(requests.made) > 2:
            del failing["slow"]
        objects = parameters["Delete"]["Objects"]
        return {
            "Errors": [
                {"Key": found["Key"], "Code": failing[name], "Message": "no"}
                for found, name in zip(objects, keys_of(parameters), strict=True)
                if name in failing
            ]
        }

    requests.answer("delete_objects", answer)
    errors = store.delete_many(["a", "slow", "denied", "broken"])
    assert sorted(errors) == ["broken", "denied"]
    assert "AccessDenied" in str(errors["denied"])
    assert "grant these credentials s3:DeleteObject" in str(errors["denied"])
    assert "InternalError" in str(errors["broken"])
    sent = [sorted(keys_of(parameters)) for _, parameters in requests.made]
    assert sent[:3] == [["a", "broken", "denied", "slow"], ["broken", "slow"], ["broken", "slow"]]
    assert sent[3:] == [["broken"]] * (len(sent) - 3)
    assert len(sent) == 6


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (405, ""), (400, "MissingContentMD5")])
def test_a_server_without_that_request_is_asked_to_remove_each(s3, root, requests, status, code):
    store = open_store(root, s3.storage_options)
    store.put("a", b"x")

    def rejected(_):
        answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(answer, "DeleteObjects")

    requests.answer("delete_objects", rejected)
    requests.made.clear()
    assert store.delete_many(["a", "b"]) == {}
    assert [method for method, _ in requests.made] == ["delete_objects", "delete_object", "delete_object"]
    assert list(store.list("")) == []


def test_a_rejected_request_is_the_error_of_each_of_its_keys(s3, root, requests):
    store = open_store(root, s3.storage_options)

    def denied(_):
        raise ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "x")

    requests.answer("delete_objects", denied)
    errors = store.delete_many(["a", "b"])
    assert sorted(errors) == ["a", "b"]
    assert "access is denied" in str(errors["a"])


def test_a_long_range_is_read_in_pieces(s3, root, monkeypatch):
    monkeypatch.setattr(s3_module, "PART_BYTES", 1000)
    store = open_store(root, s3.storage_options)
    data = os.urandom(5500)
    store.put("k", data)
    assert bytes(store.get_range("k", 100, 5400)) == data[100:5400]


def test_a_large_object_is_copied_in_parts(s3, root, monkeypatch):
    monkeypatch.setattr(s3_module, "MAX_COPY_BYTES", 1000)
    monkeypatch.setattr(s3_module, "COPY_PART_BYTES", 5 << 20)
    store = open_store(root, s3.storage_options)
    data = os.urandom((10 << 20) + 17)
    store.put("k", data)
    store.copy("k", "l")
    assert bytes(store.get("l")) == data


def test_listing_goes_over_pages(s3, root, monkeypatch):
    monkeypatch.setattr(s3_module, "_PAGE_KEYS", 3)
    store = open_store(root, s3.storage_options)
    for i in range(8):
        store.put(f"k{i}", b"x")
    assert [found.key for found in store.list("k")] == [f"k{i}" for i in range(8)]
    assert [found.key for found in store.list("k", start_after="k1", limit=4)] == ["k2", "k3", "k4", "k5"]


def test_a_server_that_ignores_the_condition_is_rejected(s3, root, monkeypatch):
    store = open_store(root, s3.storage_options)
    client = s3_client(store.options)
    request_once = type(client)._once

    def forgetful(self, method, parameters):
        return request_once(self, method, {k: v for k, v in parameters.items() if k != "IfNoneMatch"})

    monkeypatch.setattr(type(client), "_once", forgetful)
    monkeypatch.setattr(conditions, "_proven", set())
    with pytest.raises(NotImplementedError, match="ignores the condition"):
        store.put_if_absent("k", b"x")
    assert list(store.list("")) == []
    trusting = open_store(root, {**s3.storage_options, "aws_conditional_put": "etag"})
    trusting.put_if_absent("k", b"x")


def test_a_cleanup_does_not_fail_the_test_of_the_server(s3, root, monkeypatch):
    store = open_store(root, s3.storage_options)
    client = s3_client(store.options)
    request_once, deleted = type(client)._once, []

    async def clean_up(self, method, parameters):
        answer = await request_once(self, method, parameters)
        if not deleted:
            deleted.append(parameters["Key"])
            await request_once(self, "delete_object", {"Bucket": parameters["Bucket"], "Key": parameters["Key"]})
        return answer

    monkeypatch.setattr(type(client), "_once", clean_up)
    monkeypatch.setattr(conditions, "_proven", set())
    store.put_if_absent("k", b"x")
    assert "/.conditional-put-" in deleted[0]
    assert [meta.key for meta in store.list("")] == ["k"]


def test_a_first_answer_that_is_lost_does_not_fail_the_test_of_the_server(s3, root, monkeypatch):
    store = open_store(root, s3.storage_options)
    client = s3_client(store.options)
    request_once, lost = type(client)._once, []

    async def lose(self, method, parameters):
        answer = await request_once(self, method, parameters)
        if not lost:
            lost.append(parameters["Key"])
            raise HTTPClientError(error="the answer was lost")
        return answer

    monkeypatch.setattr(type(client), "_once", lose)
    monkeypatch.setattr(conditions, "_proven", set())
    store.put_if_absent("k", b"x")
    assert "/.conditional-put-" in lost[0]
    assert [meta.key for meta in store.list("")] == ["k"]


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # other tests of the process may have imported it
def test_the_client_stays_in_its_process(s3, root):
    store = open_store(root, s3.storage_options)
    store.put("k", b"from the parent")
    with pytest.raises(TypeError):
        pickle.dumps(s3_client(store.options))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(bytes(store.get("k"))), daemon=True)
    child.start()
    try:
        assert answers.get(timeout=100) == b"from the parent"
    finally:
        child.kill()
        child.join()
    assert bytes(store.get("k")) == b"from the parent"


def test_plain_http_must_be_allowed(s3, root):
    options = {k: v for k, v in s3.storage_options.items() if k != "allow_http"}
    with pytest.raises(InvalidInputError, match="the storage option aws_allow_http=true"):
        open_store(root, options).get("k")


@pytest.mark.parametrize("value", ["true", "True", "1", "yes"])
def test_flags_have_the_spellings_of_object_store(s3, root, value):
    store = open_store(root, {**s3.storage_options, "allow_http": value})
    store.put("k", b"x")
    assert bytes(store.get("k")) == b"x"


def test_a_flag_that_is_neither_true_nor_false(s3, root):
    with pytest.raises(InvalidInputError, match="storage option aws_allow_http must be true or false"):
        open_store(root, {**s3.storage_options, "allow_http": "maybe"}).get("k")


@pytest.fixture(params=["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "profile"])
def options_without_endpoint(request, s3, tmp_path, monkeypatch):
    """Storage options without the endpoint, which AWS's own settings name."""
    if request.param == "profile":
        (tmp_path / "config").write_text(f"[default]\nendpoint_url = {s3.endpoint}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    else:
        monkeypatch.setenv(request.param, s3.endpoint)
    monkeypatch.setattr(s3_client_module, "_clients", {})
    return {k: v for k, v in s3.storage_options.items() if "endpoint" not in k}


def test_an_endpoint_of_the_environment_is_not_taken_for_aws(options_without_endpoint, s3, root):
    client = s3_client(open_store(root, options_without_endpoint).options)
    assert client.endpoint == s3.endpoint
    assert not client.is_aws


def test_plain_http_of_the_environment_must_be_allowed(options_without_endpoint, root):
    options = {k: v for k, v in options_without_endpoint.items() if k != "allow_http"}
    with pytest.raises(InvalidInputError, match="allow_http"):
        open_store(root, options).get("k")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://user:canary@host", "//host", "http://"])
def test_an_endpoint_is_a_url(root, endpoint):
    with pytest.raises(InvalidInputError, match=r"aws_endpoint.*http") as caught:
        open_store(root, {"aws_endpoint": endpoint, "aws_allow_http": "true"}).get("k")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["HTTP://127.0.0.1:1", " http://127.0.0.1:1"])
def test_plain_http_in_another_spelling_must_be_allowed(root, endpoint):
    with pytest.raises(InvalidInputError, match="allow_http"):
        open_store(root, {"aws_endpoint": endpoint}).get("k")


def test_errors_show_no_secret(s3, root):
    store = open_store("s3://no-such-bucket-here/x", s3.storage_options)
    with pytest.raises(StoreError, match="no such bucket") as missing:
        store.get("k")
    unreachable = {**s3.storage_options, "aws_endpoint": "http://127.0.0.1:1", "client_max_retries": "1"}
    with pytest.raises(StoreError) as rejected:
        open_store(root, unreachable).get("k")
    for error in (missing.value, rejected.value):
        seen = error
        while seen is not None:
            assert "canary" not in repr(seen)
            assert "canary" not in str(seen)
            seen = seen.__cause__
    assert "canary" not in repr(store)
    assert "canary" not in repr(store.options)


def test_new_objects_are_encrypted_as_the_options_say(s3, root, requests):
    import boto3

    options = {**s3.storage_options, "aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "key-7"}
    store = open_store(root, options)
    store.put("a", b"1")
    store.put_if_absent("b", b"2")
    store.copy("a", "c")
    with store.open_writer("d") as writer:
        for _ in range(3):
            writer.write(bytes(6 * 2**20))
    kinds = {"put_object", "copy_object", "create_multipart_upload"}
    begun = [(method, parameters) for method, parameters in requests.made if method in kinds]
    assert {method for method, _ in begun} == kinds
    assert all(parameters["SSEKMSKeyId"] == "key-7" for _, parameters in begun)
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=s3.endpoint, aws_access_key_id="x", aws_secret_access_key="y")
    for key in "abcd":
        found = client.head_object(Bucket=bucket, Key=f"{prefix}/{key}")
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", "key-7")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aws_server_side_encryption": "sse-c"}, "aws_server_side_encryption must be one of AES256, aws:kms"),
        ({"aws_server_side_encryption": "AES256", "aws_sse_kms_key_id": "k"}, "aws_sse_kms_key_id needs"),
        ({"aws_conditional_put": "etags"}, "aws_conditional_put must be one of etag, disabled"),
        (
            {"aws_virtual_hosted_style_request": "maybe"},
            "option aws_virtual_hosted_style_request must be true or false",
        ),
    ],
)
def test_values_that_an_option_does_not_have(s3, root, options, message):
    with pytest.raises(InvalidInputError, match=message):
        open_store(root, {**s3.storage_options, **options}).get("a")
