"""Requests to S3: one client per process and set of options, one retry layer, errors without secrets.

s3fs creates the session (credentials, profiles, roles, endpoints); requests go through its client with explicit
parameters, so that one method of the store is one request. Retries of s3fs and botocore are off: this module retries,
with exponential backoff and jitter.

    status                         meaning                              a write then
    404, NoSuchKey                 ObjectNotFoundError
    412                            AlreadyExistsError                   exists; after a lost response possibly our own
    409                            concurrent conditional puts          did not happen; repeated
    429, 503                       slow down                            did not happen; repeated
    408, 500, 502, 504, broken     no reliable response                 may have happened; repeated, then
                                                                        OutcomeUnknownError
    other                          StoreError                           did not happen
"""

from __future__ import annotations

# s3fs and its dependencies are an optional extra.
# ruff: noqa: PLC0415
import asyncio
import errno
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from lance_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    UnsupportedError,
)
from lance_core.retry import backoff
from lance_core.store.namespace import current_options
from lance_core.store.options import StorageOptions, parse_seconds
from lance_core.threads import ThreadPool

_Result = TypeVar("_Result")

_DEFAULT_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_LOOKUPS_AT_A_TIME = 4

_NOTHING_WRITTEN = frozenset({409, 429, 503})
_MAYBE_WRITTEN = frozenset({408, 500, 502, 504})
_PASSING_CODES = frozenset({"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted"})
_TRUE = frozenset({"1", "true", "on", "yes", "y"})
_FALSE = frozenset({"0", "false", "off", "no", "n"})
_NOT_OFFERED = frozenset({405, 501})
_NOT_OFFERED_CODES = frozenset({"MissingContentMD5", "NotImplemented", "MethodNotAllowed"})

_clients: dict[tuple[int, StorageOptions], S3Client] = {}
_lock = threading.Lock()


def s3_client(options: StorageOptions) -> S3Client:
    """Return this process's client for some options; a forked child creates its own."""
    options = current_options(options)
    key = (os.getpid(), options)
    client = _clients.get(key)
    if client is None:
        with _lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = S3Client(options)
    return client


_UNREACHABLE: Final = frozenset({"EndpointConnectionError", "ConnectTimeoutError"})
_CONDITIONAL_PUTS: Final = ("etag", "disabled")
_ENCRYPTIONS: Final = ("AES256", "aws:kms", "aws:kms:dsse")
_BEGIN_AN_OBJECT: Final = ("put_object", "copy_object", "create_multipart_upload")
"""The operations whose parameters set how an object is encrypted."""
_ENVIRONMENT: Final = (
    ("AWS_ENDPOINT", "aws_endpoint"),
    ("AWS_ALLOW_HTTP", "aws_allow_http"),
    ("AWS_DEFAULT_REGION", "aws_region"),
    ("AWS_REGION", "aws_region"),
)


