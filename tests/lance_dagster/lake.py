"""A lake to test with, and short ways to run assets into it."""

from dataclasses import dataclass, field

import dagster as dg

import lance_core
from lance_dagster import LanceIOManager

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass
class Lake:
    """Tables under one root, and the Dagster instance that fills them."""

    root: str
    instance: dg.DagsterInstance
    storage_options: dict[str, str] = field(default_factory=dict)

    def manager(self, **config):
        return LanceIOManager(root_uri=self.root, storage_options=self.storage_options, **config)

    def run(self, *assets, partition=None, span=None, select=None, fails=False, tags=None, resources=None, **config):
        """Materialize assets; `span` is a first and a last partition of one run; `fails` None: either way is fine."""
        tags = dict(tags or {})
        if span is not None:
            tags |= {RANGE_START: span[0], RANGE_END: span[1]}
        result = dg.materialize(
            list(assets),
            resources={"io_manager": self.manager(**config), **(resources or {})},
            partition_key=partition,
            instance=self.instance,
            selection=select,
            tags=tags,
            raise_on_error=fails is False,
            run_config=QUIET,
        )
        assert fails is None or result.success is not fails
        return result

    def uri(self, name):
        schema, _, table = name.rpartition("/")
        return f"{self.root}/{schema or 'public'}/{table}.lance"

    def table(self, name):
        return lance_core.dataset(self.uri(name), storage_options=self.storage_options or None)

    def rows(self, name, **options):
        table = self.table(name).to_table(**options)
        return sorted(tuple(row.values()) for row in table.to_pylist())

    def properties(self, name):
        """The transaction properties of each version, oldest first."""
        table = self.table(name)
        return [dict(table.read_transaction(v["version"]).transaction_properties) for v in table.versions()]


def errors(result):
    """Class names and messages of the errors of a failed run, causes included."""
    found = []
    for event in result.all_events:
        error = event.event_specific_data.error if event.is_step_failure else None
        while error is not None:
            found.append(f"{error.cls_name}: {error.message}")
            error = error.cause
    return "\n".join(found)
