"""Directory namespaces of pylance: their tables are found, maintained and declared under their ids by both libraries."""

import datetime as dt
import json
import random
import shutil
from collections import Counter

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core import catalog, maintenance
from lance_core.cli.app import cli
from lance_core.errors import (
    CorruptFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    UnsupportedError,
)
from tests.interop.namespaces import Namespace, after_commit, rest_service, write_dated

ROWS = pa.table({"a": [1]})


@pytest.fixture(params=["disk", "s3"])
def spaces(request, tmp_path):
    """pylance's namespace of a new root."""
    if request.param == "disk":
        return Namespace(str(tmp_path / "lake"))
    s3 = request.getfixturevalue("s3")
    return Namespace(
        f"s3://{s3.new_bucket()}/lake", **{f"storage.{name}": value for name, value in s3.storage_options.items()}
    )


def find(spaces):
    return maintenance.find_tables(spaces.root, storage_options=spaces.options or None)


def test_tables_of_nested_namespaces_are_found_under_their_ids(spaces):
    for name in ("shop", "shop.eu"):
        spaces.call("create_namespace", name)
    for number, name in enumerate(["top", "shop.orders", "shop.eu.orders", "shop.a b#c%41"]):
        spaces.create(name, number)
        spaces.append(lance, name, number)
    lance.write_dataset(ROWS, f"{spaces.root}/nyc/flights.lance", storage_options=spaces.options or None)
    spaces.call("declare_table", "shop.later")
    found = {table.path: table for table in find(spaces)}
    assert list(found) == ["nyc/flights.lance", "shop/a b#c%2541", "shop/eu/orders", "shop/orders", "top.lance"]
    assert lance_core.list_tables(spaces.root, storage_options=spaces.options or None) == list(found)
    for number, name in enumerate(["top.lance", "shop/orders", "shop/eu/orders", "shop/a b#c%2541"]):
        table = found[name]
        opened = lance_core.dataset(table.uri, storage_options=table.storage_options)
        assert opened.to_table()["a"].to_pylist() == [number, number]
        assert table.versions in (None, (1, 2))
        assert "secret" not in repr(table)
    assert [found[name].object_id for name in found] == [
        None, "shop$a b#c%41", "shop$eu$orders", "shop$orders", "top",
    ]  # fmt: skip
    spaces.create("shop.later2", 7)
    spaces.call("deregister_table", "shop.orders")
    spaces.call("drop_table", "shop.eu.orders")
    assert [table.name for table in find(spaces)] == ["nyc/flights", "shop/a b#c%2541", "shop/later2", "top"]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_pylance_does_both_list_the_same_tables(seed, tmp_path):
    chance, root = random.Random(seed), str(tmp_path / "lake")
    spaces = Namespace(root, dir_listing_enabled=chance.choice(["true", "false"]))
    spaces.create("first", 0)
    names, declared = ["first"], set()
    for number in range(14):
        space = ".".join(chance.choices(["a", "b"], k=chance.randint(0, 2)))
        name = f"{space}.t{number}".lstrip(".")
        match chance.choice(["create", "create", "declare", "drop", "deregister", "ours", "compact"]):
            case "create":
                for depth in range(1, len(name.split("."))):
                    above = ".".join(name.split(".")[:depth])
                    if above.replace(".", "$") not in catalog.read_listing(root).namespaces:
                        spaces.call("create_namespace", above)
                spaces.create(name, number)
                names.append(name)
            case "declare":
                spaces.call("declare_table", name)
                declared.add(name)
            case "drop" if len(names) > 1:
                spaces.call("drop_table", names.pop(1))
            case "deregister" if not spaces.call("describe_table", names[-1]).location.endswith(".lance"):
                spaces.call("deregister_table", names.pop())
            case "ours":
                object_id = name.replace(".", "$")
                location = catalog.declare(root, object_id, catalog.new_location(object_id))
                lance_core.write_dataset(pa.table({"a": [number]}), f"{root}/{location}")
                names.append(name)
            case "compact":
                maintenance.maintain_lake(root)
    found = {table.name.replace("/", "."): table.uri for table in find(spaces)}
    found.pop("_maintenance.log", None)
    assert sorted(found) == sorted(names)
    assert found == {name: spaces.call("describe_table", name).location.removeprefix("file://") for name in names}
    listed = {name.replace("$", ".") for name in catalog.read_listing(root).tables}
    assert listed == {*names, *declared}


