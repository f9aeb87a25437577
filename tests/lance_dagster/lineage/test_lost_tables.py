"""A run wrote several tables, and one of them was dropped since, or its id names another: all are changed or none."""

import shutil
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.test_utils import instance_for_test

import lance_core
from lance_core import catalog
from lance_dagster import BranchPolicy, build_audited_job, build_branch_jobs, build_undo_job
from tests.interop.namespaces import Namespace, rest_service
from tests.lance_dagster.lake import QUIET, Lake, errors
from tests.support.undo_command import command

TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}
ON_BRANCH = {"tags": {"lance/branch": "b"}, **TAGGED}
APPENDS = {"lance/write_mode": "append"}


@dg.asset(key=["shop", "boats"], metadata=APPENDS)
def boats() -> pa.Table:
    return pa.table({"a": [1]})


@dg.asset(key=["shop", "trains"], metadata=APPENDS)
def trains() -> pa.Table:
    return pa.table({"a": [1]})


class Root:
    """A root with two tables, which its clients can take away."""

    def __init__(self, lake, kind):
        self.lake, self.kind = lake, kind
        self.spaces = Namespace(lake.root) if kind == "namespace" else None
        if self.spaces is not None:
            self.spaces.create("shop.trains", 0)  # in a folder that a write does not look for
        lake.run(boats, *([] if self.spaces else [trains]))

    def uri(self, name):
        if self.spaces is None:
            return self.lake.uri(name)
        return f"{self.lake.root}/{self.spaces.listed()[name.replace('/', '$')]}"

    def rows(self, name):
        return lance_core.dataset(self.uri(name)).count_rows()

    def take_away(self, how):
        """Take the table of trains away, and return its URI."""
        uri = self.uri("shop/trains")
        if how == "moved":
            self.move(uri)
        elif how in ("dropped", "made again"):
            shutil.rmtree(uri) if self.spaces is None else self.spaces.call("drop_table", "shop.trains")
        elif how == "deregistered":
            self.spaces.call("deregister_table", "shop.trains")
        else:
            self.spaces.call("deregister_table", "shop.trains")
            self.spaces.create("shop.trains", 9)
        if how == "made again":
            self.lake.run(trains)
        return uri

    def move(self, uri):
        if self.spaces is None:
            Path(uri).rename(uri.replace("trains", "cars"))
        else:
            self.spaces.call("deregister_table", "shop.trains")
            self.spaces.call("register_table", "shop.cars", location=Path(uri).name)

    def bring_back(self, uri):
        """Follow the remedy of the errors."""
        if self.spaces is None:
            Path(uri.replace("trains", "cars")).rename(uri)
            return
        listed = self.spaces.listed()
        for object_id in ("shop$trains", "shop$cars"):
            if object_id in listed:
                catalog.deregister(self.lake.root, listed[object_id])
        catalog.register(self.lake.root, "shop$trains", Path(uri).name)

    def run_job(self, job, *, fails=False, **config):
        defs = dg.Definitions(jobs=[job], resources={"io_manager": self.lake.manager(**TAGGED)})
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=self.lake.instance,
            run_config={**QUIET, "ops": {f"{job.name}_op": {"config": config}}},
            raise_on_error=False,
        )
        assert result.success is not fails, errors(result)
        return errors(result)


NAMESPACE = [("namespace", how) for how in ("moved", "dropped", "deregistered", "given away", "made again")]
PLAIN = [("folders", how) for how in ("moved", "dropped", "made again")]
RETURNS = ("moved", "deregistered", "given away")

taken_away = pytest.mark.parametrize(("kind", "how"), [*NAMESPACE, *PLAIN])
PROMOTE, DISCARD = build_branch_jobs([boats, trains], require_checks=False)
UNDO = build_undo_job([boats, trains])


@pytest.fixture
def root(lake, kind):
    return Root(lake, kind)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The lake of an instance that the command finds."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    with instance_for_test(temp_dir=str(folder)) as instance:
        yield Lake(str(tmp_path / "lake"), instance)


def check_message(said, root, uri, how):
    assert "shop/trains" in said
    assert uri in said
    assert "shop/boats" not in said
    if how in ("deregistered", "given away") or (how == "moved" and root.spaces is not None):
        assert "register" in said
        assert 'catalog.register("' in said


@pytest.mark.variants(3)
@taken_away
def test_promotion(root, how):
    root.lake.run(boats, trains, **ON_BRANCH)
    uri = root.take_away(how)
    said = root.run_job(PROMOTE, branch="b", fails=True)
    check_message(said, root, uri, how)
    assert root.rows("shop/boats") == 1
    if how in RETURNS:
        root.bring_back(uri)
        root.run_job(PROMOTE, branch="b")
        assert (root.rows("shop/boats"), root.rows("shop/trains")) == (2, 2)
    else:
        root.run_job(PROMOTE, branch="b", tables=["shop/boats"])
        assert root.rows("shop/boats") == 2


