"""Delete the data files, or index segments, that a write left without a commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike

from lance_core.arguments import checked
from lance_core.errors import InvalidInputError
from lance_core.file.container import blob_folder
from lance_core.store import open_store
from lance_core.table.paths import DATA_PREFIX, INDICES_PREFIX, data_key


@checked
def delete_uncommitted_files(
    uri: str | PathLike[str],
    *,
    file_prefix: str,
    keep: Collection[str] = (),
    index_segments: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Delete the data files of one write, except those that its commit uses; or its index segments.

    Attempts of a writer that was killed leave files that nobody else knows of. Only the caller can know that no commit
    will refer to them: the write is over, and its outcome is known.

    Args:
        uri: The dataset's root.
        file_prefix: Start of the names of the write's files (`FragmentWriter`), at least 16 characters, so that no
            other write shares it by chance.
        keep: Names of files to keep: `DataFile.path` of the committed fragments; of index segments, the `uuid` as a
            string.
        index_segments: Delete index segments instead of data files: those whose `uuid`, as a string, starts with
            `file_prefix`.
        storage_options: Credentials and options of the storage, under object_store's names.

    Returns:
        The number of files that were deleted.

    Raises:
        InvalidInputError: The prefix is too short.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> writer = lance.FragmentWriter("t.lance", table.schema, file_prefix="0" * 32)
        >>> writer.write(pa.table({"id": [4]}))
        >>> fragments = writer.finish()
        >>> lance.delete_uncommitted_files("t.lance", file_prefix="0" * 32)
        1
    """
    if len(file_prefix) < 16:
        raise InvalidInputError(
            f"file_prefix {file_prefix!r} is too short to distinguish one write from all others; it needs at least 16 "
            "characters"
        )
    store = open_store(uri, storage_options)
    kept_keys = set[str]() if index_segments else {data_key(name) for name in keep}
    folders = (
        tuple(f"{INDICES_PREFIX}{name}/" for name in keep) if index_segments else tuple(map(blob_folder, kept_keys))
    )
    folder = INDICES_PREFIX if index_segments else DATA_PREFIX
    keys = (meta.key for meta in store.list_owned(folder + file_prefix))
    leftovers = [key for key in keys if key not in kept_keys and not key.startswith(folders)]
    for key in leftovers:
        store.delete(key)
    return len(leftovers)
