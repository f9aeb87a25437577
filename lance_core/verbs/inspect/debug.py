"""Print manifests, schemas, fragments and transactions for debugging, in the layout of pylance's `lance.debug`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from lance_core.arguments import checked
from lance_core.commit.versions import list_versions, load_manifest, load_transaction
from lance_core.errors import VersionNotFoundError
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.pylance_types.fragments import FragmentMetadata

_STEP = "    "


@checked
def format_schema(dataset: Handle) -> str:
    """The columns of a dataset, with the ids of their fields."""
    return _indent(dataset.snapshot.manifest.schema)


@checked
def format_manifest(dataset: Handle) -> str:
    """The manifest of the dataset's version."""
    return _indent(dataset.snapshot.manifest)


@checked
def format_fragment(fragment: FragmentMetadata, dataset: Handle) -> str:
    """A fragment, and for each of its files the fields of the dataset that are in the file."""
    record = fragment.to_record()
    lines = [_indent(record)]
    lines += [
        f"{file.path}: {_indent(dataset.snapshot.manifest.schema.only_ids(set(file.fields)))}" for file in record.files
    ]
    return "\n".join(lines)


@checked
def list_transactions(dataset: Handle, /, max_transactions: int = 10) -> list[str | None]:
    """The transactions of the latest versions up to this one, newest first; None where a version records none."""
    store = dataset.snapshot.store
    transactions: list[str | None] = []
    for number in reversed([number for number in list_versions(store) if number <= dataset.version]):
        if len(transactions) == max_transactions:
            break
        try:
            transaction = load_transaction(store, load_manifest(store, number))
        except VersionNotFoundError:
            continue  # cleaned up since it was listed
        transactions.append(None if transaction is None else _indent(transaction))
    return transactions


def _indent(record: Any) -> str:
    return "\n".join(_format_lines("", record, ""))


def _format_lines(head: str, value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of a value; the first line begins with `head`."""
    tail = "," if indent else ""
    if is_dataclass(value) and not isinstance(value, type):
        parts = [(f"{field.name}: ", getattr(value, field.name)) for field in fields(value) if field.repr]
        opening, closing = f"{type(value).__name__} {{", "}"
    elif isinstance(value, Mapping):
        parts, opening, closing = [(f"{key!r}: ", item) for key, item in value.items()], "{", "}"
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        parts, opening, closing = [("", item) for item in value], "[", "]"
    else:
        yield f"{indent}{head}{_format_plain(value)}{tail}"
        return
    if not parts:
        yield f"{indent}{head}{opening}{closing}{tail}"
        return
    yield f"{indent}{head}{opening}"
    for name, item in parts:
        yield from _format_lines(name, item, indent + _STEP)
    yield f"{indent}{closing}{tail}"


def _format_plain(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes | memoryview) else repr(value)
