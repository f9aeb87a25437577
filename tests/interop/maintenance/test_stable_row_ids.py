"""`migrate_to_stable_row_ids`: the rows, the indices and the writers of a table that gets stable row ids."""

import threading
from contextlib import nullcontext
from pathlib import Path
from random import Random

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core import maintenance
from lance_core.cli.app import cli
from lance_core.errors import InvalidInputError, RetryableConflictError, UnsupportedError
from lance_core.table.reuse import DEFER_KEY
from tests.interop.pairs import sorted_rows

BOTH = pytest.mark.parametrize("library", [lance_core, lance], ids=["ours", "theirs"])
FILTERS = ["id = 301", "id > 540", "p = 'p1'", "p = 'new'", "array_has(l, 2)", "z < 40", "b = 'k77'", "p is null"]
KINDS = {
    "id": "BTREE",
    "p": "BITMAP",
    "l": "LABEL_LIST",
    "z": "ZONEMAP",
    "b": "BLOOMFILTER",
    "n": "NGRAM",
    "w": "INVERTED",
}


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    vectors = np.random.default_rng(start).random((stop - start) * 8, dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": [f"p{i % 5}" if i % 9 else None for i in ids],
            "l": [[i % 3, i % 4] for i in ids],
            "z": pa.array(ids, pa.int64()),
            "b": [f"k{i}" for i in ids],
            "n": [f"ng{i} abc" for i in ids],
            "w": [f"word{i % 7} x" for i in ids],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
        }
    )


@pytest.fixture
def uri(tmp_path) -> str:
    """Three fragments with deletions and moved rows, and an index of each kind, all by pylance."""
    place = str(tmp_path / "t.lance")
    for start in (0, 200, 400):
        lance.write_dataset(rows(start, start + 200), place, mode="append")
    dataset = lance.dataset(place)
    dataset.delete("id % 50 = 3")
    for column, kind in KINDS.items():
        dataset.create_scalar_index(column, kind)
    dataset.create_index("v", "IVF_FLAT", num_partitions=2)
    dataset.update({"p": "'new'"}, where="id % 20 = 7")
    return place