def test_a_lake_s_maintenance_names_tables_by_their_ids(spaces):
    for name in ("shop.orders", "shop.items", "other.t"):
        spaces.create(name, 0)
        for number in range(1, 7):
            spaces.append(lance, name, number)
    options = spaces.options or None
    for number in range(6):
        catalog.declare(spaces.root, f"shop$d{number}", f"shop/d{number}.lance", storage_options=options)
    listed = lance_core.dataset(f"{spaces.root}/__manifest", storage_options=options)
    assert len(listed.get_fragments()) > 5
    reports = maintenance.maintain_lake(
        spaces.root,
        maintenance.MaintenancePolicy(retain_versions=1),
        policies={"shop/items": False},
        exclude="other/*",
        storage_options=options,
    )
    outcomes = {report.plan.table: report for report in reports}
    assert list(outcomes) == ["__manifest", "shop/orders"]
    assert outcomes["shop/orders"].done["fragments_removed"] == 7
    assert outcomes["__manifest"].done["fragments_removed"] > 5
    assert outcomes["__manifest"].plan.policy.age == dt.timedelta(days=30)
    listed.checkout_latest()
    assert len(listed.get_fragments()) == 1
    assert [version["version"] for version in listed.versions()] == list(range(1, listed.version + 1))
    assert spaces.rows(lance, "shop.orders") == list(range(7))
    spaces.create("shop.after", 9)
    assert spaces.tables("shop") == ["after", *(f"d{number}" for number in range(6)), "items", "orders"]
    log = lance_core.dataset(f"{spaces.root}/_maintenance/log.lance", storage_options=options).to_table()
    assert set(log["table"].to_pylist()) == {"__manifest", "shop/orders"}


def test_a_table_that_is_dropped_during_its_maintenance_is_no_failure(tmp_path):
    spaces = Namespace(str(tmp_path / "lake"))
    for name in ("a", "b"):
        spaces.create(name, 1)
        for _ in range(5):
            spaces.append(lance, name, 2)

    def rewrite(dataset, tasks):
        if "a" in spaces.tables():
            spaces.call("drop_table", "a")
        yield from maintenance.run_here(dataset, tasks)

    policy = maintenance.MaintenancePolicy(max_small_fragments=2)
    reports = maintenance.maintain_lake(spaces.root, policy, rewriter=rewrite)
    assert {report.plan.table: report.outcome for report in reports if report.plan.table != "__manifest"} == {
        "a": "absent",
        "b": "done",
    }
    log = lance.dataset(f"{spaces.root}/_maintenance/log.lance").to_table(filter="step = 'table'")
    assert set(log["table"].to_pylist()) - {"__manifest"} == {"b"}


OLD, YOUNG = dt.datetime(2020, 1, 1), dt.datetime(2200, 1, 1)
EXPIRES = {"expire_rows_older_than": "1d", "expire_by": "at"}


def count(root, location):
    return lance.dataset(f"{root}/{location}").count_rows()


SWAPS = {
    "swapped": {"events": "k", "keep": "e"},
    "renamed": {"events": None, "archive": "e"},
    "deregistered": {"events": None},
    "elsewhere": {"events": "spare"},
    "a second id": {"other": "e"},
}


