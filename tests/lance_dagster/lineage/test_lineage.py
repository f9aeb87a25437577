"""What the tables record of runs and inputs, as events, on commits and by the command; and how a run is taken back."""

import json
import re
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, LanceTableResource, build_undo_job
from lance_dagster.branches.page import describe_branches
from lance_dagster.events.table_log import cell, read_recent_versions, render_history, render_table_log, run_link
from lance_dagster.io_manager.column_types import change_column_type
from lance_dagster.lineage.history import read_history
from lance_dagster.undo.plan import plan_undo
from tests.lance_dagster.lake import QUIET, errors
from tests.support.undo_command import command

HOSTILE = "[x](javascript:1)![x](http://evil)<img src=x><b>|a|\nFORGED | `$\x1b[2J\x9b\u202e\u2066\r\x7f"
COLUMN = HOSTILE.replace("`", "")  # which no column's name can have
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]")
KEYS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


@dg.asset
def boats() -> pa.Table:
    return pa.table({"n": [5]})


@dg.asset(
    ins={"flights": dg.AssetIn(["nyc", "flights"])},
    metadata={"lance/column_lineage": {"n": ["nyc/flights.n", "boats.n"]}},
)
def late(flights: pa.Table, boats: pa.Table) -> pa.Table:
    return pa.concat_tables([flights, boats])


def parted(*rows):
    @dg.asset(partitions_def=KEYS, metadata={"partition_expr": "p"})
    def events(context) -> pa.Table:
        mine = [row for row in rows if row[0] in context.partition_keys]
        return pa.table(
            {"p": [p for p, _ in mine], "n": [n for _, n in mine]}, schema=pa.schema([("p", "string"), ("n", "int64")])
        )

    return events


def answer(*arguments, **options):
    return json.loads(command(*arguments, "--json", **options))


