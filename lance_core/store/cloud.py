"""The store of Google Cloud Storage, Azure Blob Storage and, if asked for, S3, by obstore: the library of pylance.

    verb             requests
    get, read        GET
    get_tail         GET; of Azure, which has no ranges from the end, HEAD and GET
    get_ranges       GET for each run of ranges that lie close together, some at a time
    head             HEAD
    put              PUT
    put_if_absent    PUT on the condition that there is no object: generation 0 of Google, If-None-Match: * of others
    open_writer      PUT, or above 8 MiB an upload in parts, some at a time
    list             LIST, one request per page; Azure lists from the beginning
    delete           DELETE
    copy             COPY

Options have object_store's names (`azure_storage_account_name`, `google_service_account`, ...), and its environment
variables are heeded. The first commit to a bucket tests the server (`store.conditions`).

The library's threads do not survive a fork: a process that was forked after the first request cannot make another one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from lance_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LanceError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    UnsupportedError,
)
from lance_core.store.base import (
    ByteRange,
    BytesLike,
    LinklessStore,
    ObjectMeta,
    ObjectWriter,
    ReadableBuffer,
    SingleDeletes,
    UnreportedRemains,
    bytes_view,
    check_key,
    check_prefix,
    count_read,
)
from lance_core.store.coalesce import MergedRange, merge_ranges, split_merged
from lance_core.store.conditions import prove_conditional_puts
from lance_core.store.namespace import current_options
from lance_core.store.options import OWN_OPTIONS, S3_OPTIONS, StorageOptions, parse_seconds, suggest_option
from lance_core.threads import SharedPool

# A request costs about as much as the transfer of this many bytes.
_MAX_GAP_BYTES: Final = 512 << 10
_MAX_MERGED_BYTES: Final = 16 << 20
_PART_BYTES: Final = 8 << 20
_UPLOADS_AT_A_TIME: Final = 4
_PAGE_KEYS: Final = 1000
_DEFAULT_RETRIES: Final = 5

_EXTRAS: Final = {"gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "s3": "s3"}
"""The extra of this package that serves each scheme."""

_OF_AZURE: Final = "az://container/path or abfss://container@account.dfs.core.windows.net/path"
PLACES: Final = {
    "gs": "gs://bucket/path",
    "s3": "s3://bucket/path",
    **dict.fromkeys(("az", "abfs", "abfss"), _OF_AZURE),
}
"""How the URIs of each scheme are written."""

_PREFIXES: Final = {"gcs": "google_", "azure": "azure_", "s3": "aws_"}
"""How the options and environment variables of each service begin."""

_clients: dict[tuple[int, str, StorageOptions], Any] = {}
_reads = SharedPool(16, "lance-cloud")


class CloudStore(SingleDeletes, UnreportedRemains, LinklessStore):
    """Objects below a prefix of a bucket or container.

    Args:
        root: `gs://bucket/prefix`, `az://container/prefix`, `s3://bucket/prefix`,
            `abfss://container@account.dfs.core.windows.net/prefix`.
        options: Storage options, under object_store's names.

    Raises:
        UnsupportedError: obstore is not installed.
        InvalidInputError: An option is not known, or not complete.
    """

    is_local: Final = False
    put_is_a_request: Final = True

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        super().__init__(root, options)
        scheme, _, path = self._place.partition("://")
        host, _, prefix = path.partition("/")
        self._bucket = f"{scheme}://{host}"
        self._service = _EXTRAS[scheme]
        self._prefix = prefix + "/" if prefix else ""
        self._client  # noqa: B018 - mistakes in options are reported here, not at the first request

    @property
    def _client(self) -> Any:
        options = current_options(self.options)
        key = (os.getpid(), self._bucket, options)
        if key not in _clients:
            if any(process != key[0] for process, _, _ in _clients):
                raise UnsupportedError(
                    f"{self.root}: this process was forked from one that had used {self._bucket}, and the library that "
                    "makes the requests cannot be used after a fork; start processes by 'spawn' or 'forkserver'"
                )
            _clients[key] = _make_client(self._bucket, self._service, options)
        return _clients[key]

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        return self.read(key)[0]

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size and time."""
        return self._get(key)

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter object, and the object's size."""
        if self._service != "azure":
            try:
                data, meta = self._get(key, options={"range": {"suffix": length}})
            except StoreError:
                if self.head(key).size == 0:
                    return b"", 0  # an empty object has no range
                raise
            return data, meta.size
        size = self.head(key).size
        return (self._read(key, max(0, size - length), size) if size else b""), size

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object; some requests run in parallel."""
        merged = merge_ranges(ranges, max_gap=_MAX_GAP_BYTES, max_size=_MAX_MERGED_BYTES)

        def read(part: MergedRange) -> BytesLike:
            return self._read(key, part.start, part.end)

        if len(merged) <= 1:
            return split_merged(ranges, merged, [read(part) for part in merged])
        jobs = [_reads.submit(read, part) for part in merged]
        return split_merged(ranges, merged, [job.result() for job in jobs])

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        return _meta(key, self._call("head", key))

    def put(self, key: str, data: ReadableBuffer) -> str | None:
        """Write an object, replacing one that exists."""
        result = self._call("put", key, bytes(bytes_view(data)), use_multipart=False)
        return _e_tag(result)

    def prepare_commits(self) -> None:
        """Make sure that the server honors the condition of `put_if_absent`."""
        prove_conditional_puts(self, self._place_of_proof, self._create)

    @property
    def _place_of_proof(self) -> tuple[str, str]:
        return str(hash(self.options)), self._bucket  # the options name the endpoint

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str | None:
        """Write an object unless one exists, in one request; the storage is always durable."""
        del durable
        self.prepare_commits()
        return self._create(key, bytes(bytes_view(data)))

    def open_writer(self, key: str, *, durable: bool = True) -> CloudWriter:
        """Start an upload that becomes the object when closed; the storage is always durable."""
        del durable
        file = self._call("open_writer", key, buffer_size=_PART_BYTES, max_concurrency=_UPLOADS_AT_A_TIME)
        return CloudWriter(file, self._show(key))

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield objects in ascending order of keys, a page of them at a time."""
        folder = self._prefix + check_prefix(prefix).rpartition("/")[0]
        after = None if start_after is None else self._prefix + start_after
        left, repetitions = limit, _DEFAULT_RETRIES
        while left is None or left > 0:
            try:
                for item in self._pages(folder, after, left):
                    after = item["path"]
                    key = after.removeprefix(self._prefix)
                    if not key.startswith(prefix) or after.endswith("/"):
                        continue  # below another name of the folder, or a placeholder of a folder
                    yield _meta(key, item)
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            except StoreError as error:
                # The library repeats requests that fail, but not one whose answer breaks off.
                if not repetitions or "RetryError" in str(error.__context__):
                    raise
                repetitions -= 1
            else:
                return

    def _pages(self, folder: str, after: str | None, limit: int | None) -> Iterator[Mapping[str, Any]]:
        options = {"offset": after, "chunk_size": min(limit or _PAGE_KEYS, _PAGE_KEYS)}
        with _converted_errors(self._show(""), "list"):
            for page in _library().list(self._client, folder or None, **options):
                yield from page

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        try:
            self._call("delete", key)
        except ObjectNotFoundError:
            return

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy an object on the server."""
        self._call("copy", source_key, self._prefix + check_key(target_key))

    def _show(self, key: str) -> str:
        return f"{self._bucket}/{self._prefix}{key}"

    def _call(self, method: str, key: str, *args: Any, writes: bool = False, **options: Any) -> Any:
        client, name = self._client, self._prefix + check_key(key)
        with _converted_errors(self._show(key), _VERBS.get(method, "write"), writes=writes):
            return getattr(_library(), method)(client, name, *args, **options)

    def _get(self, key: str, **options: Any) -> tuple[BytesLike, ObjectMeta]:
        result = self._call("get", key, **options)
        with _converted_errors(self._show(key), "read"):
            data = memoryview(result.bytes())
        count_read(1, len(data))
        return data, _meta(key, result.meta)

    def _create(self, key: str, data: bytes) -> str | None:
        return _e_tag(self._call("put", key, data, writes=True, mode="create", use_multipart=False))

    def _read(self, key: str, start: int, end: int) -> BytesLike:
        data = memoryview(self._call("get_range", key, start=start, end=end))
        if len(data) != end - start:
            raise StoreError(f"{self._show(key)}: bytes {start} to {end} wanted, {len(data)} received")
        count_read(1, len(data))
        return data


class CloudWriter(ObjectWriter):
    """An upload; what is not closed never becomes an object.

    Args:
        file: The library's open file.
        place: Its name in error messages.
    """

    def __init__(self, file: Any, place: str) -> None:
        self._file = file
        self._place = place
        self._size = 0

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes."""
        view = bytes_view(data)
        with _converted_errors(self._place, "write"):
            self._open_file().write(view)
        self._size += len(view)

    def close(self) -> int:
        """Finish the upload and return the object's size."""
        with _converted_errors(self._place, "write"):
            self._open_file().close()
        self._file = None
        return self._size

    def abort(self) -> None:
        """Drop the upload; parts that were sent stay until the storage removes them."""
        self._file = None

    def _open_file(self) -> Any:
        if self._file is None:
            raise StoreError(f"{self._place}: the writer is closed")
        return self._file


