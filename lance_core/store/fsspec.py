"""The store of every other URI that fsspec knows.

Reads and plain writes work on any fsspec filesystem. Commits need an atomic creation, which fsspec does not promise:
they go through a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from inspect import signature
from typing import Any, Final

from lance_core.errors import AlreadyExistsError, InvalidInputError, ObjectNotFoundError, StoreError, UnsupportedError
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
from lance_core.store.cloud import PLACES
from lance_core.store.coalesce import merge_ranges, split_merged
from lance_core.store.options import OWN_OPTIONS, StorageOptions

_MAX_GAP_BYTES = 512 << 10
_MAX_MERGED_BYTES = 16 << 20


class FsspecStore(SingleDeletes, UnreportedRemains, LinklessStore):
    """Objects below a prefix of an fsspec filesystem.

    Args:
        root: A URI of a scheme that fsspec knows.
        options: Arguments of the filesystem, as its own documentation names them.

    Raises:
        UnsupportedError: No filesystem serves the scheme, or its library is not installed.
        InvalidInputError: The filesystem does not know an option.
    """

    is_local: Final = False
    put_is_a_request: Final = True

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        super().__init__(root, options)
        self._scheme = root.partition("://")[0]
        _filesystem(self._scheme, self.options)  # report mistakes in options here, not at the first request

    @property
    def _files(self) -> Any:
        # fsspec keeps one instance per process, thread and options, so this is a look-up.
        return _filesystem(self._scheme, self.options)

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        return self._read(key, None, None)

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter object, and the object's size."""
        size = self.head(key).size
        return self._read(key, max(0, size - length), size) if size else b"", size

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object."""
        merged = merge_ranges(ranges, max_gap=_MAX_GAP_BYTES, max_size=_MAX_MERGED_BYTES)
        parts = [self._read(key, read.start, read.end) for read in merged]
        for read, part in zip(merged, parts, strict=True):
            if len(part) != read.end - read.start:
                raise StoreError(f"{self.root}/{key}: bytes {read.start} to {read.end} wanted, {len(part)} received")
        return split_merged(ranges, merged, parts)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        path = self._full_path(key)
        with _errors(f"{self.root}/{key}"):
            return _meta(key, self._files.info(path))

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size; fsspec reports no time with it."""
        data = self._read(key, None, None)
        return data, ObjectMeta(key=key, size=len(data), modified=0.0)

    def put(self, key: str, data: ReadableBuffer) -> None:
        """Write an object, replacing one that exists."""
        path = self._full_path(key)
        with _errors(f"{self.root}/{key}"):
            self._files.pipe_file(path, bytes(bytes_view(data)))

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> None:
        """Raise an error: fsspec promises no atomic creation.

        Raises:
            UnsupportedError: The store commits through a database alone.
        """
        del key, data, durable
        raise UnsupportedError(
            f"{self.root}: {self._scheme}:// has no atomic creation through fsspec, so commits are not safe; commit "
            "through a database, by the storage option manifest_store"
        )

    def open_writer(self, key: str, *, durable: bool = True) -> FsspecWriter:
        """Start an object that appears when closed."""
        del durable
        self._check_no_web_address()
        path = self._full_path(key)
        with _errors(f"{self.root}/{key}"):
            return FsspecWriter(self._files.open(path, "wb"), f"{self.root}/{key}")

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield objects in ascending order of keys; fsspec always lists a whole folder."""
        self._check_no_web_address()
        folder = check_prefix(prefix).rpartition("/")[0]
        base = self._files._strip_protocol(self._place).rstrip("/") + "/"  # noqa: SLF001 - fsspec's way to say it
        with _errors(f"{self.root}/{prefix}"):
            infos = self._files.find(base + folder, detail=True)
        metas = sorted((_meta(path.removeprefix(base), info) for path, info in infos.items()), key=lambda m: m.key)
        listed_metas = [m for m in metas if m.key.startswith(prefix) and (start_after is None or m.key > start_after)]
        yield from listed_metas[:limit]

    def _check_no_web_address(self) -> None:
        """Single files can be read at web addresses, blobs for one; tables need lists of files.

        Raises:
            InvalidInputError: The scheme is that of the web.
        """
        if self._scheme in ("http", "https"):
            places = ", ".join(sorted(set(PLACES.values())))
            raise InvalidInputError(f"{self.root}: a table has no web address: write {places}")

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        path = self._full_path(key)
        try:
            with _errors(f"{self.root}/{key}"):
                self._files.rm_file(path)
        except ObjectNotFoundError:
            return

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy an object."""
        source, target = self._full_path(source_key), self._full_path(target_key)
        with _errors(f"{self.root}/{source_key}"):
            self._files.cp_file(source, target)

    def _full_path(self, key: str) -> str:
        return f"{self._place}/{check_key(key)}"

    def _read(self, key: str, start: int | None, end: int | None) -> bytes:
        path = self._full_path(key)
        with _errors(f"{self.root}/{key}"):
            data: bytes = self._files.cat_file(path, start=start, end=end)
        count_read(1, len(data))
        return data


