"""What is said when a storage cannot be reached: one line, the thing, and what to do."""

import builtins

import pytest

import lance_core
from lance_core.errors import InvalidInputError, StoreError, UnsupportedError
from lance_core.store import cloud
from lance_core.store.s3_client import _make_final_error, _scrub
from tests.s3_server import s3_server

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "hunter2", "aws_region": "us-east-1"}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("aws_acess_key_id", "aws_access_key_id"),
        ("endpiont", "endpoint"),
        ("aws_secret_acces_key", "aws_secret_access_key"),
    ],
)
def test_a_misspelt_option_names_the_nearest(key, meant):
    with pytest.raises(InvalidInputError, match=rf"unknown S3 storage option '{key}'; is '{meant}' meant\?"):
        lance_core.dataset("s3://bucket/t.lance", storage_options={key: "hunter2"})


@pytest.mark.parametrize(
    ("uri", "key", "meant"),
    [
        ("az://box/t.lance", "azure_storage_acount_key", "azure_storage_account_key"),
        ("abfs://box@somebody.dfs.core.windows.net/t.lance", "azure_storage_sas_kye", "azure_storage_sas_key"),
        ("az://box/t.lance", "azure_alow_http", "azure_allow_http"),
        ("gs://box/t.lance", "google_service_acount", "google_service_account"),
        ("gs://box/t.lance", "google_baseurl", "google_base_url"),
        ("s3://box/t.lance", "aws_secret_acces_key", "aws_secret_access_key"),
    ],
)
def test_a_misspelt_option_of_obstore_names_the_nearest(uri, key, meant):
    pytest.importorskip("obstore")
    own = {"az": {"azure_storage_account_name": "somebody"}, "s3": {"s3_client": "obstore"}}.get(
        uri.partition(":")[0], {}
    )
    with pytest.raises(InvalidInputError, match=rf"'{key}'(?: is not known)?; is '{meant}' meant\?") as caught:
        lance_core.dataset(uri, storage_options={key: "hunter2", **own})
    assert str(caught.value).splitlines()[0].count(key) == 1
    with pytest.raises(
        InvalidInputError, match=r"'nonsense'(?: is not known)?; known are (azure|google|aws)_"
    ) as caught:
        lance_core.dataset(uri, storage_options={"nonsense": "hunter2", **own})
    assert "hunter2" not in str(caught.value)


def test_the_suggested_names_of_obstore_are_its_own():
    pytest.importorskip("obstore")
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import from_url

    for bucket, service in (("az://box", "azure"), ("gs://box", "gcs"), ("s3://box", "s3")):
        with pytest.raises(UnknownConfigurationKeyError, match="nonsense"):  # the other names come before it
            from_url(bucket, config={**dict.fromkeys(cloud._OPTIONS[service].split(), "true"), "nonsense": "1"})


@pytest.mark.parametrize(("scheme", "package"), [("adl", "adlfs"), ("oci", "ocifs")])
def test_a_missing_package_is_named(scheme, package, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match=f"(?m){scheme}:// needs .*: pip install {package}$"):
        lance_core.dataset(f"{scheme}://bucket/t.lance")


def test_a_missing_bucket_and_missing_credentials(monkeypatch, tmp_path):
    with s3_server() as server:
        options = {**KEYS, "aws_endpoint": server.endpoint, "aws_allow_http": "true", "client_max_retries": "0"}
        for work in (
            lambda: lance_core.dataset("s3://nowhere/t.lance", storage_options=options),
            lambda: lance_core.write_dataset({"a": [1]}, "s3://nowhere/t.lance", storage_options=options),
        ):
            with pytest.raises(StoreError, match="s3://nowhere: there is no such bucket at http://") as caught:
                work()
            assert "\n" not in str(caught.value)
            assert "hunter2" not in str(caught.value)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        without = {key: value for key, value in options.items() if key not in KEYS} | {"aws_region": "eu-west-1"}
        with pytest.raises(StoreError, match="set the storage options aws_access_key_id and aws_secret_access_key"):
            lance_core.dataset("s3://nowhere/t.lance", storage_options=without)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("AccessDenied", "access is denied; grant these credentials s3:PutObject"),
        ("InvalidAccessKeyId", "correct aws_access_key_id"),
        ("SignatureDoesNotMatch", "correct aws_secret_access_key"),
    ],
)
def test_a_denial_says_what_to_do(code, remedy):
    error = _make_final_error("s3://bucket/t.lance", "put_object", 403, code, "AWS", unknown=False)
    assert str(error).startswith(f"s3://bucket/t.lance: put_object failed with HTTP 403 {code}: ")
    assert remedy in str(error)


@pytest.mark.parametrize("given", ["²", "-1", "1.5", "often"])
def test_a_number_of_retries_is_a_whole_number(given):
    with pytest.raises(InvalidInputError, match="'client_max_retries' is not a number"):
        lance_core.dataset("s3://nowhere/t.lance", storage_options={**KEYS, "client_max_retries": given})


def test_no_credentials_are_named_without_their_text():
    class NoCredentialsError(Exception):
        pass

    error = _scrub("s3://bucket/t", "get_object", NoCredentialsError("hunter2"))
    assert "hunter2" not in str(error)
    assert "there are no complete credentials" in str(error)