@contextmanager
def _converted_errors(place: str, verb: str, *, writes: bool = False) -> Iterator[None]:
    """Convert errors of obstore; of their messages, which can hold signed URLs, only codes are shown.

    Args:
        place: The object.
        verb: What is done with it, as in `_PERMISSIONS`.
        writes: Whether an error leaves open what has happened.
    """
    try:
        yield
    except LanceError:
        raise
    except Exception as error:  # noqa: BLE001 - converted
        raise _convert(error, place, verb, writes=writes) from None


def _convert(error: Exception, place: str, verb: str, *, writes: bool) -> LanceError:
    kind, text = type(error).__name__, str(error)
    if _NO_BUCKET.search(text):
        bucket = "/".join(place.split("/")[:3])
        return StoreError(f"{bucket}: there is no such bucket or container; create it, or correct its name")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(f"{place}: no such object")
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return AlreadyExistsError(f"{place}: exists already")
    status, service = _STATUS.search(text), _EXTRAS[place.partition("://")[0]]
    is_plain, is_without_credentials = _PLAIN_HTTP.search(text) is not None, _NO_CREDENTIALS in text
    reason = _PLAIN_REASON if is_plain else _explain(text)
    if not is_without_credentials and (server := _NO_ANSWER.search(text)):
        endpoint = server["scheme"] + server["host"]
        reason = f"{_explain_silence(text)} {endpoint}: check the network, and {_SERVERS[service]}"
    answer = f"HTTP {status[1]}" if status else reason or kind
    is_denied = kind in ("PermissionDeniedError", "UnauthenticatedError") or is_without_credentials
    if is_denied or (status and status[1] in ("401", "403")):
        denied = StoreError(
            f"{place}: access is denied ({reason or answer}): to {verb}, the credentials need "
            f"{_PERMISSIONS[verb][service]}; grant it, or correct them ({_CREDENTIALS[service]})"
        )
        denied.errno = errno.EACCES
        return denied
    is_rejected = is_plain or (status and status[1].startswith("4") and status[1] not in ("408", "429"))
    if writes and not is_rejected:
        return OutcomeUnknownError(f"{place}: the request failed ({answer}); it may have taken effect")
    return StoreError(f"{place}: the request failed ({answer})")


