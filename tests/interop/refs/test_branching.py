"""Tags, branches, clones and base paths: what either library makes, the other uses."""

import json
import re
import shutil

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import DatasetExistsError, InvalidInputError, VersionNotFoundError
from lance_core.store.local import LocalStore
from tests.interop.format.wire import edit_manifest, manifest_paths

LIBRARIES = {"ours": lance_core, "theirs": lance}


@pytest.fixture
def uri(tmp_path):
    """Three versions: 10 rows in 3 fragments, one row deleted, one row added."""
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": range(10)}), uri, max_rows_per_file=4)
    dataset.delete("a = 1")
    lance.write_dataset(pa.table({"a": [100]}), uri, mode="append")
    return uri


@pytest.fixture(params=LIBRARIES)
def maker(request):
    """The library that makes things; the other one looks at them."""
    return LIBRARIES[request.param]


@pytest.fixture
def other(maker):
    return lance if maker is lance_core else lance_core


def rows(dataset) -> list[int]:
    return sorted(dataset.to_table()["a"].to_pylist())


class TestTags:
    def test_references(self, uri, maker, other):
        dataset = maker.dataset(uri)
        for tag, reference in {
            "here": None,
            "two": 2,
            "latest": (None, None),
            "one": ("main", 1),
            "again": "two",
        }.items():
            dataset.tags.create(tag, reference)
        found = other.dataset(uri).tags
        assert {name: tag["version"] for name, tag in found.list().items()} == {
            "here": 3, "two": 2, "latest": 3, "one": 1, "again": 2,
        }  # fmt: skip
        assert found.list() == dataset.tags.list()
        for order in (None, "asc", "desc"):
            assert found.list_ordered(order) == dataset.tags.list_ordered(order)
        assert other.dataset(uri, version="two").version == 2
        assert found.get_version("again") == 2

    def test_updates_and_metadata(self, uri, maker, other):
        tags = maker.dataset(uri).tags
        tags.create("t", 1)
        tags.replace_metadata("t", {"k": "v"})
        tags.update("t", 2)
        found = other.dataset(uri).tags.list()["t"]
        assert (found["version"], found["metadata"]) == (2, {"k": "v"})
        assert found["updated_at"] > found["created_at"]
        tags.delete("t")
        assert other.dataset(uri).tags.list() == {}

    def test_what_is_rejected(self, uri):
        tags = lance_core.dataset(uri).tags
        tags.create("t", 1)
        for call, error in (
            (lambda: tags.create("t", 2), InvalidInputError),
            (lambda: tags.create("new", 99), VersionNotFoundError),
            (lambda: tags.create("new", "nope"), VersionNotFoundError),
            (lambda: tags.create("new", 1.5), InvalidInputError),
            (lambda: tags.create("ä", 1), InvalidInputError),
            (lambda: tags.create("a b", 1), InvalidInputError),
            (lambda: tags.update("nope", 1), VersionNotFoundError),
            (lambda: tags.delete("nope"), VersionNotFoundError),
            (lambda: tags.replace_metadata("nope", {}), VersionNotFoundError),
            (lambda: tags.get_version("nope"), VersionNotFoundError),
            (lambda: tags.list_ordered("up"), InvalidInputError),
        ):
            with pytest.raises(error):
                call()
        assert tags.list().keys() == {"t"}