@pytest.fixture
def events(tmp_path):
    """Two tables in a namespace, and one that it does not list."""
    spaces = Namespace(str(tmp_path / "lake"))
    spaces.call("create_namespace", "shop")
    for location in ("e", "k", "spare"):
        write_dated(spaces.root, location, [OLD, OLD, OLD, YOUNG, YOUNG])
    spaces.list_again("shop", events="e", keep="k")
    return spaces


@pytest.mark.parametrize("is_service", [False, True])
@pytest.mark.parametrize("swap", SWAPS)
def test_a_policy_is_for_the_table_that_has_the_id_at_each_step(events, tmp_path, swap, is_service):
    def rewrite(dataset, tasks):
        events.list_again("shop", **SWAPS[swap])
        yield from maintenance.run_here(dataset, tasks)

    policies = {"shop/events": {**EXPIRES, "max_small_fragments": 2}, "shop/keep": False}
    space = {"impl": "dir", "root": events.root, "manifest_enabled": "true"} if is_service else None
    base = str(tmp_path / "ops") if is_service else events.root
    reports = maintenance.maintain_lake(
        base, policies=policies, rewriter=rewrite, exclude="__manifest", namespace=space
    )
    outcomes = {report.plan.table: report.outcome for report in reports}
    if is_service and swap == "a second id":  # which is asked for the ids of the listing alone
        assert (outcomes["shop/events"], count(events.root, "e")) == ("done", 2)
    else:
        assert (outcomes["shop/events"], count(events.root, "e")) == ("absent", 5)
    assert (count(events.root, "k"), count(events.root, "spare")) == (5, 5)


@pytest.mark.parametrize("swap", [*SWAPS, "dropped"])
@pytest.mark.parametrize(("number", "step"), [(1, "commit"), (2, "materialize_deletions")])
def test_what_was_done_before_a_table_is_lost_is_in_the_log(events, swap, number, step):
    def act():
        events.call("drop_table", "shop.events") if swap == "dropped" else events.list_again("shop", **SWAPS[swap])

    policies = {"shop/events": {**EXPIRES, "max_small_fragments": 1}, "shop/keep": False}
    uri = f"{events.root}/e"
    with after_commit(uri, act, number):
        [report] = maintenance.maintain_lake(events.root, policies=policies, include="shop/*")
    assert (report.outcome, report.done["rows_expired"], report.error) == ("partly done", 3, None)
    step = "commit" if swap == "dropped" else step  # which cannot go on
    assert f"ids were given to others, before {step} ended: " in report.reason
    if swap != "dropped":
        assert count(events.root, "e") == 2
    log = lance.dataset(f"{events.root}/_maintenance/log.lance").to_table().to_pylist()
    assert [row["step"] for row in log] == [*["expire", "commit"][: 1 if swap == "dropped" else number], "table"]
    assert {(row["table"], row["uri"]) for row in log} == {("shop/events", uri)}
    assert (log[-1]["outcome"], log[-1]["reason"], log[-1]["rows"]) == ("partly done", report.reason, None)
    assert log[-1]["version_after"] == log[-2]["version_after"]


@pytest.mark.parametrize("is_dry", [False, True])
def test_an_id_that_was_deregistered_before_its_turn_is_absent(events, tmp_path, is_dry):
    space = {"impl": "tests.interop.namespaces.FleetingNamespace", "root": events.root}
    reports = maintenance.maintain_lake(
        tmp_path / "ops", policies={"shop/events": EXPIRES}, include="shop/*", dry_run=is_dry, namespace=space
    )
    outcomes = {report.plan.table: report.outcome for report in reports}
    assert (outcomes["shop/events"], count(events.root, "e")) == ("absent", 5)


PLAIN = "shop/plain.lance"


def ids_at(listed, location):
    """The ids of a table; of a folder that is not listed, that of its name, unless another table has it."""
    ids = {name for name, place in listed.items() if place == location}
    return ids or ({"plain"} if location == PLAIN and "plain" not in listed else set())


def holds(before, now, location):
    """Whether a table has the ids that it had; a folder can be listed by its name meanwhile."""
    return ids_at(before, location) == ids_at(now, location) and not (
        before.get("plain") == location == PLAIN and "plain" not in now
    )


