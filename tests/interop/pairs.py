"""Two copies of one table, one changed by us and one by pylance, and what must be equal afterwards."""

import shutil

import lance
import pyarrow as pa

import lance_core
from lance_core.commit.versions import load_latest, load_transaction
from lance_core.errors import LanceError
from lance_core.store import open_store


class Pair:
    """Copies of a table, one for each library.

    Args:
        folder: Where they lie, as `ours` and `theirs`.
        rows: What is in them.
        options: For `write_dataset`.
    """

    def __init__(self, folder, rows: pa.Table, **options):
        self.uris = {"ours": str(folder / "ours"), "theirs": str(folder / "theirs")}
        # Both begin as the same bytes: written by one library, copied for the other.
        lance.write_dataset(rows, self.uris["theirs"], **options)
        shutil.copytree(self.uris["theirs"], self.uris["ours"])
        self.ours = lance_core.dataset(self.uris["ours"])
        self.theirs = lance.dataset(self.uris["theirs"])

    def take_over(self, source: str) -> None:
        """Go on with one of the copies, `ours` or `theirs`, on both sides: each library then changes it."""
        (other,) = self.uris.keys() - {source}
        shutil.rmtree(self.uris[other])
        shutil.copytree(self.uris[source], self.uris[other])
        self.ours = lance_core.dataset(self.uris["ours"])
        self.theirs = lance.dataset(self.uris["theirs"])

    def run(self, verb, *, check=True):
        """Run `verb(dataset, library)` on both; they must give equal results, or both raise."""
        outcomes = []
        for handle, library in ((self.ours, lance_core), (self.theirs, lance)):
            try:
                outcomes.append(("result", verb(handle, library)))
            except Exception as error:  # noqa: BLE001 - any error is compared
                outcomes.append(("error", error))
        (ours_kind, ours), (theirs_kind, theirs) = outcomes
        assert ours_kind == theirs_kind, f"ours: {ours!r}, theirs: {theirs!r}"
        if ours_kind == "result":
            assert ours == theirs
        else:
            assert isinstance(ours, LanceError), repr(ours)
        if check:
            self.check()
        return ours

    def check(self):
        """Rows and metadata are equal, whoever reads which copy."""
        read = [
            library.dataset(uri).to_table(with_row_id=True)
            for uri in self.uris.values()
            for library in (lance_core, lance)
        ]
        rows = [sorted_rows(table) for table in read]
        assert rows[0] == rows[1], "ours, read by both"
        assert rows[2] == rows[3], "theirs, read by both"
        columns = [name for name in read[0].column_names if name != "_rowid" or self.ours.has_stable_row_ids]
        assert sorted_rows(read[0].select(columns)) == sorted_rows(read[2].select(columns))
        assert read[0].schema == read[2].schema
        ours, theirs = (described(uri) for uri in self.uris.values())
        for key in ours:
            assert ours[key] == theirs[key], f"{key}: ours {ours[key]}, theirs {theirs[key]}"
        assert lance.dataset(self.uris["ours"]).validate() is None


def sorted_rows(table: pa.Table) -> list[str]:
    """The rows in an order of their own: what is merged may come in any."""
    return sorted(map(repr, table.to_pylist()))


def described(uri: str) -> dict:
    """What a commit left, but for names of files and times."""
    store = open_store(uri)
    manifest = load_latest(store)
    transaction = load_transaction(store, manifest)
    return {
        "version": manifest.version,
        "operation": _operation(transaction),
        "read_version": transaction.read_version,
        "fragments": [_fragment(fragment) for fragment in manifest.fragments],
        "flags": (manifest.reader_flags, manifest.writer_flags),
        "fields": [
            (n.id, parent, n.name, n.logical_type, n.nullable, n.metadata) for n, parent in manifest.schema.walk()
        ],
        "ids": (manifest.max_fragment_id, manifest.next_row_id, manifest.max_allocated_field_id),
        "config": (manifest.config, manifest.table_metadata, manifest.schema.metadata),
        "indices": sorted((i.name, i.fields, sorted(i.covered_fragments() or ())) for i in manifest.indices),
        "bases": len(manifest.base_paths),
    }


def _fragment(fragment) -> tuple:
    return (
        fragment.id,
        fragment.physical_rows,
        fragment.num_deleted_rows,
        [(file.fields, file.column_indices, file.base_id) for file in fragment.files],
        None if fragment.deletion_file is None else fragment.deletion_file.file_type,
        fragment.row_ids is not None,
        versions(fragment.created_at_versions),
        versions(fragment.last_updated_at_versions),
    )


def versions(data: bytes | None) -> list[int] | None:
    """Versions of the rows, in an order of their own."""
    from lance_core.table.rowids import decode_versions

    return None if data is None else sorted(decode_versions(data).tolist())


def _operation(transaction) -> tuple:
    operation = transaction.operation
    names = ("predicate", "update_mode", "preserves_nullability")
    said = {name: getattr(operation, name) for name in names if hasattr(operation, name)}
    for name in (
        "fields_modified",
        "fields_for_preserving_frag_bitmap",
        "removed_fragment_ids",
        "deleted_fragment_ids",
    ):
        if hasattr(operation, name):
            said[name] = sorted(getattr(operation, name))
    for name in ("updated_fragments", "new_fragments"):
        said[name] = sorted((f.id, f.physical_rows, f.num_deleted_rows) for f in getattr(operation, name, ()))
    if not getattr(operation, "new_fragments", ()):
        # Means nothing then, and pylance's ways to carry out a merge differ in it.
        said.pop("fields_for_preserving_frag_bitmap", None)
    return operation.name, said
