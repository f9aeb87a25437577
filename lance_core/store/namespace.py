"""Namespaces of others: services that give the location and the storage options of a table by its id.

    {"impl": "rest", "uri": "https://...", "header.x-api-key": ...}     a service, by its client library alone
    {"impl": "glue", ...}                                               an implementation that lance_namespace knows

Options that end, as vended credentials do, have the storage option `namespace_table`, a string by which each store that
is opened with them asks for the next ones, in every process. Commits are made by the store, never by the service.
"""

from __future__ import annotations

# The clients are optional extras.
# ruff: noqa: PLC0415
import contextlib
import json
import logging
import math
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    LanceError,
    RetryableConflictError,
    StoreError,
    UnsupportedError,
)
from lance_core.store.options import NAMESPACE_TABLE, StorageOptions

_logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 60.0
_RENEW_BEFORE_MS: Final = 60_000
"""How long before their end options are renewed, unless the namespace says it (`refresh_offset_millis`)."""
_NOT_FOUND: Final = (1, 4)
"""The codes of the specification for a namespace and a table that do not exist."""
_EXISTS: Final = (2, 5)
_INVALID: Final = 13
_CONCURRENT: Final = 14
"""The code for a change that conflicts with another one."""
_WORDS: Final = {
    r"(Table|Namespace)NotFoundException|RuntimeError: (Table|Namespace) does not exist": 4,
    r"(Table|Namespace)AlreadyExistsException|RuntimeError: (Table|Namespace) already exists": 5,
    r"InvalidInputException|ValueError": _INVALID,
}
"""The codes of errors that have none, by what their class and message begin with."""
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""How locations begin: others are relative to the working directory of whoever opens them."""
_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f]")
_ATTEMPTS: Final = 10
_MOST_LEVELS: Final = 32
"""Levels of namespaces that are listed: a service may answer as if they lay in themselves."""
_MOST_WORDS: Final = 500
_MODELS: Final = "lance_namespace_urllib3_client.models"
_TLS: Final = {"cert_file": "cert_file", "key_file": "key_file", "ssl_ca_cert": "ssl_ca_cert"}

_clients: dict[str, Any] = {}
"""Clients that callers of this process gave, by the token that options have in their place."""
_vended: dict[str, tuple[dict[str, str], float, float]] = {}
"""Options by reference, with the times in milliseconds at which they are renewed, and end."""
_lock = threading.Lock()


class Namespace:
    """A namespace of others.

    Args:
        source: Its properties, `impl` and those of the implementation; or a client with the methods of
            `lance_namespace.LanceNamespace`.

    Raises:
        InvalidInputError: The properties are incomplete.
        UnsupportedError: A library is not installed.
    """

    def __init__(self, source: Any) -> None:
        self._key: dict[str, Any]
        if isinstance(source, Mapping):
            properties = {str(name): str(value) for name, value in source.items()}
            # Of a root that was removed and made again, a client of pylance would look for the old files.
            connect = _connect.__wrapped__ if properties.get("impl") == "dir" else _connect
            self._key, self._client = {"namespace": properties}, connect(json.dumps(properties, sort_keys=True))
            self._label = f"the namespace {properties['impl']}"
        else:
            token = next((name for name, client in _clients.items() if client is source), uuid.uuid4().hex)
            _clients[token] = source
            self._key, self._client, self._label = {"client": token}, source, f"the namespace {type(source).__name__}"

    def list_ids(self, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the ids of all tables, in nested namespaces too; some may be declared without a version.

        Raises:
            StoreError: The namespace did not answer, or its pages or levels do not end.
        """
        if len(above) > _MOST_LEVELS:
            raise StoreError(
                f"{self._label} has more than {_MOST_LEVELS} levels of namespaces: {'.'.join(above)}; list_namespaces "
                "must answer with the names of those below the id alone"
            )
        tables, reason = self._list("list_tables", "ListTablesRequest", "tables", above)
        yield from ((*above, name) for name in tables)
        namespaces, other_reason = self._list("list_namespaces", "ListNamespacesRequest", "namespaces", above)
        if reason is not None and other_reason is not None:
            raise other_reason
        for name in namespaces:
            yield from self.list_ids((*above, name))

    @staticmethod
    def parse_id(name: str) -> list[str]:
        """The parts of an id from its name, in which slashes join them; a slash in a part is %2F, and a percent %25."""
        return [part.replace("%2F", "/").replace("%25", "%") for part in name.strip("/").split("/")]

    def describe(self, table_id: Sequence[str]) -> tuple[str, dict[str, str]]:
        """The location and the storage options of a table.

        Raises:
            DatasetNotFoundError: The namespace has no such table.
            UnsupportedError: The namespace keeps the versions of the table itself.
            StoreError: The namespace did not answer.
        """
        return self._place(table_id, self._call("describe_table", "DescribeTableRequest", table_id))

    def declare(self, table_id: Sequence[str]) -> tuple[str, dict[str, str]]:
        """The location and the storage options of a table, which is declared, with its namespaces, if it is missing.

        Raises:
            InvalidInputError: A part of the id is blank, or has control characters.
            DatasetExistsError: The id is that of a namespace.
            UnsupportedError: The namespace keeps the versions of the table itself.
            StoreError: The namespace did not answer.
        """
        try:
            return self.describe(table_id)
        except DatasetNotFoundError:
            pass
        check_id(table_id)
        for depth in range(1, len(table_id)):
            self._unless_exists("create_namespace", "CreateNamespaceRequest", table_id[:depth])
        self._unless_exists("declare_table", "DeclareTableRequest", table_id)
        try:
            return self.describe(table_id)  # of two that declare it at once, both get the location of one
        except DatasetNotFoundError as error:
            raise DatasetExistsError(
                f"{self._label} has {'.'.join(table_id)}, but not as a table: the id is that of a namespace, or the "
                "table was dropped meanwhile; choose another id"
            ) from error

    def deregister(self, table_id: Sequence[str]) -> None:
        """Remove a table, whose files were deleted, from the namespace.

        Raises:
            DatasetNotFoundError: The namespace has no such table.
            StoreError: The namespace did not answer.
        """
        self._call("deregister_table", "DeregisterTableRequest", table_id)

    def options_of(self, table_id: Sequence[str]) -> dict[str, str]:
        """Storage options by which a store asks for those of a table when it is opened; now nothing is asked."""
        return {NAMESPACE_TABLE: json.dumps({**self._key, "id": list(table_id)}, sort_keys=True)}

    def _unless_exists(self, verb: str, request: str, object_id: Sequence[str]) -> None:
        """Create an object of the namespace; others may do so at the same time."""
        for attempt in range(_ATTEMPTS):
            try:
                self._call(verb, request, object_id)
            except DatasetExistsError:
                return
            except RetryableConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 1))  # noqa: S311 - a pause
            else:
                return

    def _list(
        self, verb: str, request: str, field: str, above: tuple[str, ...]
    ) -> tuple[list[str], InvalidInputError | None]:
        """The names of tables or namespaces; none, and why, where the namespace has no such at this depth."""
        names, token, tokens = list[str](), None, set[str]()
        while True:
            try:
                page = self._call(verb, request, above, page_token=token)
            except InvalidInputError as error:
                if token is not None:
                    raise  # some of the names are no list of them
                return names, error
            names += getattr(page, field)
            token = page.page_token
            if not token:
                return names, None
            if token in tokens:
                raise StoreError(
                    f"{self._label} gives the same page_token again to {verb} of {'.'.join(above) or 'its root'}: each "
                    "page must have its own"
                )
            tokens.add(token)

    def _place(self, table_id: Sequence[str], response: Any) -> tuple[str, dict[str, str]]:
        name = ".".join(table_id)
        if response.managed_versioning:
            raise UnsupportedError(
                f"{self._label} keeps the versions of {name} itself, and this package commits to the storage: switch "
                "managed versioning off there"
            )
        if not _ABSOLUTE.match(response.location or ""):
            raise StoreError(
                f"{self._label} gives no usable location of {name}, but {response.location!r}: it must answer "
                "describe_table with an absolute path or a URI, so give a directory namespace an absolute root"
            )
        options = dict(response.storage_options or {})
        end, before = options.pop("expires_at_millis", None), options.pop("refresh_offset_millis", _RENEW_BEFORE_MS)
        if end is not None:
            try:
                end, before = int(end), int(before)
            except ValueError as error:
                raise StoreError(
                    f"{self._label} gives {name} options whose end cannot be read: expires_at_millis and "
                    "refresh_offset_millis must be integers"
                ) from error
            reference = self.options_of(table_id)
            with _lock:
                _vended[reference[NAMESPACE_TABLE]] = options, end - before, end
            options = {**options, **reference}
        return str(response.location), options

    def _call(self, verb: str, request: str, object_id: Sequence[str], **arguments: Any) -> Any:
        """The response of the namespace.

        Raises:
            DatasetNotFoundError: The namespace has no such table or namespace.
            DatasetExistsError: The namespace already has the table or namespace.
            RetryableConflictError: Another client changes the table or namespace at the same time.
            InvalidInputError: The namespace takes no such id.
            StoreError: The namespace did not answer, or with another error.
        """
        from importlib import import_module

        make = getattr(import_module(_MODELS), request)
        try:
            return getattr(self._client, verb)(make(id=list(object_id), **arguments))
        except Exception as error:
            code, name = _code_of(error), ".".join(object_id) or "its root"
            if code in _NOT_FOUND:
                raise DatasetNotFoundError(f"{self._label} has no {name}: create it there first") from error
            if code in _EXISTS:
                raise DatasetExistsError(f"{self._label} already has {name}") from error
            if code == _CONCURRENT:
                raise RetryableConflictError(f"{self._label}: another client changes {name} now: {error}") from error
            reason = _reason_of(error)
            if code == _INVALID:
                raise InvalidInputError(f"{self._label} does not take {verb} of {name}: {reason}") from error
            raise StoreError(
                f"{self._label} did not answer {verb} of {name}: {type(error).__name__}: {reason}; check that the "
                "service runs, its properties and what they permit"
            ) from error