@pytest.mark.parametrize("seed", range(2))
def test_rows_expire_by_the_policy_of_the_ids_alone_whatever_becomes_of_these(tmp_path, seed):
    """Ids come, go, and change their tables at random while tables are rewritten; a model says whose rows may go."""
    choose, places, names = random.Random(seed), ["t1", "t2", "t3", PLAIN], ["plain", "a", "b", "c", "d"]
    spaces, expires, listed = Namespace(str(tmp_path / "lake")), {"plain", "a", "b", "d"}, {}
    spaces.call("create_namespace", "shop")

    def change(most):
        for _ in range(choose.randrange(most)):
            name, place = choose.choice(names), choose.choice([None, *places])
            spaces.list_again("shop", **{name: place})
            listed.pop(name, None)
            listed.update({} if place is None else {name: place})

    def rewrite(dataset, tasks):
        change(3)
        seen.setdefault(dataset.uri.removeprefix(f"{spaces.root}/"), dict(listed))
        yield from maintenance.run_here(dataset, tasks)

    policies = {f"shop/{name}": {**EXPIRES, "max_small_fragments": 1} if name in expires else False for name in names}
    kinds = Counter()
    for _ in range(8):
        for place in places:
            write_dated(spaces.root, place, [OLD, YOUNG, YOUNG])
        change(6)
        before, seen = dict(listed), {}
        maintenance.maintain_lake(spaces.root, policies=policies, rewriter=rewrite, include="shop/*")
        for place in places:
            may_expire = ids_at(before, place) <= expires and place in seen and holds(before, seen[place], place)
            assert count(spaces.root, place) == (2 if may_expire else 3), (place, before, seen.get(place))
            kinds[place in seen, may_expire] += 1
    assert all(kinds[kind] for kind in [(True, True), (True, False), (False, False)])


def test_no_policy_cleans_the_manifest_table_earlier(tmp_path):
    spaces = Namespace(str(tmp_path / "lake"))
    for number in range(3):
        spaces.create(f"t{number}", 0)
    listed = lance_core.dataset(f"{spaces.root}/__manifest")
    for age, expected in {"1s": 30, "1d": 30, "60d": 60}.items():
        policy = maintenance.MaintenancePolicy(cleanup_older_than=age, retain_versions=1, stable_row_ids=True)
        report = maintenance.maintain(listed, policy)
        assert report.plan.policy.age == dt.timedelta(days=expected)
        assert not listed.has_stable_row_ids
    assert len(listed.versions()) == listed.version
    never = maintenance.MaintenancePolicy(cleanup_older_than="never")
    assert maintenance.maintain(listed, never).plan.policy.age is None


