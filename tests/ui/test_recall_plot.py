"""The asset page of the Dagster UI plots the measured recall of an index over time."""

import os
import runpy
from pathlib import Path

import dagster as dg
import pytest

from tests.support.browser import CHROMIUM, photograph
from tests.ui.site import dagster_site

DEFINITIONS = Path(__file__).with_name("search_definitions.py")
PAGE = "/assets/library/notes?view=overview"
RECALL = "lance/index_recall/embedding_idx"
PLOTS = (
    "[...document.querySelectorAll('button')].filter(b => b.innerText.trim() === 'Plots').map(b => b.click()).length"
)
PLOT = f"""(() => {{
  const title = [...document.querySelectorAll('*')].find(e => !e.children.length && e.textContent === '{RECALL}');
  let plot = title;
  while (plot && !plot.querySelector('canvas')) plot = plot.parentElement;
  if (!plot) return null;
  let rows = plot;
  while (rows.offsetWidth < 800) rows = rows.parentElement;
  plot.scrollIntoView({{block: 'center'}});
  const box = plot.getBoundingClientRect(), row = rows.getBoundingClientRect();
  return {{x: row.x - 12, y: box.y - 4, width: row.width + 24, height: box.height + 8}};
}})()"""
DRAWN = "new Promise(done => setTimeout(() => done(true), 3000))"
"""Plots are drawn by an animation."""

pytestmark = [pytest.mark.ui, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing; on Debian: apt-get install chromium")
def test_the_page_plots_recall(tmp_path):
    kept = os.environ.get("LANCE_PICTURES")  # the folder of the picture that docs/search.md shows
    with dagster_site(tmp_path, DEFINITIONS, daemon=False) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LANCE_TEST_ROOT", str(site.lake))
            defs = runpy.run_path(str(DEFINITIONS))["defs"]
        maintain, values = defs.resolve_job_def("lance_maintenance"), []
        for number in range(8 if kept else 2):
            run = {"instance": site.instance, "tags": {"number": str(number)}}
            dg.materialize(defs.assets, resources=defs.resources, **run)
            (event,) = maintain.execute_in_process(**run).get_asset_observation_events()
            values.append(event.asset_observation_data.asset_observation.metadata[RECALL].value)
        assert all(0.5 < value <= 1 for value in values)
        picture = Path(kept or tmp_path, "recall.png")
        shown = photograph(site.url + PAGE, tmp_path / "profile", [PLOTS, PLOT, DRAWN, PLOT], picture)
        assert RECALL in shown
        assert len(picture.read_bytes()) > 5_000, "an empty plot compresses to less"