class TestEvents:
    def test_inputs_are_on_the_commit_with_their_versions(self, lake):
        lake.run(flights, boats)
        lake.run(flights, boats, late, default_load_type="pyarrow")
        properties = lake.properties("late")[-1]
        for name in ("nyc/flights", "boats"):
            table_id = lake.table(name).recorded_table_id()
            read = {"uri": lake.uri(name), "version": 2, "table_id": table_id}
            assert json.loads(properties[f"dagster.input.{name}"]) == read
        assert not any(key.startswith("dagster.input") for key in lake.properties("boats")[-1])
        read = lance.dataset(lake.uri("late")).read_transaction(1).transaction_properties
        assert read["dagster.input.boats"] == properties["dagster.input.boats"]

    def test_what_a_body_opens_counts_as_read(self, lake):
        @dg.asset
        def summary(tables: LanceTableResource) -> pa.Table:
            return tables.open("nyc/flights", version=1).to_table()

        lake.run(flights)
        lake.run(flights)
        lake.run(summary, resources={"tables": LanceTableResource(root_uri=lake.root)})
        recorded = json.loads(lake.properties("summary")[-1]["dagster.input.nyc/flights"])
        table_id = lake.table("nyc/flights").recorded_table_id()
        assert recorded == {"uri": lake.uri("nyc/flights"), "version": 1, "table_id": table_id}

    def test_the_history_links_to_the_runs(self, lake):
        for _ in range(12):
            result = lake.run(boats)
        metadata = result.asset_materializations_for_node("boats")[0].metadata
        assert isinstance(metadata["lance/table_log"], dg.MarkdownMetadataValue)
        log = metadata["lance/table_log"].value
        lines = log.partition("### Versions\n\n")[2].partition("\n\n###")[0].splitlines()
        assert lines[0] == "| run | version | time (UTC) | operation | rows |", "columns without an entry are left out"
        assert len(lines) == 2 + 10
        assert lines[2].startswith(f"| [{result.run_id[:8]}](/runs/{result.run_id}) | 12 | ")
        assert "Overwrite" in lines[2]
        time = lines[2].split(" | ")[2]
        assert not {" ", "-"} & set(time), "a time stays on one line"
        assert "### Branches" in log
        assert "### Tags" in log

    def test_the_log_shows_branches_tags_and_inputs(self, lake):
        lake.run(flights, boats, late, default_load_type="pyarrow")
        table = lake.table("late")
        table.tags.create("keep", 1)
        table.create_branch("trial/one", 1).create_branch("trial/two")
        result = lake.run(flights, boats, late, default_load_type="pyarrow")
        log = result.asset_materializations_for_node("late")[0].metadata["lance/table_log"].value
        assert "\n- main\n  - trial/one from version 1\n    - trial/two from version 1\n" in log
        assert "| keep | main | 1 |" in log
        assert "| 2 | nyc/flights | 2 |" in log

    def test_the_log_names_who_reads_the_table(self, lake):
        @dg.asset(deps=[boats])
        def report() -> None:
            """No table of ours."""

        def log(*selected):
            result = lake.run(*everything, select=[*selected], default_load_type="pyarrow")
            return result.asset_materializations_for_node("boats")[0].metadata["lance/table_log"].value

        everything = [flights, boats, late, report]
        page = log(flights, boats)
        assert "### Consumers" in page
        assert "| late |\n" in page
        assert page.endswith("| report |")
        log(flights, boats, late, report)
        page = log(boats)
        assert "| late | 2 |" in page
        assert "| report | 2 |" in page

    def test_links_begin_where_the_ui_is(self, lake):
        for url, prefix in ((None, ""), ("/dagster", "/dagster"), ("https://example.org/d/", "https://example.org/d")):
            result = lake.run(boats, ui_url=url)
            metadata = result.asset_materializations_for_node("boats")[0].metadata
            assert f"({prefix}/runs/{result.run_id})" in metadata["lance/table_log"].value

    @pytest.mark.parametrize("wrong", ["dagster", "javascript:x", "//x y", "https://e)(", "ftp://x"])
    def test_a_url_that_is_none(self, lake, wrong):
        with pytest.raises(ValueError, match="ui_url"):
            lake.manager(ui_url=wrong)

    def test_columns_come_from_where_the_asset_says(self, lake):
        result = lake.run(flights, boats, late, default_load_type="pyarrow")
        lineage = result.asset_materializations_for_node("late")[0].metadata["dagster/column_lineage"].value
        found = {(dep.asset_key.to_user_string(), dep.column_name) for dep in lineage.deps_by_column["n"]}
        assert found == {("nyc/flights", "n"), ("boats", "n")}

    def test_strings_of_tables_are_no_markdown(self):
        assert cell("a|b\n[x](javascript:1)<b>") == r"a\|b\\n\[x\]\(javascript:1\)\<b\>"
        assert "\u202e" not in cell("\u202etxt")
        assert "\x1b" not in cell("\x1b[2J")
        assert run_link("x](http://evil)") == r"x\]\(http://evil\)"

    def test_a_message_cannot_break_the_page(self, lake):
        message = "| x |\n| --- |\n![](http://evil)"
        lance_core.write_dataset(pa.table({"n": [1]}), lake.uri("boats"), commit_message=message)
        result = lake.run(boats)
        log = result.asset_materializations_for_node("boats")[0].metadata["lance/table_log"].value
        history = log.partition("### Versions\n\n")[2].partition("\n\n###")[0]
        assert len(history.splitlines()) == 4
        assert "![](" not in log

    @pytest.mark.parametrize(
        "bad", [HOSTILE, json.dumps([HOSTILE, "b", "c", "d"]), json.dumps({"first": HOSTILE}), "5"]
    )
    def test_properties_that_others_wrote_are_no_markdown(self, lake, bad):
        properties = {
            "dagster.partition_keys": bad,
            "dagster.run_id": HOSTILE,
            "dagster.asset_key": HOSTILE,
            f"dagster.input.{HOSTILE}": json.dumps({"uri": HOSTILE, "version": HOSTILE}),
        }
        table = lance_core.write_dataset(
            pa.table({COLUMN: [HOSTILE]}), lake.uri("boats"), commit_message=HOSTILE, transaction_properties=properties
        )
        begun = table.create_branch("trial")
        begun.insert(pa.table({COLUMN: ["x"]}), transaction_properties=properties)
        pages = [
            render_history(read_recent_versions(table)),
            render_table_log(table, read_recent_versions(table), {HOSTILE: 1}),
            describe_branches(table, lake.instance, dg.AssetKey("boats"))["lance/branches"].value,
        ]
        for page in pages:
            assert HIDDEN.search(page) is None
            assert not re.search(r"(?<!\\)(\[x\]|<img|<b>|\$)", page), page
            assert re.search(r"^FORGED", page, re.MULTILINE) is None
        assert len(pages[0].splitlines()) == 3
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in pages[2].splitlines()}
        assert cells == {11}
        for arguments in (["lineage", lake.uri("boats")], ["tables", lake.root]):
            assert HIDDEN.search(command(*arguments)) is None
        assert HIDDEN.search(command("undo", lake.root, "--run", "none" + HOSTILE, "--dry-run", fails=1)) is None