def check(uri: str) -> None:
    """Both libraries read the same, with and without indices, by ids that are unique."""
    theirs, ours = lance.dataset(uri), lance_core.dataset(uri)
    assert theirs.validate() is None
    ours.validate()
    columns = [*theirs.schema.names, "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    tables = [library.dataset(uri).to_table(columns=columns) for library in (lance, lance_core)]
    assert sorted_rows(tables[0]) == sorted_rows(tables[1])
    ids = tables[0]["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids) == theirs.count_rows()
    for condition in FILTERS:
        plain = sorted_rows(theirs.scanner(filter=condition, use_scalar_index=False).to_table())
        assert sorted_rows(theirs.to_table(filter=condition)) == plain, condition
        assert sorted_rows(ours.to_table(filter=condition)) == plain, condition
    grams = sorted_rows(theirs.scanner(filter="contains(n, 'ng19')", use_scalar_index=False).to_table())
    assert sorted_rows(theirs.to_table(filter="contains(n, 'ng19')")) == grams
    words = theirs.to_table(full_text_query="word3", columns=["id", "_score"])["id"].to_pylist()
    assert sorted(words) == sorted(theirs.to_table(filter="w like 'word3%'")["id"].to_pylist())
    nearest = {"column": "v", "q": np.full(8, 0.5, np.float32), "k": 10}
    found = [
        theirs.to_table(nearest={**nearest, **how}, columns=["id", "_distance"])
        for how in ({"nprobes": 2}, {"use_index": False})
    ]
    assert sorted(found[0]["id"].to_pylist()) == sorted(found[1]["id"].to_pylist())


def merge(dataset) -> None:
    clauses = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    clauses.execute(rows(560, 640))


CHANGES = {
    "update": lambda dataset: dataset.update({"p": "'p1'"}, where="id % 20 = 9"),
    "delete": lambda dataset: dataset.delete("id % 20 = 11"),
    "merge": merge,
    "append": lambda dataset: dataset.insert(rows(1000, 1020)),
    "compact": lambda dataset: dataset.optimize.compact_files(),
    "optimize": lambda dataset: dataset.optimize.optimize_indices(),
    "index": lambda dataset: dataset.create_scalar_index("z", "BTREE", name="z_tree"),
    "index of ids": lambda dataset: dataset.create_scalar_index("p", "BITMAP", name="p_again"),
    "config": lambda dataset: dataset.update_config({"a": "b"}),
    "add column": lambda dataset: dataset.add_columns({"x": "id * 2"}),
    "drop column": lambda dataset: dataset.drop_columns(["b"]),
    "tag": lambda dataset: dataset.tags.create("t", dataset.version),
}


class TestResult:
    def test_rows_and_indices_stay(self, uri):
        before = lance.dataset(uri).to_table()
        addresses = dict(
            zip(
                before["id"].to_pylist(),
                lance.dataset(uri).to_table(columns=[], with_row_id=True)["_rowid"].to_pylist(),
                strict=True,
            )
        )
        indices = {index["uuid"] for index in lance.dataset(uri).list_indices()}
        dataset = lance_core.dataset(uri)
        version = dataset.version
        done = dataset.migrate_to_stable_row_ids(transaction_properties={"a": "b"})
        assert (done.version, done.is_new, dataset.version) == (version + 1, True, version + 1)
        assert set(done.indices_kept) == {f"{name}_idx" for name in [*KINDS, "v"]}
        assert done.indices_rebuilt == ()
        assert lance.dataset(uri).has_stable_row_ids
        assert {index["uuid"] for index in lance.dataset(uri).list_indices()} == indices
        assert dataset.read_transaction(done.version).transaction_properties["a"] == "b"
        after = lance.dataset(uri).to_table(
            columns=["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
        )
        assert dict(zip(after["id"].to_pylist(), after["_rowid"].to_pylist(), strict=True)) == addresses
        assert set(after["_row_created_at_version"].to_pylist()) == {version}
        assert set(after["_row_last_updated_at_version"].to_pylist()) == {version}
        assert lance.dataset(uri).to_table() == before
        check(uri)

    def test_again(self, uri):
        lance_core.dataset(uri).migrate_to_stable_row_ids()
        dataset = lance_core.dataset(uri)
        version = dataset.version
        done = dataset.migrate_to_stable_row_ids()
        assert (done.version, done.is_new, dataset.version) == (version, False, version)

    def test_no_rows(self, tmp_path):
        place = str(tmp_path / "t.lance")
        lance.write_dataset(rows(0, 5).schema.empty_table(), place)
        lance_core.dataset(place).migrate_to_stable_row_ids()
        lance.dataset(place).insert(rows(0, 5))
        assert lance.dataset(place).to_table(columns=[], with_row_id=True)["_rowid"].to_pylist() == list(range(5))

    @pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
    def test_file_versions(self, tmp_path, version):
        place, table = str(tmp_path / "t.lance"), pa.table({"id": range(100), "s": ["a", None] * 50})
        for start in (0, 50):
            lance.write_dataset(table.slice(start, 50), place, mode="append", data_storage_version=version)
        lance_core.dataset(place).migrate_to_stable_row_ids()
        for library in (lance, lance_core):
            library.dataset(place).update({"s": "'b'"}, where="id % 3 = 0")
            library.dataset(place).optimize.compact_files()
        ids = lance.dataset(place).to_table(columns=["id", "_rowid"]).sort_by("id")["_rowid"].to_pylist()
        assert ids == [*range(50), *range(1 << 32, (1 << 32) + 50)]

    @pytest.mark.variants(4)
    @BOTH
    @pytest.mark.parametrize("change", CHANGES)
    def test_change_afterwards(self, uri, library, change):
        lance_core.dataset(uri).migrate_to_stable_row_ids()
        if change == "optimize" and library is lance_core:
            library.dataset(uri).optimize.optimize_indices(index_names=["id_idx", "p_idx"])
        else:
            CHANGES[change](library.dataset(uri))
        if change != "drop column":
            check(uri)
        assert lance.dataset(uri).has_stable_row_ids

    def test_changes_are_exact_afterwards(self, uri):
        dataset = lance_core.dataset(uri)
        begin = dataset.migrate_to_stable_row_ids().version
        lance.dataset(uri).update({"p": "'x'"}, where="id < 10")
        lance.dataset(uri).optimize.compact_files()
        lance.dataset(uri).insert(rows(900, 903))
        dataset = lance_core.dataset(uri)
        delta = dataset.delta(compared_against=begin)
        live = [i for i in range(10) if i % 50 != 3]
        assert sorted(delta.get_updated_rows().read_all()["id"].to_pylist()) == live
        assert delta.get_inserted_rows().read_all()["id"].to_pylist() == [900, 901, 902]

    def test_changes_across_the_migration(self, uri):
        """Inserted and deleted rows are followed from before it; updates are not, as the versions before lack ids."""
        begin = lance_core.dataset(uri).version
        lance.dataset(uri).insert(rows(900, 903))
        lance_core.dataset(uri).migrate_to_stable_row_ids()
        lance.dataset(uri).delete("id in (5, 901)")
        lance.dataset(uri).optimize.compact_files()
        lance.dataset(uri).insert(rows(910, 912))
        delta = lance_core.dataset(uri).delta(compared_against=begin)
        assert sorted(delta.get_inserted_rows().read_all()["id"].to_pylist()) == [900, 902, 910, 911]
        with pytest.raises(UnsupportedError, match=r"in both versions.*migrate_to_stable_row_ids"):
            delta.get_updated_rows()
        lance.dataset(uri).update({"p": "'x'"}, where="id = 7")
        with pytest.raises(UnsupportedError, match=r"updated rows.*migrate_to_stable_row_ids"):
            lance_core.dataset(uri).delta(compared_against=begin).get_inserted_rows()

    def test_restored_and_migrated_again(self, uri):
        dataset = lance_core.dataset(uri)
        before = dataset.version
        dataset.migrate_to_stable_row_ids()
        ids = sorted_rows(dataset.to_table(columns=["id"], with_row_id=True))
        dataset.insert(rows(900, 910))
        with pytest.raises(OSError, match="stable row ids were enabled after it"):
            lance.dataset(uri, version=before).restore()
        lance_core.dataset(uri).checkout_version(before).restore()
        assert not lance.dataset(uri).has_stable_row_ids
        lance.dataset(uri).insert(rows(910, 920))
        dataset = lance_core.dataset(uri)
        dataset.migrate_to_stable_row_ids()
        assert sorted_rows(dataset.to_table(columns=["id"], filter="id < 900", with_row_id=True)) == ids
        check(uri)


class TestBesideWriters:
    @pytest.mark.variants(4)
    @BOTH
    @pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("tag", "optimize")])
    def test_pending_change_of_an_older_version(self, uri, library, change):
        """It follows, is done again, or is rejected by the library; its rows are never those of other ids."""
        stale = library.dataset(uri)
        lance_core.dataset(uri).migrate_to_stable_row_ids()
        version = lance_core.dataset(uri).version
        outcome = nullcontext()
        if change in ("add column", "drop column") or (library is lance and change == "compact"):
            outcome = pytest.raises(OSError, match=r"Retryable commit conflict|Incompatible transaction")
        with outcome:
            CHANGES[change](stale)
            assert lance.dataset(uri).version > version
        assert lance.dataset(uri).has_stable_row_ids
        if change != "drop column":
            check(uri)

    @pytest.mark.variants(4)
    @BOTH
    @pytest.mark.parametrize("change", CHANGES)
    def test_migration_of_an_older_version(self, uri, library, change):
        stale = lance_core.dataset(uri)
        CHANGES[change](library.dataset(uri))
        if change == "compact" and library is lance_core:
            # It records moves for indices that only pylance builds.
            with pytest.raises(UnsupportedError, match=r"\['n_idx', 'v_idx', 'w_idx'\]"):
                stale.migrate_to_stable_row_ids()
            for column in "nw":
                lance.dataset(uri).create_scalar_index(column, KINDS[column], replace=True)
            lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=2, replace=True)
        stale.migrate_to_stable_row_ids()
        assert stale.version == lance.dataset(uri).version
        if change != "drop column":
            check(uri)

    def test_all_at_once(self, tmp_path):
        place = str(tmp_path / "t.lance")
        lance.write_dataset(rows(0, 20), place)
        errors: list[Exception] = []

        def run(library, number):
            try:
                for i in range(12):
                    start = 1000 * number + 10 * i
                    library.write_dataset(rows(start, start + 10), place, mode="append")
                    if i % 4 == 3:
                        library.dataset(place).update({"p": "'u'"}, where=f"id = {start}")
            except Exception as error:  # noqa: BLE001 - the test shows it
                errors.append(error)

        writers = [
            threading.Thread(target=run, args=(library, i)) for i, library in enumerate((lance, lance_core) * 2, 1)
        ]
        for writer in writers:
            writer.start()
        done = lance_core.dataset(place).migrate_to_stable_row_ids()
        for writer in writers:
            writer.join()
        assert not errors
        assert done.is_new
        table = lance.dataset(place).to_table(columns=["id", "p", "_rowid"])
        assert sorted(table["id"].to_pylist()) == sorted(
            [*range(20), *(1000 * n + i for n in range(1, 5) for i in range(120))]
        )
        assert len(set(table["_rowid"].to_pylist())) == table.num_rows
        assert table["p"].to_pylist().count("u") == 12

    @pytest.mark.parametrize("lacking", [False, True], ids=["in place", "new column"])
    @pytest.mark.parametrize("moves", ["none", "compact", "compact before", "update"])
    def test_pending_columns(self, tmp_path, moves, lacking):
        """Columns that were written for rows of an older version are found where the rows are, or are a conflict."""
        place, name = str(tmp_path / "t.lance"), "n" if lacking else "z"
        for start in (0, 50):
            lance.write_dataset(rows(start, start + 50).select(["id", "z"]), place, mode="append")
        lance.dataset(place).delete("id = 3")
        stale = lance_core.dataset(place)
        values = stale.to_table(["id"], with_row_address=True)
        data = pa.table({"_rowaddr": values["_rowaddr"], name: [-i for i in values["id"].to_pylist()]})
        if moves == "compact before":
            lance.dataset(place).optimize.compact_files()
        lance_core.dataset(place).migrate_to_stable_row_ids()
        if moves == "compact":
            lance.dataset(place).optimize.compact_files()
        if moves == "update":
            lance.dataset(place).update({"id": "id"}, where="id % 2 = 0")
        outcome = pytest.raises(RetryableConflictError) if moves == "update" else nullcontext()
        with outcome:
            stale.write_columns(data, on="_rowaddr")
            table = lance.dataset(place).to_table(columns=["id", name])
            assert table[name].to_pylist() == [-i for i in table["id"].to_pylist()]
            assert table.num_rows == 99
        assert lance.dataset(place).validate() is None

    def test_dropped_and_made_again(self, uri, tmp_path):
        stale = lance_core.dataset(uri)
        lance_core.LanceDataset.drop(uri)
        with pytest.raises(lance_core.errors.DatasetNotFoundError):
            stale.migrate_to_stable_row_ids()