def _explain(text: str) -> str | None:
    """The sentence about an error of the library, whose text can hold secrets."""
    return next((reason for word, reason in _REASONS.items() if word in text), None)


def _explain_silence(text: str) -> str:
    """What went wrong with a server that has not answered; the error of an upload does not distinguish it."""
    if "kind: Connect" in text:
        return "cannot connect to"
    return "no answer in time from" if "kind: Timeout" in text else "cannot connect to, or got no answer from,"


_NO_ANSWER: Final = re.compile(
    r"Error performing [A-Z]+ (?P<scheme>\w+://)(?:[^/\s]*@)?(?P<host>[^/?@\s]+)\S* in [^\n]*error sending request"
)
"""A request without an answer; its URL can hold a signature, and its server's name holds none."""
_PLAIN_HTTP: Final = re.compile(r"Error performing [A-Z]+ http://[^\n]*: builder error")
_PLAIN_REASON: Final = "the server is plain HTTP; azure_allow_http or google_allow_http allows it"
_NO_CREDENTIALS: Final = "token request"
_REASONS: Final = {
    "MissingAccount": "no account is named; set azure_storage_account_name",
    "InvalidAccessKey": "azure_storage_account_key is not base64",
    "MissingSasComponent": "azure_storage_sas_key is not a SAS token",
    "OpenCredentials": "the file of google_service_account cannot be read",
    "DecodeCredentials": "google_service_account, or its key, is not the JSON of a service account",
    "as boolean": "a flag is neither true nor false",
    _NO_CREDENTIALS: "there are no credentials, and this machine gives none",
    "response body": "the answer broke off",
}
"""What went wrong, by a word of the library's error."""

