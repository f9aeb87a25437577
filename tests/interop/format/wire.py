"""Manifests as messages: read from files, and changed there, as other libraries might have written them."""

import struct
from pathlib import Path

from lance_core._proto import table_pb2, transaction_pb2
from lance_core.table.manifest.manifest import message_range


def manifest_paths(root) -> list[Path]:
    """The manifest files below a root, oldest version first."""
    return sorted(Path(root, "_versions").glob("*.manifest"), reverse=True)


def read_manifest(path) -> table_pb2.Manifest:
    """The message of a manifest file."""
    view = memoryview(Path(path).read_bytes())
    start, end = message_range(view)
    return table_pb2.Manifest.FromString(bytes(view[start:end]))


def latest_message(root) -> table_pb2.Manifest:
    """The message of the latest version."""
    return read_manifest(manifest_paths(root)[-1])


def edit_manifest(path, change) -> None:
    """Let `change(message)` change the message of a manifest file."""
    path = Path(path)
    data = path.read_bytes()
    start, end = message_range(memoryview(data))
    message = table_pb2.Manifest.FromString(data[start:end])
    change(message)
    body = message.SerializeToString()
    path.unlink()  # a hard link elsewhere keeps the old bytes
    path.write_bytes(data[: start - 4] + struct.pack("<I", len(body)) + body + data[end:])


def edit_latest(root, change) -> None:
    """The same with the latest version's manifest."""
    edit_manifest(manifest_paths(root)[-1], change)


def latest_transaction(root) -> transaction_pb2.Transaction:
    """The transaction file of the latest version."""
    name = latest_message(root).transaction_file
    return transaction_pb2.Transaction.FromString(Path(root, "_transactions", name).read_bytes())
