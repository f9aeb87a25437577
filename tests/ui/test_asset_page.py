"""The asset page of the real Dagster UI shows what the IO manager recorded.

Facts are asked of the webserver by GraphQL; then headless Chromium renders the page, and the same facts must be in
what it shows.
"""

import json
import os
import re
import runpy
import sys
import urllib.request
from pathlib import Path

import dagster as dg
import pytest

from tests import processes
from tests.support.browser import CHROMIUM, browse
from tests.ui.site import QUIET_YAML, wait_for

ROOT = Path(__file__).parents[2]
DEFINITIONS = Path(__file__).with_name("definitions.py")
MISSING = "Chromium is missing, so the Dagster UI is not tested; on Debian: apt-get install chromium"
PAGE = "/assets/analytics/departures?view=overview"

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

QUERY = """
{ assetNodeOrError(assetKey: {path: ["analytics", "departures"]}) { ... on AssetNode {
    kinds
    metadataEntries { label ... on TextMetadataEntry { text } }
    assetMaterializations(limit: 20) { partition metadataEntries {
      label
      ... on IntMetadataEntry { intValue }
      ... on TextMetadataEntry { text }
      ... on TableSchemaMetadataEntry { schema { columns { name type } } }
    } }
} } }
"""


def test_chromium_is_there():
    """Not marked: says in every run why the pages are not looked at."""
    if CHROMIUM is None:
        pytest.skip(MISSING)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A webserver on a lake with four days in one commit and one of them replaced; its address and the lake."""
    if CHROMIUM is None:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("ui")
    home, lake = folder / "home", Path(os.environ.get("LANCE_PICTURES_LAKE", folder / "lake"))
    home.mkdir()
    (home / "dagster.yaml").write_text(QUIET_YAML)
    environment = {**os.environ, "DAGSTER_HOME": str(home), "LANCE_TEST_ROOT": str(lake), "PYTHONPATH": str(ROOT)}
    write_days(home, lake)
    with processes.held_port() as port:
        command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", port, "-f", DEFINITIONS]
        with processes.running([*command, "--read-only"], env=environment, log=folder / "webserver.log") as server:
            wait_for(f"http://127.0.0.1:{port}/server_info", server)
            yield f"http://127.0.0.1:{port}", lake


def write_days(home, lake):
    """What `dagster asset materialize` does, without the seconds that two processes take to begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANCE_TEST_ROOT", str(lake))
        defs = runpy.run_path(str(DEFINITIONS))["defs"]
    span = {"dagster/asset_partition_range_start": "2024-01-02", "dagster/asset_partition_range_end": "2024-01-05"}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for chosen in ({"tags": span}, {"partition_key": "2024-01-03"}):
            dg.materialize(defs.assets, resources=defs.resources, instance=instance, **chosen)


@pytest.fixture(scope="module")
def page(site, tmp_path_factory):
    """What the page shows: its text, and a picture of it."""
    folder = tmp_path_factory.mktemp("page")
    picture = folder / "page.png"
    dom = browse(site[0] + PAGE, folder / "profile", "--dump-dom", f"--screenshot={picture}")
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", dom, flags=re.DOTALL)
    return " ".join(text.split()), picture


@pytest.mark.ui
def test_the_webserver_knows_the_facts(site):
    address, lake = site
    request = urllib.request.Request(
        f"{address}/graphql", json.dumps({"query": QUERY}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        node = json.load(answer)["data"]["assetNodeOrError"]
    assert set(node["kinds"]) == {"lance", "arrow"}
    definition = {entry["label"]: entry.get("text") for entry in node["metadataEntries"]}
    assert definition["dagster/table_name"] == "analytics.departures"
    assert definition["dagster/uri"] == f"{lake}/analytics/departures.lance"
    events = {event["partition"]: event["metadataEntries"] for event in reversed(node["assetMaterializations"])}
    assert sorted(events) == [f"2024-01-0{day}" for day in (2, 3, 4, 5)]
    entries = {entry["label"]: entry for entry in events["2024-01-03"]}
    assert entries["dagster/row_count"]["intValue"] == 6000
    assert entries["dagster/partition_row_count"]["intValue"] == 1500
    assert entries["lance/version"]["intValue"] == 2
    assert [column["name"] for column in entries["dagster/column_schema"]["schema"]["columns"]] == [
        "day",
        "passengers",
        "embedding",
    ]


@pytest.mark.ui
def test_the_page_shows_counts_size_columns_name_and_uri(site, page):
    lake, shown = site[1], page[0]
    for expected in (
        "Row count",
        "6,000",
        "analytics.departures",
        f"{lake}/analytics/departures.lance",
        "passengers",
        "embedding",
        "fixed_size_list",
    ):
        assert expected in shown, f"{expected!r} is not in: {shown}"
    assert re.search(r"\d+(\.\d+)? ?[kKM]i?B", shown), shown


@pytest.mark.ui
def test_a_picture_of_the_page(site, page, tmp_path):
    data = page[1].read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") == 1600
    assert len(data) > 50_000, "an empty page compresses to less"
    if kept := os.environ.get("LANCE_PICTURES"):  # the one that the README shows; LANCE_PICTURES_LAKE: its address
        browse(site[0] + PAGE, tmp_path / "small", f"--screenshot={Path(kept) / 'asset.png'}", size="1700,1630")
