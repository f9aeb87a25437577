"""Operations that are built by hand and do not fit the table: what pylance rejects is rejected, and nothing is broken.

Each operation is built and committed by each library on a copy of its own. An operation that this library accepts leaves a
table that both libraries read alike; one that it rejects leaves the table as it was.
"""

import copy
import shutil

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("st", pa.struct([("a", pa.int32()), ("b", pa.int32())])),
    ]
)


@pytest.fixture(scope="module", params=[("2.2", False), ("2.2", True), ("2.0", False), ("0.1", False)], ids=str)
def original(request, tmp_path_factory):
    """Three fragments of four rows, one of which is deleted."""
    version, stable = request.param
    uri = str(tmp_path_factory.mktemp("original") / "t.lance")
    for piece in range(3):
        rows = pa.table(
            {
                "id": range(piece * 4, piece * 4 + 4),
                "s": ["x", None, "y", "z"],
                "st": [{"a": number, "b": number} for number in range(4)],
            },
            schema=SCHEMA,
        )
        lance.write_dataset(
            rows,
            uri,
            mode="append" if piece else "create",
            data_storage_version=version,
            enable_stable_row_ids=stable,
        )
    lance.dataset(uri).delete("id = 5")
    return uri


def changed(thing, **values):
    thing = copy.copy(thing)
    for name, value in values.items():
        setattr(thing, name, value)
    return thing


def of_fields(fragment, keep=lambda field: field >= 0, number=lambda field: field):
    """A fragment whose files have only some fields, under other numbers."""
    files = []
    for file in fragment.files:
        places = [place for place, field in enumerate(file.fields) if keep(field)]
        columns = [file.column_indices[place] for place in places] if file.column_indices else []
        files.append(changed(file, fields=[number(file.fields[place]) for place in places], column_indices=columns))
    return changed(fragment, files=files)


SCHEMAS = {
    "same": lambda s: s,
    "reversed": lambda s: pa.schema([s.field(2), s.field(1), s.field(0)]),
    "first dropped": lambda s: pa.schema([s.field(1), s.field(2)]),
    "last dropped": lambda s: pa.schema([s.field(0), s.field(1)]),
    "another type": lambda s: s.set(1, pa.field("s", pa.int32())),
    "a wider type": lambda s: s.set(1, pa.field("s", pa.large_string())),
    "NOT NULL": lambda s: s.set(1, pa.field("s", pa.string(), nullable=False)),
    "nullable": lambda s: s.set(0, pa.field("id", pa.int64())),
    "renamed": lambda s: s.set(1, pa.field("z", pa.string())),
    "a new column": lambda s: s.append(pa.field("n", pa.int32())),
    "a new column that is NOT NULL": lambda s: s.append(pa.field("n", pa.int32(), nullable=False)),
    "another type in a struct": lambda s: s.set(2, pa.field("st", pa.struct([("a", pa.int32()), ("b", pa.string())]))),
    "a struct as a leaf": lambda s: s.set(2, pa.field("st", pa.int64())),
}
FRAGMENTS = {
    "same": lambda f: f,
    "more rows": lambda f: [changed(f[0], physical_rows=9), *f[1:]],
    "fewer rows": lambda f: [changed(f[0], physical_rows=2), *f[1:]],
    "one lost": lambda f: f[1:],
    "one twice": lambda f: [f[0], *f],
    "no files": lambda f: [changed(f[0], files=[]), *f[1:]],
    "a new id": lambda f: [*f, changed(f[0], id=77)],
    "reversed": lambda f: f[::-1],
    "none": lambda f: f[:0],
    "a column lost": lambda f: [of_fields(f[0], lambda field: field != 1), *f[1:]],
    "the key lost": lambda f: [of_fields(f[0], lambda field: field != 0), *f[1:]],
}
NEW = {
    "same": lambda f: [changed(f[0], id=0)],
    "an id in use": lambda f: [f[1]],
    "no files": lambda f: [changed(f[0], id=0, files=[])],
    "the key lost": lambda f: [changed(of_fields(f[0], lambda field: field != 0), id=0)],
    "unknown fields": lambda f: [changed(of_fields(f[0], number=lambda field: field + 50), id=0)],
}
GROUPS = {
    "same": lambda f: [(f[:1], [changed(f[0], id=0)])],
    "fewer rows": lambda f: [(f[:2], [changed(f[0], id=0)])],
    "more rows": lambda f: [(f[:1], [changed(f[0], id=0, physical_rows=40)])],
    "nothing new": lambda f: [(f[:1], [])],
    "nothing old": lambda f: [([], [changed(f[0], id=0)])],
    "one twice": lambda f: [(f[:1], [changed(f[0], id=0)])] * 2,
    "one unknown": lambda f: [([changed(f[0], id=99)], [changed(f[0], id=100)])],
    "no files": lambda f: [(f[:1], [changed(f[0], id=0, files=[])])],
}


