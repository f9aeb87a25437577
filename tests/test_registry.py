"""What `docs/registry` holds for the community's registry of components and for Dagster's pages is true of the package."""

import importlib.util
import json
import re
from pathlib import Path

import dagster as dg
import pytest
import yaml

ROOT = Path(__file__).parents[1] / "docs" / "registry"
ENTRY = ROOT / "lance_lakehouse"
SCHEMA, MANIFEST = (json.loads((ENTRY / name).read_text()) for name in ("schema.json", "manifest_entry.json"))
EXAMPLE = yaml.safe_load((ENTRY / "example.yaml").read_text())

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster warns of its own sensors


@pytest.fixture(scope="module")
def component():
    """The class of the entry, as the registry loads it: by the path of its module."""
    spec = importlib.util.spec_from_file_location("lance_lakehouse_component", ENTRY / "component.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, EXAMPLE["type"].rpartition(".")[2])


def test_the_example_becomes_definitions(component):
    resolved = component.resolve_from_yaml(yaml.safe_dump(EXAMPLE["attributes"]))
    constructed = component(**EXAMPLE["attributes"])  # as the registry's own check does
    for found in (resolved, constructed):
        definitions = found.build_defs(None)
        assert [job.name for job in definitions.jobs] == ["lance_maintenance"]
        assert [schedule.cron_schedule for schedule in definitions.schedules] == ["0 3 * * *"]
        assert set(definitions.resources) == set(SCHEMA["x-dagster-provides"])


def test_the_yaml_of_the_page_becomes_definitions(component):
    (block,) = re.findall(r"```yaml\n(.*?)```", (ENTRY / "README.md").read_text(), re.DOTALL)
    attributes = {**yaml.safe_load(block)["attributes"], "root_uri": "lake"}
    definitions = component.resolve_from_yaml(yaml.safe_dump(attributes)).build_defs(None)
    assert len(list(definitions.asset_checks)) >= 4
    assert {"lance_maintenance", "lance_promote"} <= {job.name for job in definitions.jobs}


def test_attributes_are_fields_of_the_component(component):
    fields = component.model_fields
    assert {name for name, field in fields.items() if field.is_required()} <= set(SCHEMA["attributes"]) <= set(fields)
    for name, attribute in SCHEMA["attributes"].items():
        assert attribute["required"] is fields[name].is_required()
        if "default" in attribute:
            assert attribute["default"] == fields[name].default
    rows = re.findall(r"^\| `(\w+)` \|", (ENTRY / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SCHEMA["attributes"])


def test_the_manifest_agrees_with_the_files():
    for key in ("name", "description", "category", "icon", "tags", "component_type", "x-dagster-provides"):
        assert MANIFEST[key] == SCHEMA[key]
    assert EXAMPLE["type"] == SCHEMA["component_type"]
    assert MANIFEST["dependencies"]["pip"] == (ENTRY / "requirements.txt").read_text().split()
    assert MANIFEST["path"].rpartition("/")[2] == MANIFEST["id"] == ENTRY.name
    for key, url in MANIFEST.items():
        if key.endswith("_url"):
            assert (ENTRY / Path(url).name).exists()
            assert f"/{MANIFEST['path']}/" in url


def test_the_snippet_of_the_page_for_dagsters_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "dagster_docs" / "lance.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)
    with dg.DagsterInstance.ephemeral() as instance:
        resources = names["defs"].resources
        assert dg.materialize(
            [names["events"]], partition_key="2026-01-02", resources=resources, instance=instance
        ).success