def test_the_command_finds_and_maintains_them(tmp_path):
    spaces = Namespace(str(tmp_path / "lake"))
    spaces.create("shop.orders", 0)
    spaces.append(lance, "shop.orders", 1)
    arguments = ["maintain", spaces.root, "--json", "--include", "shop/*"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    (row,) = json.loads(result.output)
    assert (row["table"], row["fragments_after"]) == ("shop/orders", 1)
    assert row["uri"] == spaces.call("describe_table", "shop.orders").location.removeprefix("file://")


def test_a_folder_whose_name_is_another_table_s_is_left_out_and_logged(spaces, caplog):
    spaces.create("shop.orders", 1)
    options = spaces.options or None
    lance.write_dataset(ROWS, f"{spaces.root}/shop/orders.lance", storage_options=options)
    assert [table.path for table in find(spaces)] == ["shop/orders"]
    assert "shop/orders.lance is left out: the manifest table lists its name at another location" in caplog.text


def test_roots_that_cannot_be_read_are_named(tmp_path):
    spaces = Namespace(str(tmp_path / "lake"))
    spaces.create("shop.orders", 1)
    catalog.declare(spaces.root, "shop$more", "shop/more.lance")
    lance.write_dataset(ROWS, f"{spaces.root}/shop.lance")
    with pytest.raises(DatasetExistsError, match="shop is a namespace"):
        catalog.register(spaces.root, "shop", "shop.lance")
    lance_core.dataset(f"{spaces.root}/__manifest").update_metadata({"table_version_management": "true"})
    with pytest.raises(UnsupportedError, match="keeps the versions of its tables"):
        lance_core.list_tables(spaces.root)


def test_a_listed_table_without_files_is_skipped(spaces):
    spaces.create("shop.orders", 1)
    catalog.declare(spaces.root, "shop$none", "shop/none.lance", storage_options=spaces.options or None)
    assert [table.path for table in find(spaces)] == ["shop/orders"]
    if not spaces.options:
        shutil.rmtree(find(spaces)[0].uri)
        assert find(spaces) == []


@pytest.mark.parametrize("location", ["../elsewhere/b.lance", "/b.lance", "", "a/./b.lance", "s3://bucket/b.lance"])
def test_a_location_that_is_not_below_the_root_is_rejected(tmp_path, location):
    root = str(tmp_path / "lake")
    Namespace(root).create("a", 1)
    with pytest.raises(InvalidInputError, match="is no path below the root"):
        catalog.register(root, "b", location)
    assert lance_core.list_tables(root) == ["a.lance"]


def test_a_location_belongs_to_one_id(tmp_path):
    root = str(tmp_path / "lake")
    Namespace(root).create("a", 1)
    with pytest.raises(DatasetExistsError, match=r"a\.lance is the table a; deregister that id first"):
        catalog.register(root, "b", "a.lance")
    catalog.register(root, "a", "a.lance")
    catalog.deregister(root, "a.lance")
    catalog.register(root, "b", "a.lance")
    assert list(catalog.read_listing(root).tables) == ["b"]


RESERVED = ["__manifest", "__manifest/data", "_maintenance/log.lance", "_ops/x", "a.lance/data", "folder/t/data"]


@pytest.mark.parametrize("location", [*RESERVED, "./__manifest/", "plain.lance/tree/branch"])
def test_a_location_of_other_files_is_rejected(tmp_path, location):
    root = str(tmp_path / "lake")
    Namespace(root).create("a", 1)
    catalog.declare(root, "t", "folder/t")
    with pytest.raises(InvalidInputError, match=r"is in _\w+, which is reserved|is inside the table|no path below"):
        catalog.declare(root, "shop$bad", location)
    with pytest.raises(DatasetExistsError, match="folder/t is the table t"):
        catalog.declare(root, "shop$bad", "folder")
    assert "shop$bad" not in catalog.read_listing(root).tables


@pytest.mark.parametrize("object_id", ["", "$", "a$", "$a", "a$$b", " ", "a$b\nc", "a\x7f"])
def test_ids_with_blank_parts_and_control_characters_are_rejected(tmp_path, object_id):
    spaces = Namespace(str(tmp_path))
    spaces.create("a", 1)
    with pytest.raises(InvalidInputError, match="has a part that is blank, or has line breaks"):
        catalog.declare(tmp_path, object_id, "folder")
    with (
        rest_service(spaces.root) as service,
        pytest.raises(InvalidInputError, match=r"that is blank|a list such|not take describe_table"),
    ):
        lance_core.write_dataset(
            {"a": [1]}, namespace_client=service, table_id=object_id.split("$") if object_id else []
        )
    assert spaces.listed() == {"a": "a.lance"}


def test_the_manifest_table_is_not_dropped(tmp_path):
    spaces = Namespace(str(tmp_path))
    spaces.create("a", 1)
    before = spaces.listed()
    for uri in (f"{spaces.root}/__manifest", f"{spaces.root}/./__manifest/"):
        with pytest.raises(InvalidInputError, match="names the tables of its folder, which would lose their ids"):
            lance_core.LanceDataset.drop(uri, ignore_not_found=True)
    assert spaces.listed() == before


def test_what_is_not_there_is_neither_registered_nor_deregistered(tmp_path):
    spaces = Namespace(str(tmp_path))
    spaces.create("shop.t", 1)
    for place in ("shop$t", str(tmp_path / catalog.read_listing(tmp_path).tables["shop$t"]), "none.lance"):
        with pytest.raises(DatasetNotFoundError, match="lists no table at"):
            catalog.deregister(tmp_path, place)
    catalog.deregister(tmp_path, "none.lance", missing_ok=True)
    with pytest.raises(DatasetNotFoundError, match=r"ghost has no table: write it first, or declare"):
        catalog.register(tmp_path, "shop$ghost", "ghost")
    assert list(catalog.read_listing(tmp_path).tables) == ["shop$t"]


@pytest.mark.parametrize("location", ["../b.lance", None, *RESERVED[:-1]])
def test_a_bad_location_is_removed_by_what_its_error_names(tmp_path, location):
    root = str(tmp_path / "lake")
    Namespace(root).create("a", 1)
    listed = lance_core.dataset(f"{root}/__manifest")
    row = listed.to_table(filter="object_id = 'a'").to_pylist()[0] | {"object_id": "b", "location": location}
    listed.insert(pa.Table.from_pylist([row], listed.schema))
    with pytest.raises(CorruptFileError, match=r"the table b: .*; remove it: ") as raised:
        lance_core.list_tables(root)
    for call in (catalog.read_listing, maintenance.maintain_lake):
        with pytest.raises(CorruptFileError, match="the table b: "):
            call(root)
    with pytest.raises(CorruptFileError, match="the table b: "):
        catalog.declare(root, "c", "c.lance")
    exec(f"import lance_core.catalog\n{str(raised.value).partition('remove it: ')[2].splitlines()[0]}")
    assert lance_core.list_tables(root) == ["a.lance"]


def two_ids(root):
    """A table of two ids, with seven fragments."""
    spaces = Namespace(str(root))
    spaces.create("orders", 0)
    for number in range(1, 7):
        spaces.append(lance, "orders", number)
    spaces.call("create_namespace", "shop")
    spaces.call("register_table", "shop.orders_v2", location="orders.lance")
    return spaces


@pytest.mark.parametrize("location", ["./odd.lance", "a//odd.lance", "a/./odd.lance"])
def test_locations_in_other_spellings(tmp_path, location):
    spaces = Namespace(str(tmp_path))
    spaces.create("plain", 1)
    lance.write_dataset(pa.table({"a": [5]}), tmp_path / location)
    spaces.call("register_table", "odd", location=location)
    read = {
        table.path: lance_core.dataset(table.uri).to_table()["a"].to_pylist()
        for table in maintenance.find_tables(tmp_path)
    }
    assert {path.removesuffix(".lance"): rows for path, rows in read.items()} == {"odd": [5], "plain": [1]}
    catalog.deregister(tmp_path, catalog.read_listing(tmp_path).tables["odd"])
    assert "odd" not in catalog.read_listing(tmp_path).tables


def test_several_ids_of_a_table(tmp_path):
    spaces = two_ids(tmp_path / "lake")
    (table,) = maintenance.find_tables(spaces.root)
    assert (table.path, table.object_id, table.other_paths) == ("orders.lance", "orders", ("shop/orders_v2",))
    assert table.names == ("orders", "shop/orders_v2")
    spaces.call("register_table", "a", location="orders.lance")
    (table,) = maintenance.find_tables(spaces.root)
    assert (table.path, table.object_id, table.other_paths) == ("a", "a", ("orders.lance", "shop/orders_v2"))


@pytest.mark.parametrize("is_client", [False, True])
@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ({}, 1),
        ({"exclude": "shop/*"}, 7),
        ({"exclude": "orders"}, 7),
        ({"include": "shop/*"}, 1),
        ({"include": "orders", "exclude": "shop/*"}, 7),
        ({"policies": {"shop/orders_v2": False}}, 7),
        ({"policies": {"shop": {"target_rows_per_fragment": 1}}}, 7),
        ({"policies": {"orders": {"target_rows_per_fragment": 1}}}, 7),
        ({"policies": {"orders": {"target_rows_per_fragment": 30}, "shop": {"target_rows_per_fragment": 30}}}, 1),
    ],
)
def test_every_id_of_a_table_chooses_it(tmp_path, caplog, choice, fragments, is_client):
    spaces = two_ids(tmp_path / "lake")
    space = {"impl": "dir", "root": spaces.root, "manifest_enabled": "true"} if is_client else None
    reports = maintenance.maintain_lake(spaces.root, **choice, namespace=space)
    assert [report.plan.table for report in reports if report.plan.uri.endswith("orders.lance")] in ([], ["orders"])
    assert len(lance_core.dataset(f"{spaces.root}/orders.lance").get_fragments()) == fragments
    assert "left alone" not in caplog.text
    assert "policies[" not in caplog.text