class TestBranches:
    def test_a_branch_is_used_by_both(self, uri, maker, other):
        branch = maker.dataset(uri).create_branch("feat/a")
        assert branch.version == 3
        branch.delete("a = 2")
        seen = other.dataset(uri).checkout_version(("feat/a", None))
        assert (seen.version, rows(seen)) == (4, [0, 3, 4, 5, 6, 7, 8, 9, 100])
        seen.insert(pa.table({"a": [7000]}))
        branch.checkout_latest()
        assert rows(branch) == [0, 3, 4, 5, 6, 7, 8, 9, 100, 7000]
        assert branch.update({"a": "a + 1"}, "a = 7000") == {"num_rows_updated": 1}
        seen.checkout_latest()
        assert 7001 in rows(seen)
        assert 7001 not in rows(other.dataset(uri))
        assert maker.dataset(uri).branches.list() == other.dataset(uri).branches.list()
        assert other.dataset(f"{uri}/tree/feat/a").version == branch.version
        assert [v["version"] for v in branch.versions()] == [3, 4, 5, 6]

    @pytest.mark.parametrize(
        ("reference", "version", "parent"),
        [
            (None, 3, None),
            (1, 1, None),
            ("tag", 2, None),
            (("main", 2), 2, None),
            (("base", None), 4, "base"),
            (("base", 3), 3, "base"),
        ],
    )
    def test_references(self, uri, maker, other, reference, version, parent):
        dataset = maker.dataset(uri)
        dataset.tags.create("tag", 2)
        dataset.create_branch("base").delete("a = 3")
        made = dataset.create_branch("new", reference)
        assert made.version == version
        listed = other.dataset(uri).branches.list()["new"]
        assert (listed["parent_branch"], listed["parent_version"]) == (parent, version)
        assert len(listed["branch_identifier"]) == (1 if parent is None else 2)
        expected = other.dataset(uri).checkout_version((parent, version))
        assert rows(other.dataset(uri).checkout_version(("new", None))) == rows(expected)

    def test_versions_before_the_fork_are_not_on_the_branch(self, uri):
        branch = lance_core.dataset(uri).create_branch("b")
        with pytest.raises(VersionNotFoundError):
            branch.checkout_version(2)
        assert branch.checkout_version((None, 2)).version == 2
        assert branch.checkout_version(("main", 1)).branch is None

    def test_tags_name_versions_of_branches(self, uri, maker, other):
        branch = maker.dataset(uri).create_branch("b")
        branch.delete("a = 5")
        branch.tags.create("on-b")
        assert other.dataset(uri).tags.list()["on-b"]["branch"] == "b"
        assert rows(other.dataset(uri, version="on-b")) == rows(branch)

    def test_deleting(self, uri, maker, other):
        dataset = maker.dataset(uri)
        parent = dataset.create_branch("n")
        parent.delete("a = 5")
        dataset.create_branch("n/m").delete("a = 6")
        child = other.dataset(uri).create_branch("child", ("n", None))
        child.tags.create("on-child")
        for branch in ("n", "child"):
            with pytest.raises((ValueError, OSError), match="referenced by"):
                lance_core.dataset(uri).branches.delete(branch)
        lance_core.dataset(uri).tags.delete("on-child")
        lance_core.dataset(uri).branches.delete("child")
        for name in [t for t in dataset.tags.list() if t.startswith("fork.child")]:
            dataset.tags.delete(name)
        lance_core.dataset(uri).branches.delete("n")
        assert other.dataset(uri).branches.list().keys() == {"n/m"}
        assert rows(other.dataset(uri).checkout_version(("n/m", None))) == [0, 2, 3, 4, 5, 7, 8, 9, 100]
        with pytest.raises(VersionNotFoundError):
            lance_core.dataset(uri).branches.delete("n")

    @pytest.mark.parametrize("left", ["all", "tag", "files"])
    def test_deleting_what_was_not_finished(self, uri, monkeypatch, left):
        dataset = lance_core.dataset(uri)
        dataset.create_branch("b/c")
        dataset.tags.create("mine", 1)
        dataset.tags.replace_metadata("mine", {"lance.branch": "b"})
        before = dataset.tags.list()
        real = LocalStore.put_if_absent

        def dying(self, key, *args, **options):
            if key == "_refs/branches/b.json":
                raise KeyboardInterrupt
            real(self, key, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "put_if_absent", dying)
            with pytest.raises(KeyboardInterrupt):
                dataset.create_branch("b")
        (tag,) = dataset.tags.list().keys() - before.keys()
        if left == "files":  # pylance makes no tag
            dataset.tags.delete(tag)
        if left == "tag":
            shutil.rmtree(f"{uri}/tree/b/_versions")
            shutil.rmtree(f"{uri}/tree/b/_transactions")
        else:
            with pytest.raises(DatasetExistsError, match=re.escape("branches.delete('b')")):
                dataset.create_branch("b")
        dataset.branches.delete("b")
        assert dataset.tags.list() == before
        assert rows(dataset.create_branch("b")) == rows(dataset.checkout_version(("b/c", None))) == rows(dataset)
        dataset.branches.delete("b")
        with pytest.raises(VersionNotFoundError):
            dataset.branches.delete("b")

    def test_what_is_rejected(self, uri):
        dataset = lance_core.dataset(uri)
        dataset.create_branch("b")
        for name in ("main", "b", "ä", "a//b", "a..b", "x.lock", "/x", ""):
            with pytest.raises(InvalidInputError):
                dataset.create_branch(name)
        for reference in ("nope", 99, ("nope", None), ("b", 1)):
            with pytest.raises(VersionNotFoundError):
                dataset.create_branch("new", reference)
        assert dataset.branches.list().keys() == {"b"}
        assert [t for t in dataset.tags.list() if "new" in t] == []

    def test_a_tag_keeps_the_fork_version_from_pylances_cleanup(self, uri):
        """It protects a branch by the spelling of the URI alone, the tag by itself."""
        from datetime import timedelta

        branch = lance_core.dataset(uri).create_branch("work", 2)
        before = rows(branch)
        lance_core.write_dataset(pa.table({"a": [0]}), uri, mode="overwrite")
        lance.dataset(f"file://{uri}").cleanup_old_versions(
            older_than=timedelta(0), error_if_tagged_old_versions=False, delete_unverified=True
        )
        assert rows(lance_core.dataset(uri).checkout_version(("work", None))) == before
        lance_core.dataset(uri).branches.delete("work")
        assert lance_core.dataset(uri).tags.list() == {}

    def test_metadata_and_order(self, uri, maker, other):
        dataset = maker.dataset(uri)
        dataset.create_branch("old", 1)
        dataset.create_branch("new", 3)
        dataset.branches.replace_metadata("old", {"owner": "me"})
        assert other.dataset(uri).branches.list()["old"]["metadata"] == {"owner": "me"}
        for order in (None, "asc", "desc"):
            assert dataset.branches.list_ordered(order) == other.dataset(uri).branches.list_ordered(order)

    def test_refs_are_json_as_pylance_writes_it(self, uri, tmp_path):
        shutil.copytree(uri, tmp_path / "copy")
        lance_core.dataset(uri).create_branch("b")
        lance.dataset(str(tmp_path / "copy")).create_branch("b")
        ours, theirs = (
            json.loads((root / "_refs/branches/b.json").read_text()) for root in (tmp_path / "t", tmp_path / "copy")
        )
        assert ours.keys() == theirs.keys()
        assert [pair[0] for pair in ours["identifier"]["version_mapping"]] == [3]