class FsspecWriter(ObjectWriter):
    """A stream into an fsspec file.

    Args:
        file: The open file.
        place: Its name in error messages.
    """

    def __init__(self, file: Any, place: str) -> None:
        self._file = file
        self._place = place
        self._size = 0

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes."""
        view = bytes_view(data)
        with _errors(self._place):
            self._file.write(view)
        self._size += len(view)

    def close(self) -> int:
        """Make the object visible and return its size."""
        with _errors(self._place):
            self._file.close()
        return self._size

    def abort(self) -> None:
        """Drop what was written; if the file has no `discard`, the storage keeps the unfinished upload."""
        if not self._file.closed and hasattr(self._file, "discard"):
            self._file.discard()
        self._file.closed = True


@contextmanager
def _errors(place: str) -> Iterator[None]:
    """Convert errors of fsspec without their messages, which may hold secret parameters."""
    try:
        yield
    except FileExistsError:
        raise AlreadyExistsError(f"{place}: exists already") from None
    except Exception as error:  # noqa: BLE001 - converted
        # The file system of the web reports a server that does not answer as a missing file.
        for cause in (error, error.__cause__):
            if any(_UNREACHABLE.search(kind.__name__) for kind in type(cause).__mro__):
                raise StoreError(
                    f"{place}: cannot connect to the storage, or it does not answer ({type(cause).__name__}): check the"
                    " network, and the storage options that name the server"
                ) from None
        if isinstance(error, FileNotFoundError):
            raise ObjectNotFoundError(f"{place}: no such object") from None
        raise StoreError(f"{place}: {type(error).__name__}") from None


_UNREACHABLE: Final = re.compile(r"Connect|Timeout|ServiceRequest|ServerDisconnected|gaierror")
"""Names of errors of libraries that serve file systems, and of Python, for a server that does not answer."""
_ALTERNATIVES: Final = {"dbfs": "; on Databricks the same files are at the path /dbfs/..., without a scheme"}


_LIBRARIES: Final = {
    "adl": "adlfs",
    "oci": "ocifs",
    "hf": "huggingface_hub",
}
"""The package that serves each scheme."""


def _filesystem(scheme: str, options: StorageOptions) -> Any:
    import fsspec  # noqa: PLC0415 - a tenth of the time to import lance_core, unused by local tables
    from fsspec.registry import registry  # noqa: PLC0415 - see above

    arguments = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    try:
        return fsspec.filesystem(scheme, use_listings_cache=False, **arguments)
    except ImportError:
        library = _LIBRARIES.get(scheme)
        remedy = f"pip install {library}" if library else "install the fsspec library that serves it"
        raise UnsupportedError(f"{scheme}:// needs an fsspec library that is not installed: {remedy}") from None
    except ValueError:
        if scheme in registry:  # its class was found, and rejects the options
            raise InvalidInputError(
                f"the filesystem of {scheme}:// cannot be opened with the storage options {sorted(arguments)}; its "
                "documentation names those that it needs, such as an account and its credentials"
            ) from None
        raise UnsupportedError(
            f"no store serves the scheme {scheme!r}: install a file system of fsspec for it, or give a path such as "
            "/folder/table, or file:/folder/table, where the same files can be reached"
        ) from None
    except TypeError:
        raise InvalidInputError(
            f"the filesystem of {scheme}:// cannot be opened with the storage options {sorted(arguments)}; it needs "
            f"{_required_options(scheme)}{_ALTERNATIVES.get(scheme, '')}"
        ) from None
    except Exception as error:  # noqa: BLE001 - a foreign constructor; its message may hold parameters
        raise StoreError(f"the filesystem of {scheme}:// cannot be opened: {type(error).__name__}") from None


def _required_options(scheme: str) -> list[str]:
    """The storage options that fsspec's file system of a scheme requires."""
    import fsspec  # noqa: PLC0415 - a tenth of the time to import lance_core, unused by local tables

    make: Any = fsspec.get_filesystem_class(scheme).__init__
    _, *parameters = signature(make).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty
    ]


def _meta(key: str, info: dict[str, Any]) -> ObjectMeta:
    when = info.get("mtime") or info.get("last_modified") or info.get("LastModified") or info.get("updated") or 0.0
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    modified = when.timestamp() if isinstance(when, datetime) else float(when)
    tag = info.get("etag") or info.get("ETag") or info.get("e_tag")
    return ObjectMeta(key=key, size=int(info["size"]), modified=modified, e_tag=str(tag) if tag else None)