class TestLineageCommand:
    def test_by_run_asset_and_version(self, lake):
        lake.run(flights, boats)
        result = lake.run(flights, boats, late, default_load_type="pyarrow")
        found = answer("lineage", lake.root, "--run", result.run_id)
        assert {entry["asset"] for entry in found} == {"late", "boats", "nyc/flights"}
        (entry,) = [one for one in found if one["asset"] == "late"]
        assert set(entry) == {
            "table", "asset", "branch", "version", "operation", "run_id", "time", "partitions", "inputs",
        }  # fmt: skip
        assert (entry["table"], entry["version"], entry["branch"]) == (lake.uri("late"), 1, "main")
        assert entry["inputs"] == [
            {"asset": "boats", "uri": lake.uri("boats"), "version": 2},
            {"asset": "nyc/flights", "uri": lake.uri("nyc/flights"), "version": 2},
        ]
        assert [one["version"] for one in answer("lineage", lake.root, "--asset", "boats")] == [1, 2]
        (entry,) = answer("lineage", lake.uri("boats"), "--version", 1)
        assert entry["run_id"] != result.run_id
        assert "nyc/flights at 2" in command("lineage", lake.uri("late"))
        assert answer("lineage", lake.root, "--run", "none") == []

    def test_partitions_and_branches(self, lake):
        lake.run(parted(("a", 1), ("b", 2)), span=("a", "b"))
        lake.table("events").create_branch("trial").insert(pa.table({"p": ["c"], "n": [1]}))
        found = answer("lineage", lake.uri("events"))
        assert found[0]["partitions"] == ["a", "b"]
        assert "trial" in {entry["branch"] for entry in found}

    def test_inputs_of_a_branch_keep_its_name(self, lake):
        tags = {"lance/branch": "trial"}
        branching = BranchPolicy.from_tag("lance/branch")
        lake.run(flights, boats)
        result = lake.run(flights, boats, late, default_load_type="pyarrow", tags=tags, branching=branching)
        read = {"asset": "boats", "uri": lake.uri("boats"), "version": 2, "branch": "trial"}
        properties = lake.table("late").checkout_version(("trial", None)).read_transaction(2).transaction_properties
        assert json.loads(properties["dagster.input.boats"])["branch"] == "trial"
        metadata = result.asset_materializations_for_node("late")[0].metadata
        assert read in [dict(one) for one in metadata["lance/inputs"].value]
        assert "| boats | 2 of branch trial |" in metadata["lance/table_log"].value
        entry = [one for one in answer("lineage", lake.uri("late")) if one["branch"] == "trial"][-1]
        assert read in entry["inputs"]
        assert "trial" in re.sub(r"[^a-z]+", " ", command("lineage", lake.uri("late")).rpartition("boats at 2")[2])
        page = lake.run(flights, boats, late, select=[boats]).asset_materializations_for_node("boats")[0].metadata
        assert "| late | 2 |" not in page["lance/table_log"].value

    def test_where_nothing_is(self, lake):
        assert "no Lance table" in command("lineage", lake.root, fails=1)
        assert answer("lineage", lake.root, fails=1)["error"]["code"] == "dataset-not-found"

    def test_choices_exclude_each_other(self, lake):
        command("lineage", lake.root, "--run", "x", "--version", "1", fails=2)

    def test_the_overview(self, lake):
        result = lake.run(flights, boats)
        lance_core.write_dataset(pa.table({"a": [1]}), f"{lake.root}/_ops/run/step/result.lance")
        found = {entry["asset"]: entry for entry in answer("tables", lake.root)}
        assert set(found) == {"nyc/flights", "boats"}
        assert found["nyc/flights"]["rows"] == 2
        assert found["boats"]["run_id"] == result.run_id
        command("tables", lake.root)