class TestRefs:
    @pytest.mark.variants(3)
    @pytest.mark.parametrize("change", ["update", "delete", "merge", "append", "compact", "add column"])
    def test_branch_from_before_is_promoted(self, uri, change):
        main = lance_core.dataset(uri)
        branch = main.create_branch("b")
        CHANGES[change](branch)
        expected = sorted_rows(lance_core.dataset(uri).checkout_version(("b", None)).to_table())
        main.migrate_to_stable_row_ids()
        main.branches.promote("b")
        assert sorted_rows(lance.dataset(uri).to_table()) == expected
        check(uri)

    def test_branch_is_rejected(self, uri):
        branch = lance_core.dataset(uri).create_branch("b")
        with pytest.raises(InvalidInputError, match=r"works on main, and this is the branch 'b'.*fork it again"):
            branch.migrate_to_stable_row_ids()
        assert branch.version == lance_core.dataset(uri).checkout_version(("b", None)).version

    def test_branch_from_after_is_promoted_with_its_ids(self, uri):
        main = lance_core.dataset(uri)
        main.migrate_to_stable_row_ids()
        branch = main.create_branch("b")
        branch.update({"p": "'moved'"}, where="id = 42")
        lance.dataset(uri).insert(rows(700, 720))
        main.branches.promote("b")
        assert lance.dataset(uri).to_table(filter="p = 'moved'", with_row_id=True)["_rowid"].to_pylist() == [42]
        check(uri)

    def test_tags_clones_and_versions_stay(self, uri, tmp_path):
        main = lance_core.dataset(uri)
        main.tags.create("old", main.version)
        before = sorted_rows(main.to_table(with_row_id=True))
        main.shallow_clone(str(tmp_path / "clone.lance"), main.version)
        main.migrate_to_stable_row_ids()
        clone = lance_core.dataset(str(tmp_path / "clone.lance"))
        assert not clone.has_stable_row_ids
        clone.migrate_to_stable_row_ids()
        lance.dataset(clone.uri).update({"p": "'c'"}, where="id < 5")
        check(clone.uri)
        for library in (lance, lance_core):
            old = library.dataset(uri, version="old")
            assert not old.has_stable_row_ids
            assert sorted_rows(old.to_table(with_row_id=True)) == before