class TestClones:
    @pytest.mark.parametrize("reference", [2, "two", ("b", None), (None, 1)])
    @pytest.mark.parametrize("kind", ["shallow_clone", "deep_clone"])
    def test_clones(self, uri, maker, other, tmp_path, kind, reference):
        dataset = maker.dataset(uri)
        dataset.tags.create("two", 2)
        dataset.create_branch("b").delete("a = 4")
        expected = dataset.checkout_version(reference)
        clone = getattr(dataset, kind)(str(tmp_path / "clone"), reference)
        assert clone.version == expected.version
        seen = other.dataset(tmp_path / "clone")
        assert rows(seen) == rows(expected)
        assert len(seen.base_paths()) == {"shallow_clone": 1 if reference != ("b", None) else 2, "deep_clone": 0}[kind]
        seen.delete("a = 9")
        seen.insert(pa.table({"a": [5]}))
        assert rows(maker.dataset(tmp_path / "clone")) == rows(seen)
        with pytest.raises((DatasetExistsError, OSError)):
            getattr(dataset, kind)(str(tmp_path / "clone"), reference)

    def test_a_deep_clone_needs_nothing_of_its_source_and_can_be_moved(self, uri, tmp_path):
        source = lance_core.dataset(uri)
        branch = source.create_branch("b")
        branch.delete("a = 4")
        lance.dataset(uri).create_scalar_index("a", "BTREE")
        expected = rows(branch)
        with_index = source.checkout_version((None, None)).deep_clone(tmp_path / "indexed", (None, None))
        branch.deep_clone(tmp_path / "clone", None)
        shutil.rmtree(uri)
        shutil.move(tmp_path / "clone", tmp_path / "moved")
        assert rows(lance_core.dataset(tmp_path / "moved")) == rows(lance.dataset(str(tmp_path / "moved"))) == expected
        found = lance.dataset(with_index.uri).to_table(filter="a = 100")
        assert found.num_rows == 1
        assert [index.name for index in with_index.describe_indices()] == ["a_idx"]

    def test_between_storages(self, uri):
        clone = lance_core.dataset(uri).deep_clone("memory://clones/deep", 2)
        assert rows(clone) == [0, 2, 3, 4, 5, 6, 7, 8, 9]

    def test_on_s3_the_storage_copies(self, s3):
        bucket = s3.new_bucket()
        options = s3.storage_options
        source = lance_core.write_dataset(pa.table({"a": range(5)}), f"s3://{bucket}/source", storage_options=options)
        source.delete("a = 1")
        clone = source.deep_clone(f"s3://{bucket}/clone", 2)
        branch = source.create_branch("b")
        branch.delete("a = 2")
        assert (rows(clone), rows(branch), rows(source)) == ([0, 2, 3, 4], [0, 3, 4], [0, 2, 3, 4])


