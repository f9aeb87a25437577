"""Where a write goes: a URI, or a dataset with the version that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath

from lance_core.api.handle import Handle
from lance_core.commit import load_latest
from lance_core.store import ObjectStore, open_store
from lance_core.table.manifest import Manifest

__all__ = ["Destination", "destination", "opened_destination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a write goes.

    Attributes:
        uri: The dataset's root.
        store: Its store.
        options: Storage options.
        base: The version that the write is based on; None if it is not known, or if there is no dataset.
    """

    uri: str
    store: ObjectStore
    options: Mapping[str, str] | None
    base: Manifest | None = None


def destination(where: str | PathLike[str] | Handle, storage_options: Mapping[str, str] | None) -> Destination:
    """What an argument of the public verbs names; nothing is read.

    Args:
        where: The dataset's root, or a dataset, whose version is the base.
        storage_options: Where and who; None for those of the dataset.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(where, Handle):
        source = where.source
        options = source.options if storage_options is None else storage_options
        return Destination(uri=where.uri, store=source.store, options=options, base=source.manifest)
    if not isinstance(where, str | PathLike):
        raise TypeError(f"a dataset is given by str, Path or LanceDataset, not {type(where)}")
    return Destination(uri=fspath(where), store=open_store(where, storage_options), options=storage_options)


def opened_destination(where: str | PathLike[str] | Handle, storage_options: Mapping[str, str] | None) -> Destination:
    """The same; the base of a URI is the latest version, if there is a dataset."""
    place = destination(where, storage_options)
    return place if place.base is not None else replace(place, base=load_latest(place.store))
