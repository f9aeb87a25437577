"""Ids of tables that others rename, swap and deregister while a maintenance job runs: no step takes one for another."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    build_branch_jobs,
    build_change_type_job,
    build_erasure_job,
    build_maintenance_job,
    build_undo_job,
    lance_external_assets,
)
from tests.interop.namespaces import Namespace, after_commit, rest_service, write_dated
from tests.lance_dagster.lake import QUIET, errors

OLD, YOUNG = dt.datetime(2020, 1, 1), dt.datetime(2200, 1, 1)
EXPIRES = {"expire_rows_older_than": "1d", "expire_by": "at"}
SWAPS = {
    "swapped": {"events": "k", "keep": "e"},
    "renamed": {"events": None, "archive": "e"},
    "deregistered": {"events": None},
    "a second id": {"other": "e"},
}


@dg.asset(key=["shop", "events"], metadata={"lance/maintenance": EXPIRES})
def events() -> None: ...


@dg.asset(key=["shop", "keep"], metadata={"lance/maintenance": False})
def keep() -> None: ...


@pytest.fixture
def spaces(lake):
    """A table whose old rows expire, and one that keeps all its rows."""
    spaces = Namespace(lake.root)
    spaces.call("create_namespace", "shop")
    for location in ("e", "k"):
        write_dated(lake.root, location, [OLD, OLD, YOUNG, YOUNG])
    spaces.list_again("shop", events="e", keep="k")
    return spaces


def count(spaces, location):
    return lance.dataset(f"{spaces.root}/{location}").count_rows()


def run(lake, job, step, action, *, manager=None, assets=(), config=None):
    """Run a job; `action` happens once, after the op of a step."""
    actions = [action]

    @dg.success_hook
    def hook(context):
        if context.op.name == step and actions:
            actions.pop()()

    resources = {"io_manager": manager or lake.manager()}
    hooked = dg.Definitions(assets=assets, jobs=[job.with_hooks({hook})], resources=resources)
    result = hooked.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config={**QUIET, **(config or {})}, raise_on_error=False
    )
    assert not actions, errors(result)
    return result


def observed(result):
    return {
        event.asset_observation_data.asset_observation.asset_key.to_user_string()
        for event in result.all_events
        if event.is_asset_observation
    }


def check_absent(result, spaces):
    assert result.success
    assert "shop/events" in result.output_for_node("summarize")["absent"]
    assert "shop/events" not in observed(result)
    assert (count(spaces, "e"), count(spaces, "k")) == (4, 4)


@pytest.mark.variants(3)
@pytest.mark.parametrize("step", ["plan", "rewrite"])
@pytest.mark.parametrize("swap", SWAPS)
def test_of_a_root(lake, spaces, swap, step):
    policies = {"shop/events": EXPIRES | {"max_small_fragments": 1}, "shop/keep": False}
    job = build_maintenance_job(root=True, policies=policies)
    check_absent(run(lake, job, step, lambda: spaces.list_again("shop", **SWAPS[swap])), spaces)


@pytest.mark.variants(3)
@pytest.mark.parametrize("by_root", [False, True])
@pytest.mark.parametrize("swap", SWAPS)
def test_of_assets(lake, spaces, swap, by_root):
    job = build_maintenance_job([events, keep], root=by_root or None)
    result = run(lake, job, "plan", lambda: spaces.list_again("shop", **SWAPS[swap]), assets=[events, keep])
    check_absent(result, spaces)


@pytest.mark.variants(4)
@pytest.mark.parametrize("swap", ["swapped", "renamed", "deregistered"])
@pytest.mark.parametrize("kind", ["root", "assets", "namespace of the job"])
def test_of_a_service(lake, spaces, swap, kind):
    policies = {"shop/events": EXPIRES, "shop/keep": False}
    with rest_service(spaces.root) as service:
        space = {"namespace": service}
        manager = LanceIOManager(root_uri=f"{lake.root}_ops", **({} if kind.startswith("names") else space))
        if kind == "assets":
            job = build_maintenance_job([events, keep])
        else:
            job = build_maintenance_job(root=True, policies=policies, **({} if kind == "root" else space))
        result = run(lake, job, "plan", lambda: spaces.list_again("shop", **SWAPS[swap]), manager=manager)
        check_absent(result, spaces)


def test_no_version_of_another_table_is_removed(lake, spaces):
    policies = {"shop/events": {"retain_versions": 1}, "shop/keep": False}
    job = build_maintenance_job(root=True, policies=policies)
    result = run(lake, job, "refresh_indices", lambda: spaces.list_again("shop", **SWAPS["swapped"]))
    assert list(result.output_for_node("summarize")["partly_done"]) == ["shop/events"]
    assert [lance.dataset(f"{spaces.root}/{place}").versions()[0]["version"] for place in ("e", "k")] == [1, 1]


def test_an_asset_that_has_another_table_meanwhile(lake, spaces):
    """An id of the root takes the place of the folder in which a plain root has the table of a key of one part."""
    write_dated(lake.root, "public/top.lance", [OLD, OLD, YOUNG, YOUNG])
    top = dg.AssetSpec("top", metadata={"lance/maintenance": EXPIRES})
    result = run(lake, build_maintenance_job([top]), "plan", lambda: spaces.create("top", 1), assets=[top])
    assert result.success
    assert result.output_for_node("summarize")["absent"] == ["top"]
    assert (count(spaces, "public/top.lance"), spaces.rows(lance, "top")) == (4, [1])


def test_an_external_asset_of_a_root(lake, spaces):
    specs = lance_external_assets(lake.root)
    policies = {"shop/events": EXPIRES, "shop/keep": False}
    job = build_maintenance_job(root=lake.root, policies=policies)
    result = run(lake, job, "plan", lambda: spaces.list_again("shop", **SWAPS["swapped"]), assets=specs)
    check_absent(result, spaces)


@pytest.mark.parametrize("is_dry", [False, True])
def test_before_its_turn(lake, spaces, is_dry):
    """The listing is the last time that the namespace has the table."""
    space = {"impl": "tests.interop.namespaces.FleetingNamespace", "root": spaces.root}
    policy = LanceMaintenancePolicy(**EXPIRES, dry_run=is_dry)
    job = build_maintenance_job(root=True, namespace=space, policy=policy, include="shop/events")
    check_absent(run(lake, job, "plan", lambda: None), spaces)


def test_tables_whose_ids_stay_are_maintained(lake, spaces):
    """Others are renamed meanwhile, and a folder is listed by its name."""
    write_dated(lake.root, "shop/plain.lance", [OLD, OLD, YOUNG, YOUNG])

    def change():
        spaces.list_again("shop", keep=None, archive="k", plain="shop/plain.lance")

    policies = {"shop": EXPIRES, "shop/keep": False}
    result = run(lake, build_maintenance_job(root=True, policies=policies), "plan", change)
    assert result.output_for_node("summarize")["done"] == ["shop/events", "shop/plain"]
    assert [count(spaces, location) for location in ("e", "k", "shop/plain.lance")] == [2, 4, 2]


def test_a_table_that_has_the_name_of_an_asset_without_a_place(lake, spaces, monkeypatch):
    write_dated(lake.root, "s", [OLD, OLD, YOUNG, YOUNG])
    spaces.list_again("shop", **{"a b": "s"})
    spec = dg.AssetSpec(["shop", "a b"])
    definitions = dg.Definitions(assets=[spec], resources={"io_manager": lake.manager()})
    monkeypatch.setattr(dg.OpExecutionContext, "repository_def", definitions.get_repository_def())
    job = build_maintenance_job(root=True, policies={"shop/a b": EXPIRES})
    result = run(lake, job, "plan", lambda: None)
    assert "shop/a b" in result.output_for_node("summarize")["done"]
    assert count(spaces, "s") == 2


@pytest.mark.parametrize("change", [{"other": "shop/plain.lance"}, {"plain": "k"}])
def test_a_folder_whose_name_or_place_is_another_table_s_meanwhile(lake, spaces, change):
    write_dated(lake.root, "shop/plain.lance", [OLD, OLD, YOUNG, YOUNG])
    policies = {"shop/plain": EXPIRES}
    job = build_maintenance_job(root=True, policies=policies, include="shop/plain")
    result = run(lake, job, "plan", lambda: spaces.list_again("shop", **change))
    assert result.output_for_node("summarize")["absent"] == ["shop/plain"]
    assert [count(spaces, location) for location in ("e", "k", "shop/plain.lance")] == [4, 4, 4]


@pytest.mark.variants(4)
@pytest.mark.parametrize("swap", ["swapped", "a second id", "dropped"])
@pytest.mark.parametrize(("kind", "step"), [("root", "commit"), ("assets", "refresh_indices")])
def test_what_was_done_before_a_table_is_lost_is_reported(lake, spaces, swap, kind, step):
    def act():
        spaces.call("drop_table", "shop.events") if swap == "dropped" else spaces.list_again("shop", **SWAPS[swap])

    policies = {"shop/events": EXPIRES, "shop/keep": False}
    job = (
        build_maintenance_job([events, keep])
        if kind == "assets"
        else build_maintenance_job(root=True, policies=policies)
    )
    result = run(lake, job, step, act, assets=[events, keep])
    summary = result.output_for_node("summarize")
    reason = summary["partly_done"]["shop/events"]
    later = {"commit": "materialize_deletions", "refresh_indices": "clean_up"}[step]
    assert f"ids were given to others, before {later} ended: " in reason
    assert "shop/events" not in summary["absent"]
    [observation] = [
        event.asset_observation_data.asset_observation
        for event in result.all_events
        if event.is_asset_observation
        and event.asset_observation_data.asset_observation.asset_key == dg.AssetKey(["shop", "events"])
    ]
    entries = {name: value.value for name, value in observation.metadata.items()}
    assert (entries["lance/rows_expired"], entries["dagster/uri"]) == (2, f"{spaces.root}/e")
    assert (entries["lance/maintenance"], entries["lance/put_off"]) == ("partly done", reason)
    assert not {"dagster/row_count", "lance/rows_after"} & entries.keys()
    log = lance.dataset(f"{lake.root}/_maintenance/log.lance").to_table(filter="table = 'shop/events'").to_pylist()
    assert [row["step"] for row in log][:: len(log) - 1] == ["expire", "table"]
    assert (log[-1]["outcome"], log[-1]["reason"]) == ("partly done", reason)


@dg.asset(key=["shop", "orders"])
def orders():
    return pa.table({"n": [1, 2]})


@pytest.mark.parametrize("kind", ["erasure", "undo", "promotion", "discard"])
def test_jobs_that_survey_first_change_no_table_that_is_another_one_s_since(lake, spaces, kind):
    tags = {"lance/branch": "b"} if kind in ("promotion", "discard") else {}
    tagged = {"branching": BranchPolicy.from_tag("lance/branch")}
    lake.run(orders)
    run_id = lake.run(orders, tags=tags, **tagged).run_id
    location = spaces.call("describe_table", "shop.orders").location
    before = [lance.dataset(location).version, lance.dataset(location).count_rows()]
    job, config = {
        "erasure": (build_erasure_job([orders]), {"where": {"plain": "n = 1"}}),
        "undo": (build_undo_job([orders]), {"run_id": run_id}),
        "promotion": (build_branch_jobs([orders])[0], {}),
        "discard": (build_branch_jobs([orders])[1], {}),
    }[kind]
    space = {"impl": "tests.interop.namespaces.FleetingNamespace", "root": spaces.root}
    manager = LanceIOManager(root_uri=f"{lake.root}_ops", namespace=space, **tagged)
    defs = dg.Definitions(assets=[orders], jobs=[job], resources={"io_manager": manager})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance,
        tags=tags,
        run_config={**QUIET, "ops": {f"{job.name}_op": {"config": config}}},
        raise_on_error=False,
    )
    assert "is no longer the table of asset shop/orders" in errors(result)
    assert before == [lance.dataset(location).version, lance.dataset(location).count_rows()]
    assert set(lance.dataset(location).branches.list()) == ({"b"} if tags else set())
    assert not [event for event in result.all_events if event.is_step_materialization or event.is_asset_observation]


@dg.asset(key=["shop", "items"])
def items():
    return pa.table({"n": [1, 2]})


CHANGES = [
    ("undo", 1, "the change was committed to"),
    ("promotion", 1, "the change was committed to"),
    ("erasure", 1, "had done a part: 2 rows deleted"),
    ("erasure", 3, "had done a part: 2 rows deleted, 2 fragments rewritten"),
    ("type", 1, "the change was committed to"),
]


@pytest.mark.variants(3)
@pytest.mark.parametrize("swap", [{"orders": None}, {"orders": "k", "keep": "o"}])
@pytest.mark.parametrize(("kind", "number", "message"), CHANGES)
def test_a_change_of_a_table_that_is_another_one_s_since_has_no_event(lake, spaces, kind, number, message, swap):
    tags, tagged = {"lance/branch": "b"}, {"branching": BranchPolicy.from_tag("lance/branch")}
    lake.run(orders, items, write_mode="append")
    run_tags = tags if kind == "promotion" else {}
    run_id = lake.run(orders, items, tags=run_tags, write_mode="append", **tagged).run_id
    location = spaces.call("describe_table", "shop.orders").location
    swap = {name: location.rpartition("/")[2] if place == "o" else place for name, place in swap.items()}
    assets = [orders, items]
    job, config = {
        "erasure": (build_erasure_job(assets), {"where": {"plain": "n = 1"}}),
        "undo": (build_undo_job(assets), {"run_id": run_id}),
        "promotion": (build_branch_jobs(assets)[0], {}),
        "type": (build_change_type_job(assets), {"table": "shop/orders", "column": "n", "type": "int32"}),
    }[kind]
    defs = dg.Definitions(assets=assets, jobs=[job], resources={"io_manager": lake.manager(**tagged)})
    with after_commit(location, lambda: spaces.list_again("shop", **swap), number):
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance,
            tags=run_tags,
            run_config={**QUIET, "ops": {f"{job.name}_op": {"config": config}}},
            raise_on_error=False,
        )
    assert message in errors(result)
    assert location.removeprefix("file://") in errors(result)
    logged = [entry.dagster_event for entry in lake.instance.all_logs(result.run_id) if entry.dagster_event]
    keys = {event.asset_key.to_user_string() for event in logged if event.asset_key is not None}
    assert keys == (set() if kind == "type" else {"shop/items"})
