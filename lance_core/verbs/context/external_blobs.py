"""The objects outside of a dataset that its blobs refer to by URI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from lance_core.errors import CorruptFileError
from lance_core.store import ObjectStore, canonical_uri, join_uri, open_base, open_object, split_uri
from lance_core.table.fragment import BasePath


class ExternalObjects:
    """Finds and opens the objects that external blobs refer to.

    Args:
        root: The dataset's root.
        bases: Its base paths.
        options: Its storage options, which are used for the objects too.
    """

    def __init__(self, root: str, bases: Sequence[BasePath], options: Mapping[str, str]) -> None:
        self._root = root
        self._options = options
        self._bases = {base.id: base for base in bases}
        self._stores: dict[str, ObjectStore] = {}

    def opened(self, base_id: int, uri: str) -> tuple[ObjectStore, str]:
        """Store and key of an object.

        A URI relative to a base path is a key, whose characters are literal; an absolute URI has percent-escapes.

        Raises:
            CorruptFileError: The base path is not registered, or the URI is invalid or names no object.
            UnsupportedError: The scheme is not allowed.
        """
        if not base_id:
            return open_object(uri, self._root, self._options, self._stores)
        path = self._find_base(base_id).path
        if path not in self._stores:
            self._stores[path] = open_base(path, self._root, self._options)
        return self._stores[path], uri

    def absolute(self, base_id: int, uri: str) -> str:
        """The URI of an object.

        Raises:
            CorruptFileError: The base path is not registered.
        """
        if not base_id:
            return uri
        place = canonical_uri(self._find_base(base_id).path)
        return join_uri(place if split_uri(place)[0] else f"file://{quote(place)}", quote(uri))

    def _find_base(self, base_id: int) -> BasePath:
        if base_id not in self._bases:
            raise CorruptFileError(f"{self._root}: a blob refers to the base path {base_id}, which is not registered")
        return self._bases[base_id]