class S3Client:
    """A client and its retry policy; not to be shared with a forked child, and never pickled.

    Args:
        options: Storage options.

    Raises:
        InvalidInputError: An option is unknown, or the endpoint is not a URL, or plain HTTP without `aws_allow_http`.
        UnsupportedError: s3fs is not installed.
    """

    def __init__(self, options: StorageOptions) -> None:
        s3_options = _with_endpoint({**_environment(), **options.for_s3()})
        self.endpoint = s3_options.get("aws_endpoint", "")
        self.conditional_put = _one_of(s3_options, "aws_conditional_put", _CONDITIONAL_PUTS) or ""
        self._encryption = _encryption(s3_options)
        self.copies_parts: bool | None = None
        """Whether the server copies parts of objects; None as long as this is not known."""
        self._attempts = _attempts(s3_options)
        self._filesystem = _filesystem(s3_options)
        # The loop resolves host names in this pool, also once the main thread has returned.
        loop = self._filesystem.loop
        loop.call_soon_threadsafe(loop.set_default_executor, ThreadPool(_LOOKUPS_AT_A_TIME))

    def __reduce__(self) -> Any:
        raise TypeError("an S3 client cannot be pickled")

    def __repr__(self) -> str:
        return f"S3Client({self.endpoint or 'AWS'})"

    @property
    def _shown_endpoint(self) -> str:
        """The endpoint's URL without credentials."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if self.endpoint else "AWS"

    @property
    def is_aws(self) -> bool:
        """Whether requests go to AWS itself, whose conditional puts need no proof."""
        host = urlsplit(self.endpoint).hostname or ""
        return not self.endpoint or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def run(self, work: Callable[..., Awaitable[_Result]], *args: Any) -> _Result:
        """Run a coroutine function on the client's event loop and wait for it."""
        from fsspec.asyn import sync

        result: _Result = sync(self._filesystem.loop, work, *args)
        return result

    def submit(self, work: Awaitable[_Result]) -> Any:
        """Start a coroutine on the client's event loop; returns a `concurrent.futures.Future`."""
        return asyncio.run_coroutine_threadsafe(work, self._filesystem.loop)  # type: ignore[arg-type]

    async def request(self, method: str, *, writes: bool = False, optional: bool = False, **parameters: Any) -> Any:
        """Make a request; transient failures are retried.

        Args:
            method: Name of the operation, as botocore spells it in Python.
            writes: Whether a request without a response may have taken effect.
            optional: Whether some servers lack the operation, or reject these parameters.
            **parameters: Its parameters: `Bucket`, mostly `Key`, and others.

        Raises:
            ObjectNotFoundError: The object does not exist.
            AlreadyExistsError: A condition was not fulfilled.
            OutcomeUnknownError: A write got no response, and retries did not reveal its outcome.
            UnsupportedError: The server does not offer an optional operation.
            StoreError: The storage rejected the request, or failed.
        """
        url = f"s3://{parameters['Bucket']}/{parameters.get('Key', parameters.get('Prefix', ''))}"
        if method in _BEGIN_AN_OBJECT:
            parameters |= self._encryption
        unanswered = False
        for attempt in range(self._attempts):
            try:
                return await self._once(method, parameters)
            except Exception as error:  # noqa: BLE001 - errors other than responses of the storage are raised again below
                status, code = _status(error)
                if status is None:
                    raise _scrub(url, method, error) from None
                if code == "NoSuchBucket":
                    raise StoreError(
                        f"s3://{parameters['Bucket']}: there is no such bucket at {self._shown_endpoint}; "
                        "create it, or correct its name or the storage option aws_endpoint"
                    ) from None
                if optional and _is_not_offered(status, code):
                    raise UnsupportedError(f"{url}: the storage does not offer {method} ({code})") from None
                if status == 404:
                    raise ObjectNotFoundError(f"{url}: no such object ({code})") from None
                if status == 412:
                    raise AlreadyExistsError(f"{url}: exists already") from None
                passes = status in _NOTHING_WRITTEN or status in _MAYBE_WRITTEN or status == 0
                unanswered = unanswered or status in _MAYBE_WRITTEN or status == 0
                if not passes or attempt + 1 == self._attempts:
                    unknown, endpoint = writes and unanswered, self._shown_endpoint
                    raise _make_final_error(url, method, status, code, endpoint, unknown=unknown) from None
            await _pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    async def delete_objects(self, bucket: str, names: Sequence[str]) -> dict[str, StoreError]:
        """Remove objects by one request; objects that failed with a transient error are sent again.

        Args:
            bucket: The bucket.
            names: Full names of at most 1,000 objects.

        Returns:
            The errors of the objects that could not be removed, by name.

        Raises:
            UnsupportedError: The server does not offer DeleteObjects.
            StoreError: The storage rejected the whole request.
        """
        errors: dict[str, StoreError] = {}
        left = list(names)
        for attempt in range(self._attempts):
            keys = {"Objects": [{"Key": name} for name in left], "Quiet": True}
            answer = await self.request("delete_objects", optional=True, Bucket=bucket, Delete=keys)
            failed = {failure["Key"]: str(failure.get("Code", "")) for failure in answer.get("Errors", [])}
            passing = attempt + 1 < self._attempts
            left = [name for name, code in failed.items() if passing and code in _PASSING_CODES]
            for name in failed.keys() - set(left):
                errors[name] = _make_removal_error(f"s3://{bucket}/{name}", failed[name])
            if not left:
                return errors
            await _pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, method: str, parameters: dict[str, Any]) -> Any:
        await self._filesystem.set_session()
        client = await self._filesystem.get_s3(parameters["Bucket"])
        response = await getattr(client, method)(**parameters)
        if method == "get_object":
            # The body is read here, so that an incomplete body is requested again.
            response["Body"] = await response["Body"].read()
        return response