class TestFragmentReuse:
    @BOTH
    def test_indices_are_rebuilt(self, tmp_path, library):
        place = str(tmp_path / "t.lance")
        for start in (0, 100):
            lance.write_dataset(rows(start, start + 100).select(["id", "p", "z"]), place, mode="append")
        for column in ("id", "p", "z"):
            lance.dataset(place).create_scalar_index(column, KINDS[column])
        lance.dataset(place).delete("id % 10 = 3")
        library.dataset(place).optimize.compact_files(defer_index_remap=True)
        assert "__lance_frag_reuse" in {index["name"] for index in lance.dataset(place).list_indices()}
        done = lance_core.dataset(place).migrate_to_stable_row_ids()
        assert set(done.indices_rebuilt) >= {"id_idx", "p_idx"}
        lance.dataset(place).insert(rows(200, 210).select(["id", "p", "z"]))  # pylance writes to no table that has both
        for condition in ("id = 77", "p = 'p1'", "z > 150"):
            plain = lance.dataset(place).scanner(filter=condition, use_scalar_index=False).to_table()
            for reader in (lance, lance_core):
                assert sorted_rows(reader.dataset(place).to_table(filter=condition)) == sorted_rows(plain)

    @BOTH
    @pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
    def test_older_segments_are_rebuilt(self, tmp_path, kind, library):
        place = str(tmp_path / "t.lance")
        for start in (0, 100):
            lance.write_dataset(rows(start, start + 100), place, mode="append")
        lance.dataset(place).create_scalar_index("id", kind)
        lance.dataset(place).optimize.compact_files(defer_index_remap=True)
        for start in (200, 300):
            lance.dataset(place).insert(rows(start, start + 10))
            library.dataset(place).optimize.optimize_indices(num_indices_to_merge=0)
        lance_core.dataset(place).migrate_to_stable_row_ids()
        for reader in (lance, lance_core):
            assert reader.dataset(place).count_rows("id >= 90 and id < 305") == 125

    def test_index_of_another_library(self, tmp_path):
        place = str(tmp_path / "t.lance")
        for start in (0, 100):
            lance.write_dataset(rows(start, start + 100), place, mode="append")
        lance.dataset(place).create_index("v", "IVF_FLAT", num_partitions=2)
        lance.dataset(place).optimize.compact_files(defer_index_remap=True)
        dataset = lance_core.dataset(place)
        with pytest.raises(UnsupportedError, match=r"cannot be rebuilt here: \['v_idx'\].*replace=True"):
            dataset.migrate_to_stable_row_ids()
        lance.dataset(place).create_index("v", "IVF_FLAT", num_partitions=2, replace=True)
        assert dataset.migrate_to_stable_row_ids().indices_kept == ("v_idx",)

    def test_record_that_no_index_needs(self, tmp_path):
        place = str(tmp_path / "t.lance")
        for start in (0, 100):
            lance.write_dataset(rows(start, start + 100), place, mode="append")
        lance.dataset(place).create_scalar_index("id", "BTREE")
        lance.dataset(place).optimize.compact_files(defer_index_remap=True)
        lance.dataset(place).drop_index("id_idx")
        lance_core.dataset(place).migrate_to_stable_row_ids()
        lance.dataset(place).insert(rows(200, 210))
        assert lance.dataset(place).list_indices() == []

    def test_the_table_can_be_compacted_afterwards(self, tmp_path):
        """Our compaction of a table with a full-text index asks pylance, by the configuration, to record moves."""
        place = str(tmp_path / "t.lance")
        for start in (0, 100):
            lance.write_dataset(rows(start, start + 100), place, mode="append")
        lance.dataset(place).add_columns({"words": "CAST(id AS STRING)"})
        lance.dataset(place).create_scalar_index("words", "INVERTED")
        lance_core.dataset(place).optimize.compact_files()
        assert DEFER_KEY in lance_core.dataset(place).config()
        lance.dataset(place).create_scalar_index("words", "INVERTED", replace=True)
        lance_core.dataset(place).migrate_to_stable_row_ids()
        for library in (lance_core, lance):
            lance.dataset(place).delete(f"id % 7 = {len(library.__name__) % 7}")
            removed = library.dataset(place).optimize.compact_files().fragments_removed
            assert removed
        lance_core.dataset(place).update_config({DEFER_KEY: "true"})  # by a writer that knows the table as it was
        lance.dataset(place).delete("id % 5 = 0")
        assert lance_core.dataset(place).optimize.compact_files().fragments_removed