_CREDENTIALS: Final = {
    "gcs": "google_service_account, or google_service_account_key",
    "azure": "azure_storage_account_name, and azure_storage_account_key, azure_storage_sas_key, azure_storage_token or "
    "azure_client_id with azure_client_secret and azure_tenant_id",
    "s3": "aws_access_key_id, aws_secret_access_key and aws_session_token",
}
"""The options with credentials, by service."""
_OPTIONS: Final = {
    "gcs": "google_service_account google_service_account_key google_application_credentials google_base_url",
    "azure": "azure_storage_account_name azure_storage_account_key azure_storage_sas_key azure_storage_token"
    " azure_client_id azure_client_secret azure_tenant_id azure_storage_endpoint azure_use_azure_cli azure_msi_endpoint"
    " azure_federated_token_file azure_authority_host azure_skip_signature azure_storage_use_emulator",
    "s3": " ".join(name for name in S3_OPTIONS if re.match("aws_(?!allow_http|profile)", name)),
}
"""The names of options, by service, for suggestions; the library accepts more, and other spellings."""
_VERBS: Final = {"get": "read", "get_range": "read", "head": "read", "delete": "delete"}
"""What methods do with objects; others write them."""
_READER, _CONTRIBUTOR = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"
_PERMISSIONS: Final = {
    "read": {"gcs": "storage.objects.get", "azure": f"{_READER}, or r in a SAS", "s3": "s3:GetObject"},
    "write": {"gcs": "storage.objects.create", "azure": f"{_CONTRIBUTOR}, or w in a SAS", "s3": "s3:PutObject"},
    "delete": {"gcs": "storage.objects.delete", "azure": f"{_CONTRIBUTOR}, or d in a SAS", "s3": "s3:DeleteObject"},
    "list": {"gcs": "storage.objects.list", "azure": f"{_READER}, or l in a SAS", "s3": "s3:ListBucket"},
}
"""What permits a request, by verb and service."""
_SERVERS: Final = {
    "gcs": "google_base_url, which names the server",
    "azure": "azure_storage_account_name and azure_storage_endpoint, which name the server",
    "s3": "aws_region and aws_endpoint, which name the server",
}
"""The options from which the name of the server follows, by service."""

_STATUS: Final = re.compile(r"(?:status code|\(code): ([1-5]\d\d)")
_NO_PLACE: Final = re.compile(r"UrlNotRecognised|\A(empty host|invalid (domain|international|port))")
_NO_BUCKET: Final = re.compile(r"<Code>(ContainerNotFound|NoSuchBucket)</Code>")


def _library() -> Any:
    import obstore  # noqa: PLC0415 - an optional extra

    return obstore