def _is_not_offered(status: int, code: str) -> bool:
    """Whether a server lacks an operation; a bad request counts as that, as other servers accept the parameters."""
    is_bad_request = status == 400 and code not in _REMEDIES and code not in _PASSING_CODES
    return is_bad_request or status in _NOT_OFFERED or code in _NOT_OFFERED_CODES


async def _pause(attempt: int) -> None:
    await asyncio.sleep(backoff(attempt + 1, first=_FIRST_PAUSE_S, longest=_LONGEST_PAUSE_S))


def _attempts(s3_options: dict[str, str]) -> int:
    string = s3_options.get("client_max_retries")
    if string is None:
        return _DEFAULT_ATTEMPTS
    if not string.isdecimal():
        raise InvalidInputError("storage option 'client_max_retries' is not a number")
    return int(string) + 1


def _status(error: Exception) -> tuple[int | None, str]:
    """Return HTTP status and error code; status 0 for a broken connection, None for an error outside the network."""
    import aiohttp
    import botocore.exceptions as botocore_errors
    from botocore.parsers import ResponseParserError

    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        code = str(response.get("Error", {}).get("Code", ""))
        # Some servers report throttling or a missing key under another status.
        if code in ("SlowDown", "Throttling", "RequestLimitExceeded", "TooManyRequests"):
            status = 503
        if code in ("NoSuchKey", "NoSuchBucket"):
            status = 404
        return status, code
    if isinstance(error, botocore_errors.EndpointConnectionError | botocore_errors.ConnectTimeoutError):
        return 503, type(error).__name__  # the request was never sent
    broken = (
        TimeoutError,
        ConnectionError,
        aiohttp.ClientError,
        botocore_errors.HTTPClientError,
        botocore_errors.ConnectionError,
        ResponseParserError,
        botocore_errors.IncompleteReadError,
    )
    return (0, type(error).__name__) if isinstance(error, broken) else (None, "")


def _scrub(url: str, method: str, error: Exception) -> StoreError:
    """Convert an error without a response; its message may hold parameters, so only its class is named."""
    kind = type(error).__name__
    remedy = _CREDENTIALS if kind in _NO_CREDENTIALS else ""
    return StoreError(f"{url}: {method} failed: {kind}{remedy}")


_NO_CREDENTIALS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_CREDENTIALS: Final = (
    "; there are no complete credentials: set the storage options aws_access_key_id and aws_secret_access_key, the "
    "environment variables of these names, or a profile; aws_skip_signature is for public buckets"
)
_REMEDIES: Final[Mapping[str, str]] = {
    "InvalidAccessKeyId": "the endpoint does not know the access key; correct aws_access_key_id, or aws_endpoint",
    "SignatureDoesNotMatch": "the secret key is not that of the access key; correct aws_secret_access_key",
    "ExpiredToken": "the session has expired; renew the credentials",
    "InvalidToken": "the session token is not valid; correct aws_session_token, or leave it out",
    "PermanentRedirect": "the bucket is in another region; correct aws_region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; correct aws_region",
}
"""Remedies for error responses, by their code."""

_ACTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("get_object", "head_object"), "s3:GetObject"),
    **dict.fromkeys(
        ("put_object", "create_multipart_upload", "upload_part", "complete_multipart_upload"), "s3:PutObject"
    ),
    **dict.fromkeys(("copy_object", "upload_part_copy"), "s3:GetObject and s3:PutObject"),
    **dict.fromkeys(("delete_object", "delete_objects"), "s3:DeleteObject"),
    "list_objects_v2": "s3:ListBucket",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_object_versions": "s3:ListBucketVersions",
    "get_bucket_versioning": "s3:GetBucketVersioning",
}
"""The actions that a policy has to allow, by the operation."""


def _explain_denial(method: str) -> str:
    # Without the permission to list, S3 denies access to an object that does not exist, too.
    missing = ", and s3:ListBucket, without which missing objects are denied" if _ACTIONS[method] == _READS else ""
    return f"access is denied; grant these credentials {_ACTIONS[method]}{missing}, or use those of another user"


_READS: Final = "s3:GetObject"


_CHECKS: Final = "check the network, and aws_region and aws_endpoint, which name the server"


def _explain_silence(code: str) -> str:
    if code in _UNREACHABLE:
        return "cannot connect to"
    return "no answer in time from" if "Timeout" in code else "no answer from"


def _make_final_error(url: str, method: str, status: int, code: str, endpoint: str, *, unknown: bool) -> StoreError:
    if not status or code in _UNREACHABLE:
        reason, remedy = f"{_explain_silence(code)} {endpoint}", _CHECKS
    else:
        reason = f"{method} failed with {f'HTTP {status} {code}'.strip()}"
        remedy = _REMEDIES.get(code) or (_explain_denial(method) if status in (401, 403) else "")
    message = f"{url}: {reason}" + (remedy and f": {remedy}")
    error = OutcomeUnknownError(f"{message}; it may have taken effect") if unknown else StoreError(message)
    if status in (401, 403):
        error.errno = errno.EACCES
    return error


def _make_removal_error(url: str, code: str) -> StoreError:
    remedy = f": {_explain_denial('delete_objects')}" if code == "AccessDenied" else ""
    return StoreError(f"{url}: the storage did not remove it ({code}){remedy}")


def _environment() -> dict[str, str]:
    """Endpoint, region and permission of HTTP from the environment; the session itself looks up credentials."""
    return {name: os.environ[key] for key, name in _ENVIRONMENT if os.environ.get(key)}


def _is_set(s3_options: dict[str, str], name: str) -> bool:
    """Whether an option is set, in the spellings of object_store.

    Raises:
        InvalidInputError: The value is neither true nor false.
    """
    value = str(s3_options.get(name, "false")).lower()
    if value not in _TRUE | _FALSE:
        raise InvalidInputError(f"the storage option {name} must be true or false")
    return value in _TRUE


def _with_endpoint(s3_options: dict[str, str]) -> dict[str, str]:
    """The options with the endpoint of requests, unless it is AWS's own; settings of botocore can name one as well.

    Raises:
        InvalidInputError: The endpoint is not a URL; the message does not show it, as it may hold credentials.
    """
    endpoint = s3_options.get("aws_endpoint") or _endpoint_of_aws_settings(s3_options.get("aws_profile"))
    if endpoint is None:
        return s3_options
    endpoint = endpoint.strip()
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(
            "the storage option aws_endpoint must be a URL such as https://host or http://host:9000"
        )
    return {**s3_options, "aws_endpoint": endpoint}


def _endpoint_of_aws_settings(profile: str | None) -> str | None:
    """The endpoint of S3 by AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and the profile, as botocore resolves it."""
    try:
        import botocore.session
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import BotoCoreError
        from botocore.utils import ensure_boolean
    except ImportError:
        return None  # creating the client reports the missing package
    session = botocore.session.Session(profile=profile)
    try:
        if ensure_boolean(session.get_config_variable("ignore_configured_endpoint_urls")):
            return None
        endpoint = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    except BotoCoreError as error:
        raise InvalidInputError(f"the settings of AWS cannot be read: {type(error).__name__}") from None
    return endpoint or None


