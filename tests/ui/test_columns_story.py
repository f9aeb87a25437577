"""Columns and changes with a real daemon, webserver and Spark, on disk and on S3; pylance reads what is there."""

import json
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from tests.ui.site import Site, dagster_site

DEFINITIONS = Path(__file__).with_name("columns_definitions.py")
DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
IDS = [1000 * day + n for day in (1, 2, 3) for n in range(100)]


class Images(Site):
    """The same with the tables of this story."""

    def open(self, name, library=lance):
        root, options = self.env["LANCE_TEST_ROOT"], json.loads(self.env.get("LANCE_TEST_STORAGE", "{}"))
        return library.dataset(f"{root}/public/{name}.lance", storage_options=options or None)

    def fill(self, asset, days=DAYS, **tags):
        """A backfill to its end."""
        backfill = self.backfill(asset, days, **tags)
        ended = ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED")
        self.until(f"the backfill of {asset}", lambda: self.backfill_status(backfill) in ended)
        runs = self.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        assert self.backfill_status(backfill) == "COMPLETED_SUCCESS", [self.why(run.run_id) for run in runs]

    def run(self, job, config=None):
        """A run to its end."""
        self.until_done(self.launch(job, config))

    def event(self, asset):
        return self.instance.get_latest_materialization_event(dg.AssetKey(asset)).asset_materialization

    def cells(self, column, branch=None):
        dataset = self.open("images", lance_core).checkout_version((branch, None))
        table = dataset.to_table(["id", column])
        assert branch is not None or table == self.open("images").to_table(["id", column])
        return dict(zip(*table.to_pydict().values(), strict=True))

    def captions(self):
        return dict(zip(*self.open("captions").to_table(["id", "caption"]).to_pydict().values(), strict=True))

    def changes(self):
        """What the last run of captions has read."""
        (found,) = self.event("captions").metadata["lance/changes"].value
        return tuple(found.get(f"rows_{kind}") for kind in ("inserted", "updated", "deleted"))

    def checks(self):
        """Run all checks; by asset whether it passed, and the number that it found."""
        self.run("audit")
        found = {}
        for asset, name, number in (
            ("embeddings", "lance_missing_values", "lance/rows_missing"),
            ("labels", "lance_missing_values", "lance/rows_missing"),
            ("captions", "lance_lag", "lance/rows_unread"),
        ):
            key = dg.AssetCheckKey(dg.AssetKey(asset), name)
            (record,) = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
            result = record.event.dagster_event.asset_check_evaluation_data
            found[asset] = (result.passed, result.metadata[number].value)
        return found


@pytest.fixture(scope="module", params=["disk", "s3"])
def site(request, tmp_path_factory):
    env = []
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        env = [
            ("LANCE_TEST_ROOT", f"s3://{s3.new_bucket()}/lake"),
            ("LANCE_TEST_STORAGE", json.dumps(s3.storage_options)),
        ]
    with dagster_site(tmp_path_factory.mktemp("columns"), DEFINITIONS, env=env, kind=Images) as site:
        yield site


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
class TestStory:
    """In this order: each goes on with the lake of the one before."""

    def test_two_assets_own_columns_of_the_rows_of_another(self, site):
        site.fill("images")
        before = {fragment.data_files()[0].path for fragment in site.open("images").get_fragments()}
        site.fill("embeddings")
        site.fill("labels", label="cat")
        assert site.cells("vector") == {i: [float(i)] * 8 for i in IDS}
        assert site.cells("label") == dict.fromkeys(IDS, "cat")
        assert {fragment.data_files()[0].path for fragment in site.open("images").get_fragments()} == before
        assert site.event("labels").metadata["dagster/row_count"].value == len(IDS)

    def test_a_reader_takes_everything_and_then_what_has_changed(self, site):
        site.run("caption")
        assert site.captions() == dict.fromkeys(IDS, "a cat")
        assert site.changes() == (len(IDS), 0, 0)
        site.open("images").update({"label": "'fox'"}, where="id in (1000, 2000)")
        site.open("images").delete("id = 3000")
        assert site.checks() == {"embeddings": (True, 0), "labels": (True, 0), "captions": (False, 3)}
        site.run("caption")
        wanted = {i: "a fox" if i in (1000, 2000) else "a cat" for i in IDS if i != 3000}
        assert site.captions() == wanted
        assert site.changes() == (0, 2, 1)
        assert site.checks()["captions"] == (True, 0)

    def test_rows_that_come_later_are_counted_and_set(self, site):
        late = pa.table(
            {
                "id": pa.array([1100, 1101], pa.int64()),
                "day": pa.array([19723, 19723], pa.int32()).cast(pa.date32()),
                "image": [b"y"] * 2,
            }
        )
        lance.write_dataset(late, site.open("images"), mode="append")
        assert site.checks() == {"embeddings": (False, 2), "labels": (False, 2), "captions": (False, 2)}
        site.fill("embeddings", DAYS[:1])
        site.fill("labels", DAYS[:1], label="owl")
        assert site.cells("vector")[1101] == [1101.0] * 8
        site.run("caption")
        assert {i: text for i, text in site.captions().items() if text == "a owl"}.keys() == {
            i for i in [*IDS, 1100, 1101] if i < 2000
        }
        assert site.checks() == {"embeddings": (True, 0), "labels": (True, 0), "captions": (True, 0)}

    def test_maintenance_keeps_what_the_reader_needs(self, site):
        before = site.open("images").to_table().sort_by("id")
        site.open("images").update({"label": "'bat'"}, where="id = 2001")
        site.run("lance_maintenance")
        site.run("caption")
        assert site.changes() == (0, 1, 0)
        assert site.captions()[2001] == "a bat"
        after = site.open("images").to_table().sort_by("id")
        assert after.drop_columns(["label"]) == before.drop_columns(["label"])

    def test_a_column_is_filled_on_a_branch_and_published(self, site):
        before = site.cells("label")
        site.fill("labels", label="dog", **{"lance/branch": "trial"})
        assert site.cells("label") == before
        assert set(site.cells("label", "trial").values()) == {"dog"}
        site.run("lance_promote", {"ops": {"lance_promote_op": {"config": {"branch": "trial"}}}})
        assert site.cells("label") == dict.fromkeys(before, "dog")
        assert site.event("labels").metadata["lance/version"].value == site.open("images").version
        site.run("caption")
        assert set(site.captions().values()) == {"a dog"}
        assert site.open("images").to_table(["vector"])["vector"].null_count == 0