class TestBases:
    def test_add_and_write(self, uri, maker, other, tmp_path):
        dataset = maker.dataset(uri)
        bases = [
            maker.DatasetBasePath(str(tmp_path / "cold"), name="cold"),
            maker.DatasetBasePath(str(tmp_path / "root"), name="root", is_dataset_root=True),
        ]
        assert dataset.add_bases(bases, {"why": "room"}) is dataset
        assert other.dataset(uri).read_transaction(4).transaction_properties == {"why": "room"}
        assert {(b.id, b.name, b.is_dataset_root) for b in other.dataset(uri).base_paths().values()} == {
            (1, "cold", False), (2, "root", True),
        }  # fmt: skip
        maker.write_dataset(pa.table({"a": [1000]}), dataset, mode="append", target_bases=["cold"])
        maker.write_dataset(pa.table({"a": [1001]}), uri, mode="append", target_bases=[str(tmp_path / "root")])
        maker.write_dataset(pa.table({"a": range(6)}), uri, mode="append", target_all_bases=True, max_rows_per_file=2)
        seen = other.dataset(uri)
        placed = [file.base_id for f in seen.get_fragments() for file in f.metadata.files]
        assert placed == [None] * 4 + [1, 2, None, 1, 2]
        assert len(list((tmp_path / "cold").iterdir())) == 2
        assert rows(seen) == rows(maker.dataset(uri))
        seen.delete("a = 1000 or a = 3")
        assert rows(maker.dataset(uri)) == rows(seen)
        assert seen.validate() is None

    def test_names_paths_and_ids_are_taken_once(self, uri):
        """pylance takes a second place for an id, and forgets the first, whose files are lost to it."""
        base = lance_core.DatasetBasePath
        lance_core.dataset(uri).add_bases([base("/a", name="a", id=7), base("/b", name="b")])
        taken = [base("/c", name="c", id=7), base("/c", name="a"), base("/a", name="c"), base("/c", name="c", id=8)]
        for one in taken:
            with pytest.raises(InvalidInputError, match="exists"):
                lance_core.dataset(uri).add_bases([one])
        lance_core.dataset(uri).add_bases([base("/c", name="c", id=3), base("/d")])
        for library in (lance, lance_core):
            found = {number: (one.path, one.name) for number, one in library.dataset(uri).base_paths().items()}
            assert found == {7: ("/a", "a"), 8: ("/b", "b"), 3: ("/c", "c"), 9: ("/d", None)}

    def test_upserts_go_to_a_base(self, uri, tmp_path):
        dataset = lance_core.dataset(uri)
        dataset.add_bases([lance_core.DatasetBasePath(str(tmp_path / "hot"), name="hot")])
        builder = (
            dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().target_bases(["hot"])
        )
        builder.execute(pa.table({"a": [5, 5000]}))
        assert [f.base_id for f in dataset.get_fragments()[-1].data_files()] == [1]
        assert rows(lance.dataset(uri)) == rows(dataset)

    def test_bases_of_a_new_dataset(self, maker, other, tmp_path):
        maker.write_dataset(
            pa.table({"a": range(4)}),
            str(tmp_path / "new"),
            initial_bases=[maker.DatasetBasePath(str(tmp_path / "x"), name="x")],
            target_bases=["x"],
        )
        seen = other.dataset(tmp_path / "new")
        assert [(b.id, b.name) for b in seen.base_paths().values()] == [(1, "x")]
        assert rows(seen) == [0, 1, 2, 3]
        assert not (tmp_path / "new" / "data").exists() or not list((tmp_path / "new" / "data").iterdir())

    def test_what_is_rejected(self, uri, tmp_path):
        dataset = lance_core.dataset(uri)
        base = lance_core.DatasetBasePath(str(tmp_path / "b"), name="b")
        dataset.add_bases([base])
        with pytest.raises(InvalidInputError, match="exists"):
            dataset.add_bases([base])
        with pytest.raises(InvalidInputError, match="'nope' not found"):
            dataset.insert(pa.table({"a": [1]}), target_bases=["nope"])
        with pytest.raises(InvalidInputError, match="only when a dataset is created"):
            dataset.insert(pa.table({"a": [1]}), initial_bases=[base])
        with pytest.raises(InvalidInputError, match="together"):
            dataset.insert(pa.table({"a": [1]}), target_bases=["b"], target_all_bases=True)
        assert dataset.latest_version == 4

    def test_the_uri_that_opened_a_dataset_selects_its_root(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        dataset = lance_core.write_dataset(pa.table({"a": [1]}), "t.lance")
        dataset.insert(pa.table({"a": [2]}), target_bases=["t.lance"])
        assert [file.base_id for one in dataset.get_fragments() for file in one.data_files()] == [None, None]

    def test_bases_that_moved_are_found_once_the_manifest_says_so(self, maker, other, tmp_path):
        """A dataset and its bases are copied, and the base paths edited: nothing else names the old places."""
        old, new = tmp_path / "old", tmp_path / "new"
        maker.write_dataset(
            pa.table({"a": range(4)}),
            str(old / "t"),
            initial_bases=[
                maker.DatasetBasePath(str(old / "plain"), name="plain"),
                maker.DatasetBasePath(str(old / "rooted"), name="rooted", is_dataset_root=True),
            ],
            target_bases=["plain"],
        )
        dataset = maker.dataset(str(old / "t"))
        for base, start in (("rooted", 4), (None, 8)):
            targets = {} if base is None else {"target_bases": [base]}
            dataset.insert(pa.table({"a": range(start, start + 4)}), **targets)
        shutil.copytree(old, new)

        def moved(message):
            for base in message.base_paths:
                base.path = base.path.replace(str(old).lstrip("/"), str(new).lstrip("/"))

        for path in manifest_paths(new / "t"):
            edit_manifest(path, moved)
        shutil.rmtree(old)
        for library in (maker, other):
            assert rows(library.dataset(str(new / "t"))) == list(range(12))
        other.dataset(str(new / "t")).delete("a = 5")
        assert rows(maker.dataset(str(new / "t"))) == [0, 1, 2, 3, 4, *range(6, 12)]