def check_id(table_id: Sequence[str]) -> None:
    """Check the parts of the id of a new table.

    Raises:
        InvalidInputError: A part is blank, or has control characters, which clients drop from locations.
    """
    if not all(part.strip() and _CONTROL.search(part) is None for part in table_id):
        raise InvalidInputError(
            f"the id {'$'.join(table_id)!r} has a part that is blank, or has line breaks, tabs or other control "
            "characters: give other names"
        )


class _RestClient:
    """The methods of `LanceNamespace` that are needed here, by requests to a service."""

    def __init__(self, uri: str, delimiter: str = "$", **properties: str) -> None:
        try:
            from lance_namespace_urllib3_client.api.namespace_api import NamespaceApi
            from lance_namespace_urllib3_client.api.table_api import TableApi
            from lance_namespace_urllib3_client.api_client import ApiClient
            from lance_namespace_urllib3_client.configuration import Configuration
        except ImportError as error:
            raise UnsupportedError("a REST namespace needs its client: pip install 'lance-dagster[rest]'") from error
        configuration, headers = Configuration(host=uri.rstrip("/"), retries=3), {}
        for name, value in properties.items():
            kind, _, key = name.partition(".")
            if kind == "tls" and key in _TLS:
                setattr(configuration, _TLS[key], value)
            elif kind in ("header", "headers") and key:
                headers[key] = value
            else:
                raise InvalidInputError(
                    f"namespace: {name!r} is no property of impl rest; there are uri, delimiter, header.<name>, "
                    f"{', '.join(f'tls.{key}' for key in _TLS)}"
                )
        client = ApiClient(configuration)
        for key, value in headers.items():
            client.default_headers[key] = value
        self._namespaces, self._tables, self._delimiter = NamespaceApi(client), TableApi(client), delimiter

    def _arguments(self, request: Any) -> dict[str, Any]:
        object_id = self._delimiter.join(request.id or []) or self._delimiter
        return {"id": object_id, "delimiter": self._delimiter, "_request_timeout": _TIMEOUT_S}

    def list_tables(self, request: Any) -> Any:
        return self._namespaces.list_tables(page_token=request.page_token, **self._arguments(request))

    def list_namespaces(self, request: Any) -> Any:
        return self._namespaces.list_namespaces(page_token=request.page_token, **self._arguments(request))

    def describe_table(self, request: Any) -> Any:
        return self._tables.describe_table(describe_table_request=request, **self._arguments(request))

    def declare_table(self, request: Any) -> Any:
        return self._tables.declare_table(declare_table_request=request, **self._arguments(request))

    def deregister_table(self, request: Any) -> Any:
        return self._tables.deregister_table(deregister_table_request=request, **self._arguments(request))

    def create_namespace(self, request: Any) -> Any:
        return self._namespaces.create_namespace(create_namespace_request=request, **self._arguments(request))


