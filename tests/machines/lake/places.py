"""Where a lake can be, and what the machine does there past both libraries: moving time, tearing files."""

import datetime as dt
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moto.s3.models import s3_backends

from lance_core.commit.versions import list_versions, load_manifest
from lance_core.store import ObjectStore, open_store
from lance_core.store import memory as memory_module
from tests.machines.lake.server import Server, new_bucket

KINDS = ("disk", "memory", "s3")


@dataclass
class Place:
    """A place of tables.

    Attributes:
        kind: One of `KINDS`.
        root: Where the tables are.
        server: The server, for S3.
    """

    kind: str
    root: str
    server: Server | None = None

    @property
    def is_shared(self) -> bool:
        """Whether pylance can read and write there."""
        return self.kind != "memory"

    def options(self, role: str = "full") -> dict[str, str]:
        """Storage options."""
        return {} if self.server is None else self.server.options(role)

    def store(self, uri: str) -> ObjectStore:
        """Our store of a URI."""
        return open_store(uri, self.options())

    def move_time(self, uris: list[str], days: int) -> None:
        """Let everything in these tables be older by some days."""
        seconds = days * 86400
        for uri in uris:
            _age_manifests(self.store(uri), seconds)
        if self.kind == "disk":
            for folder, _, names in os.walk(self.root):
                for name in names:
                    path = Path(folder, name)
                    status = path.stat()
                    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))
        elif self.kind == "memory":
            objects = memory_module._objects
            for name, (data, modified, e_tag) in list(objects.items()):
                if name.startswith(self.root):
                    objects[name] = (data, modified - seconds, e_tag)
        else:
            bucket = self.root.removeprefix("s3://").split("/")[0]
            for key in list(s3_backends["123456789012"]["aws"].buckets[bucket].keys.values()):
                key.last_modified -= dt.timedelta(days=days)


def _age_manifests(store: ObjectStore, seconds: int) -> None:
    """Write the time of commit in the manifests of a table and of its branches again; nothing else changes."""
    roots = {""} | {
        meta.key[: meta.key.index("_versions/")] for meta in store.list("tree/") if "/_versions/" in meta.key
    }
    for prefix in roots:
        line = store if not prefix else open_store(f"{store.root}/{prefix}", store.options)
        for version in list_versions(line):
            manifest = load_manifest(line, version)
            assert manifest.location is not None
            old = manifest.timestamp_ns // 10**9
            data = bytes(line.get(manifest.location.key))
            before, after = b"\x08" + _varint(old), b"\x08" + _varint(old - seconds)
            line.put(manifest.location.key, data.replace(before, after))


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


@contextmanager
def opened(kind: str, server: Server | None) -> Iterator[Place]:
    """A new place, which is removed afterwards."""
    if kind == "disk":
        folder = tempfile.mkdtemp(prefix="lake-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        try:
            yield Place(kind, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    elif kind == "memory":
        place = Place(kind, f"memory://lake-{uuid.uuid4().hex}")
        try:
            yield place
        finally:
            for name in [name for name in memory_module._objects if name.startswith(place.root)]:
                del memory_module._objects[name]
    else:
        assert server is not None
        yield Place(kind, f"s3://{new_bucket(server)}", server)