def run_history(uri: str, seed: int) -> None:
    """Change two tables alike, by either library and through handles of any age; one of them is migrated meanwhile."""
    random = Random(seed)
    plain = f"{uri}.plain"
    for place in (uri, plain):
        for start in (0, 40, 80):
            lance.write_dataset(rows(start, start + 40).select(["id", "p", "z"]), place, mode="append")
        for column in ("id", "p", "z"):
            lance.dataset(place).create_scalar_index(column, KINDS[column])
    when, next_key, ids = random.randrange(8), 1000, dict[int, int]()
    for step in range(14):
        library, stale = random.choice([lance, lance_core]), random.random() < 0.3
        verb = random.choice(["append", "delete", "update", "merge", "compact", "optimize", "index"])
        number, next_key = random.randrange(2, 7), next_key + 10
        handles = [library.dataset(place) for place in (uri, plain)]
        if step == when and not stale:
            lance_core.dataset(uri).migrate_to_stable_row_ids()
            handles[0] = library.dataset(uri)
        for handle in handles:
            if step == when and stale and handle is handles[0]:
                if verb == "compact":  # which another version makes void
                    break
                lance_core.dataset(uri).migrate_to_stable_row_ids()
            added = rows(next_key, next_key + 10).select(["id", "p", "z"])
            match verb:
                case "append":
                    handle.insert(added)
                case "delete":
                    handle.delete(f"id % 7 = {number}")
                case "update":
                    handle.update({"p": f"'u{step}'"}, where=f"id % {number} = 0")
                case "merge":
                    source = pa.concat_tables([added, rows(number, number + 5).select(["id", "p", "z"])])
                    clauses = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                    clauses.execute(source)
                case "compact":
                    handle.optimize.compact_files(target_rows_per_fragment=random.choice([60, 500]))
                case "optimize":
                    handle.optimize.optimize_indices()
                case "index":
                    handle.create_scalar_index("p", "BITMAP", replace=True)
        tables = [
            sorted_rows(reader.dataset(place).to_table()) for place in (uri, plain) for reader in (lance, lance_core)
        ]
        assert tables[0] == tables[1] == tables[2] == tables[3], (seed, step, verb)
        for condition in (f"id = {number}", "p = 'p1'", "p is null", f"p = 'u{step}'", "z > 60"):
            expected = sorted_rows(lance.dataset(plain).scanner(filter=condition, use_scalar_index=False).to_table())
            for reader in (lance, lance_core):
                assert sorted_rows(reader.dataset(uri).to_table(filter=condition)) == expected, (
                    seed,
                    step,
                    verb,
                    condition,
                )
        if lance.dataset(uri).has_stable_row_ids:
            table = lance.dataset(uri).to_table(columns=["id"], with_row_id=True)
            after = dict(zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True))
            assert len(set(after.values())) == len(after)
            assert {key: row for key, row in after.items() if key in ids} == {
                key: row for key, row in ids.items() if key in after
            }
            ids = after
    lance_core.dataset(uri).validate()
    assert lance.dataset(uri).validate() is None