def current_options(options: StorageOptions) -> StorageOptions:
    """The options as they are valid now: vended ones are renewed shortly before they end.

    Raises:
        StoreError: The options have ended, and the namespace gives no others.
        UnsupportedError: The namespace keeps the versions of the table itself by now.
    """
    reference = options.get(NAMESPACE_TABLE)
    if reference is None:
        return options
    source, now = json.loads(reference), time.time() * 1000
    if "client" in source and source["client"] not in _clients:
        return options  # those of the process that had the client
    fresh, renew_at, end = _vended.get(reference, ({}, 0, math.inf))  # of another process, or never asked for
    if now >= renew_at:
        client = _clients[source["client"]] if "client" in source else source["namespace"]
        try:
            _, fresh = Namespace(client).describe(source["id"])
        except UnsupportedError:  # the namespace keeps the versions itself from now on
            raise
        except LanceError as error:
            if now >= end:
                raise StoreError(
                    f"the storage options of {'.'.join(source['id'])} have ended, and were not renewed: {error}"
                ) from error
            _logger.warning("the storage options of %s are not renewed yet: %s", ".".join(source["id"]), error)
        with _lock:
            fresh, _, _ = _vended.setdefault(reference, (fresh, math.inf, math.inf))
    return StorageOptions({**options, **fresh})


