"""Manifests of random histories of all operations: spliced ones beside rebuilt ones; pylance reads them."""

import random

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core._proto import table_pb2
from lance_core.table.fragment_list import FragmentRun
from lance_core.table.transaction import Transaction

STEPS = 8


def rows(chance, count=6):
    ids = [chance.randrange(200) for _ in range(count)]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})


def upsert(table, chance):
    source = rows(chance).group_by("id").aggregate([("name", "min")]).rename_columns(["id", "name"])
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def new_column(table, chance):
    table.add_columns({f"c{table.version}": "id * 2"})


def drop_column(table, chance):
    added = [name for name in table.schema.names if name.startswith("c")]
    if added:
        table.drop_columns(added[:1])


def restore(table, chance):
    lance_core.dataset(table.uri, version=chance.choice(table.versions())["version"]).restore()


def by_pylance(table, chance):
    lance.dataset(table.uri).delete(f"id % 7 = {chance.randrange(7)}")


def append(table, chance):
    new = rows(chance)
    lance_core.write_dataset(
        new.append_column("x", new["id"]).select(["id", "name"]), table.uri, mode="append", max_rows_per_file=3
    )


VERBS = {
    "append": append,
    "delete": lambda table, chance: table.delete(f"id % 5 = {chance.randrange(5)}"),
    "update": lambda table, chance: table.update({"name": "'u'"}, where=f"id % 4 = {chance.randrange(4)}"),
    "upsert": upsert,
    "new column": new_column,
    "drop column": drop_column,
    "compact": lambda table, _: table.optimize.compact_files(),
    "restore": restore,
    "overwrite": lambda table, chance: lance_core.write_dataset(
        rows(chance, 9), table.uri, mode="overwrite", max_rows_per_file=2
    ),
    "index": lambda table, _: table.create_scalar_index("id", "BTREE", replace=True),
    "config": lambda table, chance: table.update_config({"key": str(chance.random())}),
    "pylance": by_pylance,
}


def rebuild(run, changes, added):
    fragments = [changes.get(place, one) for place, one in enumerate(run)]
    return FragmentRun.of([*(one for one in fragments if one is not None), *added])


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_spliced_manifests_equal_rebuilt_ones(tmp_path, monkeypatch, seed, stable):
    apply, spliced, applied = Transaction.apply, FragmentRun.spliced, set()

    def applied_twice(transaction, *arguments):
        found = apply(transaction, *arguments)
        with monkeypatch.context() as patched:
            patched.setattr(FragmentRun, "spliced", rebuild)
            rebuilt = apply(transaction, *arguments)
        assert FragmentRun.spliced is spliced
        assert found.to_bytes() == rebuilt.to_bytes()
        applied.add(transaction.operation.name)
        return found

    monkeypatch.setattr(Transaction, "apply", applied_twice)
    chance = random.Random(seed)
    uri = str(tmp_path / "t")
    lance_core.write_dataset(rows(chance, 12), uri, max_rows_per_file=2, enable_stable_row_ids=stable)
    for verb in [*VERBS, *chance.choices(list(VERBS), k=STEPS)]:
        VERBS[verb](lance_core.dataset(uri), chance)
        ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
        assert ours.version == theirs.version
        assert [one.fragment_id for one in ours.get_fragments()] == [one.fragment_id for one in theirs.get_fragments()]
        assert ours.to_table().to_pylist() == theirs.to_table().to_pylist()
    assert applied >= {
        "Append",
        "Delete",
        "Update",
        "Merge",
        "Project",
        "Rewrite",
        "Restore",
        "Overwrite",
        "CreateIndex",
    }


def test_fields_of_newer_writers_stay_in_fragments(tmp_path):
    path = tmp_path / "t"
    uri = str(path)
    lance_core.write_dataset(pa.table({"id": [1, 2, 3, 4]}), uri, max_rows_per_file=2)
    (file,) = path.glob("_versions/*.manifest")
    data = file.read_bytes()
    at = int.from_bytes(data[-16:-8], "little")
    message = table_pb2.Manifest.FromString(data[at + 4 : -16])
    for fragment in message.fragments:
        fragment.MergeFromString(b"\xfa\x07\x03new")  # field 127 with bytes
    body = message.SerializeToString()
    file.write_bytes(data[:at] + len(body).to_bytes(4, "little") + body + data[-16:])

    table = lance_core.dataset(uri)
    table.insert(pa.table({"id": [5]}))
    table.delete("id = 3")
    kept = [raw.endswith(b"\xfa\x07\x03new") for raw in lance_core.dataset(uri).snapshot.manifest.fragments.raw]
    assert kept == [True, False, False]
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [1, 2, 4, 5]