@pytest.mark.variants(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_history(tmp_path, seed):
    run_history(str(tmp_path / "t.lance"), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_long_random_histories(tmp_path, seed):
    run_history(str(tmp_path / "t.lance"), seed)


def test_row_ids_of_many_fragments_are_small(tmp_path):
    """Rows that an update moves out of many fragments have a segment of ids per fragment, not eight bytes per row."""
    place, ids = str(tmp_path / "t.lance"), range(10_000)
    for start in range(0, 10_000, 1_000):
        lance.write_dataset(pa.table({"id": ids[start : start + 1_000], "v": [0] * 1_000}), place, mode="append")
    dataset = lance_core.dataset(place)
    dataset.migrate_to_stable_row_ids()
    dataset.update({"v": "1"}, where="id % 10 != 3")
    moved = next(fragment for fragment in dataset.snapshot.manifest.fragments if fragment.id >= 10)
    assert moved.physical_rows == 9_000
    assert len(moved.row_ids) < 2_500
    assert lance.dataset(place).to_table(columns=["id", "_rowid"]) == dataset.to_table(columns=["id", "_rowid"])


def test_command(uri):
    result = CliRunner().invoke(cli, ["migrate-row-ids", uri])
    assert result.exit_code == 0, result.output
    assert "id_idx" in result.output
    assert lance.dataset(uri).has_stable_row_ids


def test_policy(uri):
    version = lance.dataset(uri).version
    policy = maintenance.MaintenancePolicy(stable_row_ids=True, cleanup_older_than=None)
    foreseen = maintenance.maintain(lance_core.dataset(uri), policy, dry_run=True)
    assert foreseen.done["row_ids_migrated"] == 1
    assert lance.dataset(uri).version == version
    done = maintenance.maintain(lance_core.dataset(uri), policy)
    assert (done.outcome, done.done["row_ids_migrated"]) == ("done", 1)
    versions = [lance.dataset(uri, version=version["version"]) for version in lance.dataset(uri).versions()]
    referred = {file.path for each in versions for fragment in each.get_fragments() for file in fragment.data_files()}
    assert {path.name for path in Path(uri, "data").glob("*.lance")} == referred, "a rewrite was begun for nothing"
    check(uri)
    assert maintenance.maintain(lance_core.dataset(uri), policy).outcome == "healthy"