@lru_cache(maxsize=64)
def _connect(properties_as_json: str) -> Any:
    properties = json.loads(properties_as_json)
    impl = properties.pop("impl", None)
    if not impl or (impl == "rest" and not properties.get("uri")):
        raise InvalidInputError(
            'a namespace has properties such as {"impl": "rest", "uri": "https://..."}: '
            f"{'uri' if impl else 'impl'} is missing"
        )
    if impl == "rest":
        return _RestClient(**properties)
    with contextlib.suppress(ModuleNotFoundError):
        import lance_namespace_impls  # type: ignore[import-not-found]  # noqa: F401 - registers its names
    try:
        import lance_namespace
    except ImportError as error:
        raise UnsupportedError(
            f"a namespace of impl {impl} needs further libraries: pip install 'lance-dagster[namespace]'"
        ) from error
    native_impls = sorted(lance_namespace.NATIVE_IMPLS)
    if "." not in impl and impl not in (*native_impls, *getattr(lance_namespace, "_REGISTERED_IMPLS", {})):
        raise InvalidInputError(
            f"there is no namespace of impl {impl!r} here: {', '.join(native_impls)} are; others need a "
            "package, such as lance-namespace-impls, and the path of their class as impl"
        )
    try:
        return lance_namespace.connect(impl, properties)
    except ValueError as error:
        reason = str(error)
        for value in properties.values():
            reason = reason.replace(value, "***") if value else reason
        raise InvalidInputError(f"the namespace {impl} cannot be opened: {reason}") from None


def _code_of(error: Exception) -> int | None:
    """The code of the specification in an error of a client; None if it has none."""
    code = getattr(error, "code", None)
    if code is None and isinstance(getattr(error, "body", None), str):
        code = _answer_of(error).get("code")
        return code if isinstance(code, int) else None
    if code is None:  # lance-namespace-impls has no codes
        text = f"{type(error).__name__}: {error}"
        return next((number for pattern, number in _WORDS.items() if re.match(pattern, text)), None)
    return None if code is None else int(getattr(code, "value", code))


def _answer_of(error: Exception) -> dict[str, Any]:
    """The object in the body of an answer with an error; empty if there is none."""
    try:
        answer = json.loads(getattr(error, "body", None) or "")
    except (TypeError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _reason_of(error: Exception) -> str:
    """What a service says about an error, on one line."""
    status, answer, body = getattr(error, "status", None), _answer_of(error), getattr(error, "body", None)
    if status is None and type(error).__name__ == "ValidationError":
        return "the answer is none of the specification of Lance namespaces: uri may be the one of another service"
    if status is None:
        return str(error)
    words = [str(answer[name]) for name in ("error", "detail", "message") if answer.get(name)]
    if not words and isinstance(body, str) and not body.lstrip().startswith("<"):
        words = [body]
    said = " ".join(": ".join(dict.fromkeys(words)).split())[:_MOST_WORDS]
    return " ".join(filter(None, (str(status), getattr(error, "reason", None), said and f"({said})")))
