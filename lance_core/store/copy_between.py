"""Copies objects from one store to another; if both stores are in one storage, the storage makes the copy."""

from __future__ import annotations

from lance_core.store.base import ObjectStore, unescaped_root
from lance_core.store.resolve import open_store


def copy_object(source: ObjectStore, source_key: str, target: ObjectStore, target_key: str) -> None:
    """Copy an object, replacing the target.

    Args:
        source: The store that has the object.
        source_key: Its key there.
        target: The store that gets the copy.
        target_key: Its key there.

    Raises:
        ObjectNotFoundError: The source has no such object.
    """
    common = _common_root(source, target)
    if common is not None:
        whole = open_store(common, {name: value for name, value in target.options.items() if name != "manifest_store"})
        whole.copy(_below(common, source, source_key), _below(common, target, target_key))
        return
    copy_from = getattr(target, "copy_from", None)
    if copy_from is not None and type(source) is type(target) and source.options == target.options:
        copy_from(source, source_key, target_key)  # from another bucket
        return
    size = source.head(source_key).size
    with target.open_writer(target_key) as writer:
        writer.copy_range(source, source_key, 0, size)


def _common_root(source: ObjectStore, target: ObjectStore) -> str | None:
    """A root above both stores, at which one store can serve both; None if they have no such root.

    Buckets of the same name on different servers are distinguished by their options.
    """
    if source.is_local and target.is_local:
        return "/"
    parts = [store.data_root.split("/") for store in (source, target)]
    # scheme, nothing, bucket
    heads = [each[:3] for each in parts]
    if source.options != target.options or heads[0] != heads[1] or any(len(each) <= 3 for each in parts):
        return None
    return "/".join(heads[0])


def _below(common: str, store: ObjectStore, key: str) -> str:
    return f"{unescaped_root(store.data_root).removeprefix(common).strip('/')}/{key}"
