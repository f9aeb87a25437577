"""Options of writes, files by themselves, and what is reported about a dataset, beside pylance."""

import json
from pathlib import Path

import lance
import lance.file
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError, InvalidInputError, ObjectNotFoundError, SchemaError, UnsupportedError

LIBRARIES = {"ours": lance_core, "theirs": lance}


@pytest.fixture
def table():
    return pa.table({"a": range(10), "s": [{"x": i, "y": str(i)} for i in range(10)]})


def progress_of(library):
    class Recorder(library.progress.FragmentWriteProgress):
        def __init__(self):
            self.seen = []

        def begin(self, fragment, **_):
            self.seen.append(("begin", fragment.id))

        def complete(self, fragment, **_):
            self.seen.append(("complete", fragment.id, fragment.physical_rows))

    return Recorder()


class TestWriteDataset:
    def test_progress(self, table, tmp_path):
        recorder = progress_of(lance_core)
        lance_core.write_dataset(table, tmp_path / "t", max_rows_per_file=4, progress=recorder)
        assert recorder.seen == [
            (what, number, *rows)
            for number, count in enumerate((4, 4, 2))
            for what, rows in (("begin", ()), ("complete", (count,)))
        ]

    def test_progress_on_disk(self, table, tmp_path):
        progress = lance_core.progress.FileSystemFragmentWriteProgress(str(tmp_path / "p"), {"worker": "1"})
        fragment = lance_core.LanceFragment.create(tmp_path / "t", table, progress=progress)
        assert [path.name for path in (tmp_path / "p").iterdir()] == ["fragment_0.json"]
        progress.begin(fragment)
        assert json.loads((tmp_path / "p" / "fragment_0.in_progress").read_text())["metadata"] == {"worker": "1"}

    def test_old_manifest_names(self, table, tmp_path):
        dataset = lance_core.write_dataset(table, tmp_path / "t", enable_v2_manifest_paths=False)
        dataset.delete("a = 1")
        assert {p.name for p in (tmp_path / "t" / "_versions").glob("*.manifest")} == {"1.manifest", "2.manifest"}
        assert lance.dataset(dataset.uri).count_rows() == 9

    def test_automatic_cleanup_is_configured_as_by_pylance(self, table, tmp_path):
        options = {"interval": 5, "older_than_seconds": 45}
        made = {
            name: library.write_dataset(table, str(tmp_path / name), auto_cleanup_options=options).config()
            for name, library in LIBRARIES.items()
        }
        assert made["ours"] == made["theirs"]
        with pytest.raises(InvalidInputError, match="unknown"):
            lance_core.write_dataset(table, tmp_path / "u", auto_cleanup_options={"intervall": 5})

    @pytest.mark.parametrize("options", [{}, {"interval": 0}, {"interval": 7}, {"older_than_seconds": 9}])
    def test_defaults_of_automatic_cleanup_are_those_of_pylance(self, table, tmp_path, options):
        ours, theirs = (
            library.write_dataset(table, str(tmp_path / name), auto_cleanup_options=options).config()
            for name, library in LIBRARIES.items()
        )
        assert ours == theirs

    @pytest.mark.parametrize("mode", ["create", "append"])
    @pytest.mark.parametrize(
        "options",
        [{"interval": -1}, {"older_than_seconds": -1}, {"interval": "3"}, {"interval": 1.5}, {"interval": 10**30}],
    )
    def test_wrong_options_of_automatic_cleanup(self, table, tmp_path, options, mode):
        with pytest.raises(InvalidInputError, match=next(iter(options))):
            lance_core.write_dataset(table, tmp_path / "t", mode=mode, auto_cleanup_options=options)
        assert not list((tmp_path).rglob("*.*"))

    def test_insert_into_a_handle(self, table, tmp_path):
        dataset = lance_core.write_dataset(table, tmp_path / "t", data_storage_version="2.0")
        dataset.insert(table, commit_message="more")
        assert (dataset.version, dataset.count_rows(), dataset.data_storage_version) == (2, 20, "2.0")
        dataset.insert(table, mode="overwrite")
        assert (dataset.version, dataset.count_rows()) == (3, 10)
        assert lance.dataset(dataset.uri).to_table() == table

    @pytest.mark.parametrize("argument", ["max_page_bytes", "session", "data_cache_bytes", "base_store_params"])
    def test_what_is_not_offered_is_rejected(self, table, tmp_path, argument):
        with pytest.raises(UnsupportedError, match=argument):
            lance_core.write_dataset(table, tmp_path / "t", **{argument: {"x": 1}})
        assert not (tmp_path / "t").exists()