@pytest.mark.variants(3)
@taken_away
def test_a_promotion_that_was_made_before_is_found(root, how):
    root.lake.run(boats, trains, **ON_BRANCH)
    root.run_job(PROMOTE, branch="b")
    root.take_away(how)
    root.run_job(PROMOTE, branch="b")
    assert root.rows("shop/boats") == 2


@pytest.mark.variants(3)
@taken_away
def test_a_discard_leaves_nothing_that_is_missed_later(root, how):
    root.lake.run(boats, trains, **ON_BRANCH)
    uri = root.take_away(how)
    root.run_job(DISCARD, branch="b")
    assert "b" not in lance_core.dataset(root.uri("shop/boats")).branches.list()
    records = root.lake.instance.fetch_observations(trains.key, limit=1).records
    if how not in ("given away", "made again"):
        metadata = records[0].asset_observation.metadata
        assert metadata["lance/discarded"].value == "b"
    root.lake.run(boats, **ON_BRANCH)
    root.run_job(PROMOTE, branch="b")
    assert root.rows("shop/boats") == 2
    assert uri


@pytest.mark.variants(3)
@taken_away
def test_undo_by_the_job(root, how):
    run = root.lake.run(boats, trains).run_id
    uri = root.take_away(how)
    said = root.run_job(UNDO, run_id=run, fails=True)
    assert "nothing was undone" in said
    check_message(said, root, uri, how)
    assert root.rows("shop/boats") == 2
    if how in RETURNS:
        root.bring_back(uri)
        root.run_job(UNDO, run_id=run)
        assert (root.rows("shop/boats"), root.rows("shop/trains")) == (1, 1)
    else:
        root.run_job(UNDO, run_id=run, tables=["shop/boats"])
        assert root.rows("shop/boats") == 1


@pytest.mark.parametrize(("kind", "how"), [("namespace", "deregistered"), ("folders", "dropped")])
def test_undo_of_a_promotion(root, how):
    root.lake.run(boats, trains, **ON_BRANCH)
    root.run_job(PROMOTE, branch="b")
    run = root.lake.instance.get_runs(limit=1)[0].run_id
    uri = root.take_away(how)
    check_message(root.run_job(UNDO, run_id=run, fails=True), root, uri, how)
    assert root.rows("shop/boats") == 2


@pytest.mark.parametrize(("kind", "how"), [("namespace", "dropped"), ("folders", "dropped")])
def test_an_undo_that_was_made_before_is_reported(root, how):
    run = root.lake.run(boats, trains).run_id
    root.run_job(UNDO, run_id=run)
    root.take_away(how)
    root.run_job(UNDO, run_id=run)
    assert root.rows("shop/boats") == 1


@pytest.mark.parametrize(("kind", "how"), [("folders", "dropped")])
def test_undo_of_a_run_whose_tables_are_all_lost(root, how):
    run = root.lake.run(trains).run_id
    uri = root.take_away(how)
    check_message(root.run_job(UNDO, run_id=run, fails=True), root, uri, how)


@pytest.mark.variants(6)
@pytest.mark.parametrize("report", [False, True])
@taken_away
def test_undo_by_the_command(home, kind, how, report):
    root = Root(home, kind)
    run = root.lake.run(boats, trains).run_id
    uri = root.take_away(how)
    options = ["--report"] if report else []
    if how == "moved" or (how == "given away" and root.spaces is None):  # the command finds tables by what they say
        command("undo", home.root, "--run", run, "--yes", *options)
        assert root.rows("shop/boats") == 1
        return
    said = command("undo", home.root, "--run", run, "--yes", *options, fails=1)
    assert "nothing was undone" in said
    assert "shop/trains" in said
    assert uri in said
    assert root.rows("shop/boats") == 2
    assert command("undo", home.root, "--run", run, "--dry-run", fails=1) == said
    command("undo", root.uri("shop/boats"), "--run", run, "--yes", *options)
    assert root.rows("shop/boats") == 1


def test_the_command_and_a_namespace_of_others(home):
    root = Root(home, "namespace")
    run = root.lake.run(boats, trains).run_id
    with rest_service(home.root) as service:
        import json

        chosen = ["--namespace", json.dumps(service)]
        root.take_away("deregistered")
        assert "shop/trains" in command("undo", "shop", "--run", run, "--yes", *chosen, fails=1)
        command("undo", "shop/boats", "--run", run, "--yes", *chosen)
    assert root.rows("shop/boats") == 1


@pytest.mark.parametrize(("kind", "how"), [("namespace", "deregistered"), ("folders", "dropped")])
def test_an_audited_job_publishes_nothing(root, how):
    @dg.asset(deps=[boats, trains])
    def last() -> pa.Table:
        root.take_away(how)
        return pa.table({"a": [1]})

    job = build_audited_job([boats, trains, last], name="audited", allow_unaudited=True)
    defs = dg.Definitions([boats, trains, last], jobs=[job], resources={"io_manager": root.lake.manager()})
    result = defs.resolve_job_def("audited").execute_in_process(
        instance=root.lake.instance, run_config=QUIET, raise_on_error=False
    )
    assert not result.success
    assert "shop/trains" in errors(result)
    assert root.rows("shop/boats") == 1