def _encryption(s3_options: dict[str, str]) -> dict[str, str]:
    """How the server is to encrypt new objects, as parameters of requests."""
    kind = _one_of(s3_options, "aws_server_side_encryption", _ENCRYPTIONS)
    key_id = s3_options.get("aws_sse_kms_key_id")
    if key_id is None:
        return {} if kind is None else {"ServerSideEncryption": kind}
    if kind == "AES256":
        raise InvalidInputError(
            "the storage option aws_sse_kms_key_id needs aws_server_side_encryption=aws:kms or aws:kms:dsse"
        )
    return {"ServerSideEncryption": kind or "aws:kms", "SSEKMSKeyId": key_id}


def _one_of(s3_options: dict[str, str], name: str, values: Sequence[str]) -> str | None:
    """The value of an option that has a fixed set of values; None if it is not given.

    Raises:
        InvalidInputError: The value is not in the set.
    """
    value = s3_options.get(name)
    if value is not None and value not in values:
        raise InvalidInputError(f"the storage option {name} must be one of {', '.join(values)}, got {value!r}")
    return value


def _filesystem(s3_options: dict[str, str]) -> Any:
    try:
        import s3fs
        from aiobotocore.config import AioConfig
        from aiobotocore.httpsession import AIOHTTPSession
        from botocore.config import Config
    except ImportError:
        raise UnsupportedError("s3:// needs s3fs: install lance-dagster[s3]") from None

    class UnrepeatedRequests(AIOHTTPSession):  # type: ignore[misc]  # without types
        """Sends each request once: aiohttp repeats a put whose connection broke, and only the last answer is seen."""

        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False  # noqa: SLF001 - there is no public name
            return session

    endpoint = s3_options.get("aws_endpoint")
    plain = endpoint is not None and urlsplit(endpoint).scheme == "http"
    if plain and not _is_set(s3_options, "aws_allow_http"):
        raise InvalidInputError("the endpoint is plain HTTP; set the storage option aws_allow_http=true to use it")
    style = "path" if endpoint else "auto"
    if "aws_virtual_hosted_style_request" in s3_options:
        style = "virtual" if _is_set(s3_options, "aws_virtual_hosted_style_request") else "path"
    config: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": parse_seconds("connect_timeout", s3_options.get("connect_timeout", f"{_CONNECT_TIMEOUT_S}")),
        "read_timeout": parse_seconds("timeout", s3_options.get("timeout", f"{_READ_TIMEOUT_S}")),
        "s3": {"addressing_style": style},
        "max_pool_connections": 64,
    }
    if "http_session_cls" in inspect.signature(AioConfig).parameters:
        config["http_session_cls"] = UnrepeatedRequests
    if endpoint and "request_checksum_calculation" in Config.OPTION_DEFAULTS:
        # Servers other than AWS often lack trailing checksums.
        config["request_checksum_calculation"] = config["response_checksum_validation"] = "when_required"
    client: dict[str, Any] = {"region_name": s3_options.get("aws_region", "us-east-1" if endpoint else None)}
    if _is_set(s3_options, "allow_invalid_certificates"):
        client["verify"] = False
    extra = {"profile": s3_options["aws_profile"]} if "aws_profile" in s3_options else {}
    return s3fs.S3FileSystem(
        anon=_is_set(s3_options, "aws_skip_signature"),
        endpoint_url=endpoint,
        key=s3_options.get("aws_access_key_id"),
        secret=s3_options.get("aws_secret_access_key"),
        token=s3_options.get("aws_session_token"),
        use_ssl=not plain,
        client_kwargs={key: value for key, value in client.items() if value is not None},
        config_kwargs=config,
        use_listings_cache=False,
        skip_instance_cache=True,
        **extra,
    )