class TestFiles:
    @pytest.mark.parametrize(("writer", "reader"), [("ours", "theirs"), ("theirs", "ours"), ("ours", "ours")])
    @pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
    def test_round_trips(self, table, tmp_path, writer, reader, version):
        path = str(tmp_path / "file.lance")
        with LIBRARIES[writer].file.LanceFileWriter(path, version=version) as file:
            file.write_batch(table.slice(0, 6))
            file.write_batch(table.slice(6))
        opened = LIBRARIES[reader].file.LanceFileReader(path)
        assert opened.num_rows() == 10
        assert opened.read_all().to_table() == table
        assert opened.read_range(2, 3).to_table() == table.slice(2, 3)
        assert opened.take_rows([1, 8]).to_table() == table.take([1, 8])
        assert pa.Table.from_batches(opened.read_all(batch_size=3).to_batches()) == table
        narrow = LIBRARIES[reader].file.LanceFileReader(path, columns=["a"])
        assert narrow.read_all().to_table() == table.select(["a"])

    def test_what_is_rejected(self, table, tmp_path):
        path = tmp_path / "file.lance"
        writer = lance_core.file.LanceFileWriter(path, table.schema)
        with pytest.raises(SchemaError, match="lacks"):
            writer.write_batch(table.select(["a"]))
        assert (writer.close(), writer.close()) == (0, None)
        with pytest.raises(InvalidInputError, match="closed"):
            writer.write_batch(table)
        with pytest.raises(InvalidInputError):
            lance_core.file.LanceFileReader(path).read_range(0, 1)
        with pytest.raises(UnsupportedError, match="table_id"):
            lance_core.file.LanceFileReader(path, table_id=["x"])
        with pytest.raises(ObjectNotFoundError):
            lance_core.file.LanceFileReader(tmp_path / "nope.lance")
        with pytest.raises(SchemaError, match="schema"), lance_core.file.LanceFileWriter(tmp_path / "empty.lance"):
            pass
        assert lance_core.file.stable_version() == lance.file.stable_version()

    def test_a_file_that_fails_is_dropped(self, table, tmp_path):
        writer = lance_core.file.LanceFileWriter(tmp_path / "f.lance", table.schema)
        writer.write_batch(table)
        with pytest.raises(SchemaError), writer:
            writer.write_batch(table.select(["a"]))
        assert list(tmp_path.iterdir()) == []


class TestInspection:
    @pytest.fixture
    def uri(self, table, tmp_path):
        uri = str(tmp_path / "t")
        dataset = lance.write_dataset(table, uri, max_rows_per_file=4)
        dataset.delete("a = 1 or a > 7")
        dataset.add_columns({"b": "a * 2"})
        dataset.create_scalar_index("a", "BTREE")
        return uri

    def test_statistics(self, uri):
        ours, theirs = lance_core.dataset(uri).stats, lance.dataset(uri).stats
        assert ours.dataset_stats() == theirs.dataset_stats()
        assert ours.dataset_stats(3) == theirs.dataset_stats(3)
        own = {field.id: field.bytes_on_disk for field in ours.data_stats().fields}
        assert own == {field.id: field.bytes_on_disk for field in theirs.data_stats().fields}

    def test_files(self, uri):
        def listed(library, verb, *columns, **options):
            rows = getattr(library.dataset(uri), verb)(**options).read_all().select(columns).to_pylist()
            return sorted(map(repr, rows))

        for options in ({}, {"min_version": 3}):
            columns = ("version", "path", "type")
            assert listed(lance_core, "tracked_files", *columns, **options) == listed(
                lance, "tracked_files", *columns, **options
            )
        assert listed(lance_core, "all_files", "path", "size_bytes") == listed(lance, "all_files", "path", "size_bytes")
        calls = []
        lance_core.dataset(uri).tracked_files(progress=lambda *seen: calls.append(seen)).read_all()
        assert calls[-1] == (4, 4)
        assert lance_core.dataset(uri).tracked_files().schema == lance.dataset(uri).tracked_files().schema

    def test_versions(self, uri):
        ours, theirs = lance_core.dataset(uri), lance.dataset(uri)
        assert ours.version_refs() == theirs.version_refs()
        assert ours.get_version()["metadata"] == theirs.get_version()["metadata"]
        assert ours.fragment_ids() == set(theirs.fragment_ids())

    def test_a_sound_dataset_is_valid_and_a_damaged_one_is_not(self, uri):
        dataset = lance_core.dataset(uri)
        dataset.validate()
        for fragment in dataset.get_fragments():
            fragment.validate()
        deletions = next(Path(uri, "_deletions").iterdir())
        kept = deletions.read_bytes()
        deletions.write_bytes(kept[:-20])
        with pytest.raises(CorruptFileError):
            dataset.validate()
        deletions.unlink()
        with pytest.raises(CorruptFileError, match="missing"):
            dataset.validate()
        deletions.write_bytes(kept)
        dataset.validate()
        data = Path(uri, "data", dataset.get_fragments()[0].data_files()[0].path)
        data.rename(data.with_suffix(".moved"))
        with pytest.raises((CorruptFileError, ObjectNotFoundError)):
            dataset.validate()


class TestWholeDatasets:
    def test_names_of_manifests_are_migrated(self, table, tmp_path):
        dataset = lance.write_dataset(table, str(tmp_path / "t"), enable_v2_manifest_paths=False)
        dataset.delete("a = 1")
        ours = lance_core.dataset(dataset.uri, version=1)
        for _ in range(2):
            ours.migrate_manifest_paths_v2()
            assert all(len(path.stem) == 20 for path in (tmp_path / "t" / "_versions").glob("*.manifest"))
        ours.delete("a = 2")
        assert (ours.version, lance.dataset(dataset.uri).count_rows()) == (3, 8)

    def test_drop(self, table, tmp_path):
        lance_core.write_dataset(table, tmp_path / "t").create_branch("b")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        lance_core.LanceDataset.drop(tmp_path / "t")
        assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == []
        lance_core.LanceDataset.drop(tmp_path / "t", ignore_not_found=True)
        for path in ("t", "other"):
            with pytest.raises(ValueError, match="not the root of a dataset"):
                lance_core.LanceDataset.drop(tmp_path / path)
        assert (tmp_path / "other" / "file").exists()