def update(library, **arguments):
    fields = ("removed_fragment_ids", "updated_fragments", "new_fragments", "fields_modified")
    empty = {name: [] for name in (*fields, "fields_for_preserving_frag_bitmap")}
    return library.LanceOperation.Update(**{**empty, "update_mode": "rewrite_rows", **arguments})


def operations(library, table):
    """All operations, by name."""
    kinds, fragments = library.LanceOperation, [one.metadata for one in table.get_fragments()]
    file = fragments[1].files[0]
    group = kinds.DataReplacementGroup
    found = {
        "restore": lambda: kinds.Restore(99),
        "replace files of no fragment": lambda: kinds.DataReplacement([group(99, file)]),
        "replace by a file without fields": lambda: kinds.DataReplacement(
            [group(0, changed(file, fields=[], column_indices=[]))]
        ),
    }
    for name, change in SCHEMAS.items():
        schema = change(table.schema)
        found[f"merge: {name}"] = lambda schema=schema: kinds.Merge(fragments, schema)
        found[f"project: {name}"] = lambda schema=schema: kinds.Project(schema)
    for name, change in FRAGMENTS.items():
        found[f"merge fragments: {name}"] = lambda c=change: kinds.Merge(c(fragments), table.lance_schema)
        found[f"delete: {name}"] = lambda c=change: kinds.Delete(c(fragments)[:1], [], "by hand")
        found[f"update: {name}"] = lambda c=change: update(library, updated_fragments=c(fragments)[:1])
    for name, change in NEW.items():
        found[f"append: {name}"] = lambda c=change: kinds.Append(c(fragments))
        found[f"update new: {name}"] = lambda c=change: update(library, new_fragments=c(fragments))
        found[f"overwrite: {name}"] = lambda c=change: kinds.Overwrite(table.lance_schema, c(fragments))
    for name, change in GROUPS.items():
        found[f"rewrite: {name}"] = lambda c=change: kinds.Rewrite(
            [kinds.RewriteGroup(old_fragments=old, new_fragments=new) for old, new in c(fragments)], []
        )
    return found


def outcome(library, original, uri, name):
    """Whether a library commits an operation on a copy of the table; None if it does not even build it."""
    shutil.copytree(original, uri)
    table = library.dataset(uri)
    try:
        operation = operations(library, table)[name]()
    except (ValueError, TypeError, LanceError):
        return False
    try:
        library.LanceDataset.commit(uri, operation, read_version=table.version)
    except LanceError:
        return False
    except BaseException:
        if library is lance_core:
            raise
        return False
    return True


def rows(library, uri):
    return sorted(map(str, library.dataset(uri).to_table().to_pylist()))


def names():
    kinds = (
        ("merge", "project"),
        ("merge fragments", "delete", "update"),
        ("append", "update new", "overwrite"),
        ("rewrite",),
    )
    tables = SCHEMAS, FRAGMENTS, NEW, GROUPS
    found = ["restore", "replace files of no fragment", "replace by a file without fields"]
    return found + [
        f"{kind}: {name}" for own, table in zip(kinds, tables, strict=True) for kind in own for name in table
    ]


@pytest.mark.variants(85)
@pytest.mark.filterwarnings("ignore:Passing a pyarrow.Schema")
@pytest.mark.parametrize("name", names())
def test_what_pylance_rejects_is_rejected_and_nothing_breaks(original, tmp_path, name):
    before = rows(lance, original)
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    is_taken_by_pylance = outcome(lance, original, theirs, name)
    if not outcome(lance_core, original, ours, name):
        assert rows(lance, ours) == rows(lance_core, ours) == before
        assert lance_core.dataset(ours).version == lance_core.dataset(original).version
        return
    assert is_taken_by_pylance
    found = rows(lance_core, ours)
    assert rows(lance, ours) == found
    assert found == rows(lance, theirs)