def test_a_table_whose_ids_have_different_policies_is_left_alone(tmp_path, caplog):
    spaces = two_ids(tmp_path / "lake")
    policies = {"orders": {"target_rows_per_fragment": 30}, "shop": {"target_rows_per_fragment": 20}}
    reports = maintenance.maintain_lake(spaces.root, policies=policies)
    assert [report.plan.table for report in reports] == ["__manifest"]
    assert "orders and shop/orders_v2 are ids of one table and have different policies" in caplog.text


def test_ids_with_line_breaks_are_found_where_pylance_has_their_tables(spaces):
    spaces.call("create_namespace", "shop")
    for number, name in enumerate(["ab", "a\nb", "a\t\rb"]):
        spaces.create(["shop", name], number)
    values = {
        table.path: lance_core.dataset(table.uri, storage_options=table.storage_options).to_table()["a"].to_pylist()
        for table in find(spaces)
    }
    assert values == {"shop/ab": [0], "shop/a\nb": [1], "shop/a\t\rb": [2]}


def test_ids_with_slashes_and_percent_signs_have_paths_of_their_own(tmp_path):
    """Through the root and a service; a path names the table to the command."""
    spaces = Namespace(str(tmp_path / "lake"))
    ids = [["x", "a/b"], ["x", "a%2Fb"], ["x", "a%252Fb"], ["x", "50%"], ["x%2Fa", "b"], ["x", "a", "b"]]
    for above in (["x"], ["x", "a"], ["x%2Fa"]):
        spaces.call("create_namespace", above)
    for number, parts in enumerate(ids):
        spaces.create(parts, number)
    lance_core.write_dataset({"a": [6]}, f"{spaces.root}/y/a%2Fb.lance")
    catalog.register(spaces.root, "y$a%2Fb", "y/a%2Fb.lance")
    paths = ["x/a%2Fb", "x/a%252Fb", "x/a%25252Fb", "x/50%25", "x%252Fa/b", "x/a/b", "y/a%252Fb"]
    with rest_service(spaces.root) as service:
        for place in ({"root_uri": spaces.root}, {"namespace": service}):
            tables = maintenance.find_tables(**place)
            values = {table.name: lance_core.dataset(table.uri).to_table()["a"].to_pylist() for table in tables}
            assert values == {path: [number] for number, path in enumerate(paths)}
            assert {"$".join(catalog.Namespace.parse_id(table.name)) for table in tables} == set(
                catalog.read_listing(spaces.root).tables
            )
        shown = CliRunner().invoke(cli, ["info", "x/a%252Fb", "--namespace", json.dumps(service), "--json"])
        assert json.loads(shown.output)["uri"] == catalog.uri_below(
            spaces.root, catalog.read_listing(spaces.root).tables["x$a%2Fb"]
        )