def _make_client(bucket: str, service: str, options: StorageOptions) -> Any:
    try:
        import obstore.store  # noqa: PLC0415 - an optional extra
    except ImportError:
        scheme = bucket.partition("://")[0]
        package = "obstore" if service == "s3" else f"'lance-dagster[{service}]'"
        raise UnsupportedError(
            f"{scheme}:// needs the library obstore, which is not installed: pip install {package}"
        ) from None
    config, client_options, retries = _split_options(service, options)
    if "@" in bucket:  # the URI names the account
        config = {key: value for key, value in config.items() if not key.endswith("account_name")}
    open_url: Any = obstore.store.from_url
    try:
        return open_url(bucket, config=config, client_options=client_options, retry_config=retries)
    except Exception as error:  # noqa: BLE001 - a foreign constructor; its message may hold values
        if _NO_PLACE.search(str(error)):
            place = PLACES[bucket.partition("://")[0]]
            raise InvalidInputError(
                f"{bucket} names no bucket or container: write {place}; another server than the usual one is "
                "named by a storage option (azure_storage_endpoint, google_base_url, aws_endpoint)"
            ) from None
        unknown = re.search(r"key: '?([a-z0-9_]+)'?", str(error)) if "Configuration" in type(error).__name__ else None
        if unknown:
            names = [*_OPTIONS[service].split(), *_CLIENT_OPTIONS]
            spellings = [*names, *(_PREFIXES[service] + name for name in _CLIENT_OPTIONS)]
            message = f"the storage option {unknown[1]!r} is not known; {suggest_option(unknown[1], spellings, names)}"
            raise InvalidInputError(f"{bucket} cannot be opened: {message}") from None
        problem = _explain(str(error))
        raise InvalidInputError(
            f"{bucket} cannot be opened: {problem or type(error).__name__}; storage options of it under object_store's "
            f"names: {', '.join(sorted(config)) or 'none'}"
        ) from None


def _split_options(service: str, options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """The options of the service, of its HTTP client, and of repetitions; those of other services are left out."""
    prefix = _PREFIXES[service]
    other_prefixes = tuple(other for other in _PREFIXES.values() if other != prefix)
    client: dict[str, Any] = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=30)}
    retries: dict[str, Any] = {"max_retries": _DEFAULT_RETRIES}
    config: dict[str, str] = {}
    if os.environ.get(f"{prefix}allow_http".upper(), "").lower() in _TRUE:
        client["allow_http"] = True
    for key, value in options.items():
        if key in OWN_OPTIONS or key.startswith(other_prefixes):
            continue
        name = _CLIENT_OPTIONS.get(key.removeprefix(prefix))
        if name in ("allow_http", "allow_invalid_certificates"):
            client[name] = value.lower() in _TRUE
        elif name in ("timeout", "connect_timeout"):
            client[name] = timedelta(seconds=parse_seconds(key, value))
        elif name == "max_retries":
            if not value.isdecimal():
                raise InvalidInputError(f"storage option {key!r} is not a number")
            retries[name] = int(value)
        elif name is not None:
            client[name] = value
        else:
            config[key] = value
    return config, client, retries


_TRUE: Final = frozenset({"1", "true", "on", "yes", "y"})
_CLIENT_OPTIONS: Final = {
    "allow_http": "allow_http",
    "allow_invalid_certificates": "allow_invalid_certificates",
    "timeout": "timeout",
    "request_timeout": "timeout",
    "connect_timeout": "connect_timeout",
    "client_max_retries": "max_retries",
    "max_retries": "max_retries",
    **{name: name for name in ("proxy_url", "proxy_ca_certificate", "proxy_excludes", "user_agent")},
    **{name: name for name in ("pool_idle_timeout", "pool_max_idle_per_host", "http1_only", "http2_only")},
}
"""The options of requests, by their spellings, without the service's prefix."""


def _meta(key: str, meta: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(key=key, size=meta["size"], modified=meta["last_modified"].timestamp(), e_tag=_e_tag(meta))


def _e_tag(answer: Mapping[str, Any]) -> str | None:
    """The e-tag without the quotes that some answers of Azure have, and others have not."""
    return (answer.get("e_tag") or "").strip('"') or None