class TestUndo:
    def test_of_the_newest_version(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        assert answer("undo", lake.root, "--run", run, "--dry-run")[0]["rows_after"] == 1
        assert lake.table("boats").version == 2
        (done,) = answer("undo", lake.root, "--run", run, "--yes")
        assert done["undoes"] == [2]
        assert lake.rows("boats") == [(5,)]
        assert lake.properties("boats")[-1]["dagster.undo.run_id"] == run
        assert lance.dataset(lake.uri("boats")).count_rows() == 1

    def test_after_maintenance(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        lake.table("boats").optimize.compact_files()
        answer("undo", lake.uri("boats"), "--run", run, "--yes")
        assert lake.rows("boats") == [(5,)]

    @pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
    def test_indices_that_were_built_since_stay(self, lake, kind):
        """Also those of pylance, which finds by them what is there."""
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        lance.dataset(lake.uri("boats")).create_scalar_index("n", kind)
        (done,) = answer("undo", lake.root, "--run", run, "--yes")
        assert "without the indices" not in done["how"]
        (index,) = lake.table("boats").describe_indices()
        assert index.num_rows_indexed == 1
        found = lance.dataset(lake.uri("boats"))
        assert found.to_table(filter="n = 5")["n"].to_pylist() == [5]
        assert lake.table("boats").to_table(filter="n = 5")["n"].to_pylist() == [5]
        assert "ScalarIndexQuery" in found.scanner(filter="n = 5").explain_plan()

    def test_indices_that_cannot_stay_are_named_with_the_remedy(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        lake.table("boats").optimize.compact_files()
        lake.table("boats").create_scalar_index("n", "BTREE", name="fast")
        job = build_undo_job([boats])
        defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance, tags={"lance/undo_run": run}, run_config=QUIET
        )
        said = [one.user_message for one in lake.instance.all_logs(result.run_id) if one.level == 30]
        assert len(said) == 1
        assert "without the indices that were built since: 'fast' (" in said[0]
        assert "create_scalar_index" in said[0]
        event = lake.instance.get_latest_materialization_event(boats.key).asset_materialization
        assert event.metadata["lance/commit"].value["indices_lost"] == ["fast"]
        assert lake.rows("boats") == [(5,)]
        assert lake.table("boats").describe_indices() == []

    def test_an_index_that_was_there_before_is_not_named(self, lake):
        lake.run(boats)
        lake.table("boats").create_scalar_index("n", "BTREE", name="fast")
        run = lake.run(boats, write_mode="append").run_id
        lake.table("boats").optimize.optimize_indices()
        (done,) = answer("undo", lake.root, "--run", run, "--yes")
        assert done["how"] == "version 2 is restored"
        assert [one.name for one in lake.table("boats").describe_indices()] == ["fast"]

    def test_of_an_append_that_others_appended_after(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        lake.table("boats").insert(pa.table({"n": [7]}))
        (done,) = answer("undo", lake.root, "--run", run, "--yes")
        assert done["rows_after"] == 2
        assert lake.rows("boats") == [(5,), (7,)]
        assert sorted(lance.dataset(lake.uri("boats")).to_table()["n"].to_pylist()) == [5, 7]

    def test_of_partitions_when_others_were_written_since(self, lake):
        lake.run(parted(("a", 1), ("b", 2)), span=("a", "b"), index_partitions=False)
        run = lake.run(parted(("a", 10)), partition="a", index_partitions=False).run_id
        lake.run(parted(("b", 20), ("c", 30)), span=("b", "c"), index_partitions=False)
        first, before = lake.table("events").checkout_version(1), lake.table("events").version
        answer("undo", lake.root, "--run", run, "--yes")
        assert lake.rows("events") == [("a", 1), ("b", 20), ("c", 30)]
        found = lance.dataset(lake.uri("events")).to_table().to_pylist()
        assert sorted(tuple(row.values()) for row in found) == [("a", 1), ("b", 20), ("c", 30)]
        is_back = {"filter": "n = 1", "with_row_id": True}
        assert lake.table("events").to_table(**is_back)["_rowid"] == first.to_table(**is_back)["_rowid"]
        for library in (lance_core, lance):  # whoever follows the changes sees the row again
            changes = library.dataset(lake.uri("events")).delta(begin_version=before, end_version=before + 1)
            assert changes.get_inserted_rows().read_all()["n"].to_pylist() == [1]

    @pytest.mark.parametrize("order", ["cb", "bc"])
    def test_of_several_runs_in_any_order(self, lake, order):
        runs = {key: lake.run(parted((key, 1)), partition=key).run_id for key in "abc"}
        for key in order:
            answer("undo", lake.root, "--run", runs[key], "--yes")
            assert json.loads(lake.properties("events")[-1]["dagster.partition_keys"]) == [key]
        assert lake.rows("events") == [("a", 1)]
        assert lance.dataset(lake.uri("events")).to_table().to_pylist() == [{"p": "a", "n": 1}]

    def test_of_a_run_whose_partition_was_written_again_and_that_was_undone(self, lake):
        lake.run(parted(("a", 1)), partition="a")
        run, later = (lake.run(parted(("a", n)), partition="a").run_id for n in (2, 3))
        assert "as well" in command("undo", lake.root, "--run", run, "--yes", fails=1)
        for one in (later, run):
            answer("undo", lake.root, "--run", one, "--yes")
        assert lake.rows("events") == [("a", 1)]

    def test_after_an_undo_that_does_not_name_its_partitions(self, lake, monkeypatch):
        runs = {key: lake.run(parted((key, 1)), partition=key, index_partitions=False).run_id for key in "abc"}
        monkeypatch.setattr("lance_dagster.undo.plan._partition_properties", lambda _: {})  # as releases before did
        answer("undo", lake.root, "--run", runs["b"], "--yes")
        answer("undo", lake.root, "--run", runs["c"], "--yes")
        assert lake.rows("events") == [("a", 1)]

    def test_after_the_promotion_of_a_branch_with_an_undo_of_its_own(self, lake):
        branching = BranchPolicy.from_tag("lance/branch")
        lake.run(parted(("a", 1)), partition="a")
        lake.run(parted(("b", 1)), partition="b")
        on_branch = {"tags": {"lance/branch": "trial"}, "branching": branching}
        undone = lake.run(parted(("c", 1)), partition="c", **on_branch).run_id
        trial = lake.table("events").checkout_version(("trial", None))
        plan_undo(trial, undone).commit()
        lake.run(parted(("d", 1)), partition="d", **on_branch)
        run = lake.run(parted(("a", 2)), partition="a").run_id
        lake.run(parted(("b", 2)), partition="b")
        lake.table("events").branches.promote("trial")
        command("undo", lake.root, "--run", run, "--yes")
        assert lake.rows("events") == [("a", 1), ("b", 2), ("d", 1)]

    @pytest.mark.parametrize(
        ("later", "reason"),
        [
            (lambda lake: lake.run(parted(("a", 11)), partition="a"), "wrote to partition 'a' as well"),
            (
                lambda lake: lake.table("events").insert(pa.table({"p": ["a"], "n": [9]})),
                "does not name the partitions",
            ),
            (lambda lake: lake.table("events").add_columns({"x": "1"}), "does not name the partitions"),
            (
                lambda lake: change_column_type(lake.table("events"), "n", pa.float64()),
                "the columns have changed; undo the later runs first",
            ),
        ],
    )
    def test_what_is_not_exact_is_rejected_before_anything_is_written(self, lake, later, reason):
        lake.run(parted(("a", 1)), partition="a")
        run = lake.run(parted(("a", 10)), partition="a").run_id
        later(lake)
        version = lake.table("events").version
        for choice in ("--dry-run", "--yes"):
            assert reason in answer("undo", lake.root, "--run", run, choice, fails=1)["error"]["message"]
        assert lake.table("events").version == version

    def test_columns_that_it_added_before_a_later_run(self, lake):
        @dg.asset(metadata={"lance/write_mode": "append", "lance/schema_mode": "add_columns"})
        def wide(context) -> pa.Table:
            return pa.table({name: [1] for name in context.run.tags["names"].split()})

        _, second, third = (lake.run(wide, tags={"names": names}).run_id for names in ("a", "a b", "a"))
        assert "undo the later runs first" in command("undo", lake.root, "--run", second, "--yes", fails=1)
        for run in (third, second):
            command("undo", lake.root, "--run", run, "--yes")
        assert lake.rows("wide") == [(1,)]

    def test_rows_that_were_changed_since(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        lake.run(boats, write_mode="append")
        lake.table("boats").update({"n": "6"})
        assert "were changed since" in command("undo", lake.root, "--run", run, "--yes", fails=1)

    def test_of_the_run_that_created_the_table(self, lake):
        run = lake.run(boats).run_id
        assert "drop the table" in command("undo", lake.root, "--run", run, "--yes", fails=1)

    def test_of_a_version_after_a_deleted_one(self, lake):
        lake.run(boats)
        run = lake.run(boats).run_id
        lake.table("boats").cleanup_old_versions(retain_versions=1)
        assert "was cleaned up" in command("undo", lake.root, "--run", run, "--yes", fails=1)

    def remove_version_of_others(self, table, rows):
        """Let others append, and clean that version up, though versions 1 and 2 stay."""
        for number in (1, 2):
            table.tags.create(f"keep-{number}", number)
        table.insert(rows)
        table.update_config({"mine": "1"})
        table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
        assert [version["version"] for version in table.versions()] == [1, 2, 4]

    def test_beside_rows_of_a_version_that_was_cleaned_up(self, lake):
        """Restoring the version before the run would remove these rows, too."""
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        rows = lake.rows("boats")
        self.remove_version_of_others(lake.table("boats"), pa.table({"n": [9]}))
        command("undo", lake.root, "--run", run, "--yes")
        assert lake.rows("boats") == [*rows[: len(rows) // 2], (9,)]

    def test_before_a_compaction_beside_a_version_that_was_cleaned_up(self, lake):
        """Only maintenance is left after the run, but the version before it lacks the rows of others."""
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        table = lake.table("boats")
        for number in (1, 2):
            table.tags.create(f"keep-{number}", number)
        table.insert(pa.table({"n": [9]}))
        table.optimize.compact_files()
        table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
        rows = lake.rows("boats")
        assert "were changed since" in command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert lake.rows("boats") == rows

    def test_of_a_partition_beside_a_version_that_was_cleaned_up(self, lake):
        lake.run(parted(("a", 1)), partition="a")
        run = lake.run(parted(("a", 10)), partition="a", write_mode="append").run_id
        self.remove_version_of_others(lake.table("events"), pa.table({"p": ["b"], "n": [9]}))
        said = command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert "version 3 was cleaned up, and the partitions that it wrote are not known" in said
        assert lake.rows("events") == [("a", 1), ("a", 10), ("b", 9)]

    def test_of_versions_with_one_between_that_was_cleaned_up(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        table = lake.table("boats")
        table.insert(pa.table({"n": [7]}))
        table.insert(pa.table({"n": [8]}), transaction_properties={"dagster.run_id": run})
        for number in (1, 2):
            table.tags.create(f"keep-{number}", number)
        table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
        rows = lake.rows("boats")
        said = command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert "versions [3], which others wrote or which were cleaned up, are between its own" in said
        assert lake.rows("boats") == rows

    def test_of_a_run_whose_versions_were_cleaned_up(self, lake):
        run = lake.run(boats).run_id
        lake.run(boats)
        lake.table("boats").cleanup_old_versions(retain_versions=1)
        said = command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert "versions were cleaned up, with the names of their runs" in said
        assert "boats.lance before 2" in said

    def test_twice_and_of_nothing(self, lake):
        lake.run(boats)
        run = lake.run(boats).run_id
        command("undo", lake.root, "--run", run, "--yes")
        assert "it was undone before" in command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert "no such run" in command("undo", lake.root, "--run", "none", "--yes", fails=1)
        command("undo", lake.root, "--run", run, fails=2)

    def test_a_beginning_of_the_id_that_is_unique(self, lake):
        lake.run(boats)
        run = lake.run(boats, write_mode="append").run_id
        assert answer("undo", lake.root, "--run", run[:8], "--dry-run")[0]["run_id"] == run
        assert {one["run_id"] for one in answer("lineage", lake.root, "--run", run[:8])} == {run}
        for made in ("same-1", "same-2"):
            lake.table("boats").insert(pa.table({"n": [1]}), transaction_properties={"dagster.run_id": made})
        said = command("undo", lake.root, "--run", "same-", "--yes", fails=1)
        assert "several runs begin with 'same-': same-1, same-2" in said
        maintained = lake.table("boats").optimize.compact_files(transaction_properties={"dagster.run_id": "kept"})
        assert maintained is not None
        assert "run kept changed no rows" in command("undo", lake.root, "--run", "kept", "--yes", fails=1)

    def test_the_first_run_of_a_chain_whose_re_execution_wrote_is_not_called_maintenance(self, lake):
        lake.run(boats)
        chain = {"dagster.run_id": "second", "dagster.root_run_id": "first"}
        lake.table("boats").insert(pa.table({"n": [1]}), transaction_properties=chain)
        said = command("undo", lake.root, "--run", "first", "--yes", fails=1)
        assert "run first wrote nothing itself; undo run second, which re-executed it" in said
        job = build_undo_job([boats])
        defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance, tags={"lance/undo_run": "first"}, run_config=QUIET, raise_on_error=False
        )
        assert "undo run second, which re-executed it" in errors(result)
        assert answer("undo", lake.root, "--run", "second", "--dry-run")[0]["run_id"] == "second"

    @pytest.mark.parametrize("by", ["job", "library"])
    def test_a_promotion_of_several_runs_names_what_can_be_undone(self, lake, by):
        lake.run(boats)
        on_branch = lake.table("boats").create_branch("work")
        for run in ("one", "two"):
            on_branch.insert(pa.table({"n": [1]}), transaction_properties={"dagster.run_id": run})
        promoter = {"dagster.promotion_run_id": "promoter"} if by == "job" else {}
        done = lake.table("boats").branches.promote("work", transaction_properties=promoter)
        lake.table("boats").branches.discard("work")
        said = command("undo", lake.root, "--run", "one", "--yes", fails=1)
        if by == "job":
            assert "undo run promoter, which promoted them" in said
            assert answer("undo", lake.root, "--run", "promoter", "--yes")[0]["run_id"] == "promoter"
        else:
            assert f"dataset.checkout_version({done.version - 1}).restore()" in said
            lake.table("boats").checkout_version(done.version - 1).restore()
        assert lake.table("boats").count_rows() == len(lake.table("boats").checkout_version(1).to_table())

    @pytest.mark.parametrize("spelled", ["{root}", "{root}/", "{name}", "./{name}/"])
    def test_the_instance_learns_what_the_table_holds(self, lake, tmp_path, monkeypatch, spelled):
        monkeypatch.delenv("DAGSTER_HOME", raising=False)
        with dg.DagsterInstance.local_temp(str(tmp_path)) as lake.instance:
            lake.run(boats)
            run = lake.run(boats, write_mode="append").run_id
            assert "DAGSTER_HOME" in command("undo", lake.root, "--run", run, "--yes", "--report", fails=1)
            assert lake.table("boats").version == 2
            command("undo", lake.root, "--run", run, "--dry-run", "--report", fails=2)
            (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
            monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
            monkeypatch.chdir(Path(lake.root).parent)
            command(
                "undo", spelled.format(root=lake.root, name=Path(lake.root).name), "--run", run, "--yes", "--report"
            )
            event = lake.instance.get_latest_materialization_event(dg.AssetKey("boats")).asset_materialization
            said = {key: entry.value for key, entry in event.metadata.items()}
            assert (said["lance/version"], said["dagster/row_count"], said["lance/undid_run"]) == (3, 1, run)
            assert said["dagster/uri"] == lake.uri("boats")
            assert said["dagster/table_name"] == "public.boats"
            assert event.tags["dagster/data_version"].endswith(":main:3")

    def test_one_table_that_cannot_keeps_all_as_they_are(self, lake):
        lake.run(boats, flights)
        run = lake.run(boats, flights, write_mode="append").run_id
        lake.table("nyc/flights").update({"n": "6"})
        command("undo", lake.root, "--run", run, "--yes", fails=1)
        assert lake.table("boats").version == 2

    def test_a_writer_that_comes_between_makes_it_a_conflict(self, lake):
        from lance_core.errors import RetryableConflictError

        lake.run(boats)
        run = lake.run(boats).run_id
        plan = plan_undo(lake.table("boats"), run)
        lake.table("boats").insert(pa.table({"n": [7]}))
        with pytest.raises(RetryableConflictError, match="committed meanwhile"):
            plan.commit()
        assert lake.rows("boats") == [(5,), (7,)]


@pytest.mark.parametrize("ahead", [1, 2, 3, 100])
def test_versions_that_are_read_at_once_are_those_that_are_read_one_by_one(lake, ahead):
    lake.run(boats)
    for n in range(5):
        lake.table("boats").insert(pa.table({"n": [n]}))
    table = lake.table("boats")
    (Path(lake.uri("boats")) / "_versions" / f"{2**64 - 1 - 3}.manifest").unlink()
    found = [(handle.version, made.uuid, handle.count_rows()) for handle, made in table.history(ahead=ahead)]
    assert found == [(handle.version, made.uuid, handle.count_rows()) for handle, made in table.history()]
    assert [version for version, _, _ in found] == [6, 5, 4, 2, 1]
    assert [one.version for one in read_history(table, after=4, ahead=ahead)] == [6, 5]


class TestRowsOfARestore:
    def changes(self, table):
        return [(one.operation, one.rows_added, one.rows_removed) for one in read_history(table)]

    def test_rows_that_come_back_are_added(self, tmp_path):
        table = lance_core.write_dataset(pa.table({"n": [1, 2, 3]}), str(tmp_path / "t.lance"))
        table.delete("n = 1")
        table.checkout_version(1).restore()
        table = lance_core.dataset(table.uri)
        assert self.changes(table)[0] == ("Restore", 1, 0)
        table.checkout_version(2).restore()
        assert self.changes(lance_core.dataset(table.uri))[0] == ("Restore", 0, 1)

    def test_fragments_that_an_overwrite_numbered_again(self, tmp_path):
        table = lance_core.write_dataset(pa.table({"n": [1, 2, 3]}), str(tmp_path / "t.lance"))
        table = lance_core.write_dataset(pa.table({"n": [4, 5]}), table.uri, mode="overwrite")
        table.checkout_version(1).restore()
        assert self.changes(lance_core.dataset(table.uri)) == [
            ("Restore", 3, 2),
            ("Overwrite", 2, 3),
            ("Overwrite", 3, 0),
        ]


def test_a_version_opened_in_the_body_stands_beside_the_input(lake):
    """Also in the commit of a promotion, and without what an earlier attempt of the step has opened."""
    policy = {"branching": BranchPolicy.from_tag("lance/branch")}

    @dg.asset(metadata={"lance/write_mode": "append"})
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1), metadata={"lance/write_mode": "append"})
    def growth(context, orders: pa.Table, lance: LanceTableResource) -> pa.Table:
        lance.open("orders", version=2 if context.retry_number == 0 else 1)
        lance.open("orders", version=3)
        if context.retry_number == 0:
            raise RuntimeError("the first attempt fails")
        return pa.table({"now": [orders.num_rows]})

    def versions(run):
        ((materialization),) = run.asset_materializations_for_node("growth")
        return [read["version"] for read in materialization.metadata["lance/inputs"].value]

    resources = {"lance": LanceTableResource(root_uri=lake.root)}
    for _ in range(3):
        lake.run(orders)
    assert versions(lake.run(orders, growth, select=[growth], resources=resources)) == [3, 1]
    lake.table("growth").create_branch("work")
    lake.run(orders)
    lake.run(orders, growth, select=[growth], resources=resources, tags={"lance/branch": "work"}, **policy)
    branch = lake.table("growth").checkout_version(("work", None))
    assert [read.version for read in next(read_history(branch)).inputs] == [4, 1, 3]
    lake.table("growth").branches.promote("work")
    assert [read.version for read in next(read_history(lake.table("growth"))).inputs] == [4, 1, 3]


def test_a_graph_asset_records_what_its_ops_have_loaded(lake):
    """The stored output of each op names the inputs that it is made from, for the ops that load it."""

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.op
    def load(orders: pa.Table) -> pa.Table:
        return orders

    @dg.op
    def count(tables: LanceTableResource) -> int:
        return tables.open("public/more").count_rows()

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
    def put_together(context, rows: pa.Table, n: int) -> dict:  # no frame
        if context.retry_number == 0:
            raise dg.Failure("the first attempt")
        return {"n": [*rows["n"].to_pylist(), n]}

    @dg.op
    def shape(columns: dict) -> pa.Table:
        return pa.table(columns)

    @dg.graph_asset
    def shaped(orders):
        return shape(put_together(load(orders), count()))

    lance_core.write_dataset({"n": [1, 2]}, lake.uri("more"))
    resources = {"tables": LanceTableResource(root_uri=lake.root)}
    for _ in range(2):
        lake.run(orders, shaped, resources=resources)
    assert lake.rows("shaped") == [(1,), (2,)]
    properties = lake.properties("shaped")[-1]
    read = {key: json.loads(value)["version"] for key, value in properties.items() if key.startswith("dagster.input.")}
    assert read == {"dagster.input.orders": 2, "dagster.input.public/more": 1}
    event = lake.instance.get_latest_materialization_event(shaped.key).asset_materialization
    assert {one["asset"]: one["version"] for one in event.metadata["lance/inputs"].value} == {
        "orders": 2,
        "public/more": 1,
    }


def test_what_an_op_of_another_io_manager_has_loaded_is_not_recorded(lake):
    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.op(out=dg.Out(io_manager_key="memory"))
    def load(orders: pa.Table) -> pa.Table:
        return orders

    @dg.op
    def shape(rows: pa.Table) -> pa.Table:
        return rows

    @dg.graph_asset
    def shaped(orders):
        return shape(load(orders))

    lake.run(orders, shaped, resources={"memory": dg.mem_io_manager})
    assert not any(key.startswith("dagster.input.") for key in lake.properties("shaped")[-1])
