"""`make demo`: writes real flights by Spark into Lance tables in Dagster; then prints the history in the tables.

Six runs materialize the five reference tables; `flights` for a range of days at once; one of these days again, which
replaces exactly that day; `captions`, a computed column of the flights; the tables derived from the flights; and
`aircraft` again, which merges rows by tail number.
The printed history comes from the tables alone. Maintenance follows, which also builds a declared index on vectors.
Then a week is materialized again on a branch, and the branch is promoted into main by one commit. Its changes, and the
versions before and after, are printed. An incremental asset reads only the changes of the promotion, and captions are
computed of its rows alone.
Finally a table that others write is observed, and all checks run.

    python -m example_project.demo [--first 2013-01-01] [--last 2013-12-31] [--again 2013-02-14]
"""

import argparse
import json
import logging
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - in the main thread
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import lance_core
import pyspark_lance
from example_project.home import clear_example_home, example_home, notices_uri, prepare_dagster_home
from lance_core.errors import LanceError
from lance_core.maintenance import describe_index_health

__all__ = ["main"]

TABLES = (
    *("airlines", "airports", "planes", "weather", "calendar", "flights"),
    *("delays", "flight_vectors", "aircraft", "routes", "carriers", "cancellations"),
)
_COLUMNS: Mapping[str, Literal["left", "right"]] = {
    "version": "right",
    "operation": "left",
    "rows": "right",
    "fragments": "right",
    "run id": "left",
    "partition keys": "left",
}
_SEARCHED = {"airports": "name", "flight_vectors": "features"}
"""The tables that declare an index for search, and its column."""

_PARTITION = "dagster/partition"
BRANCH = "backfill/week"
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def main() -> None:
    """Run the demonstration.

    Raises:
        SystemExit: No Java is installed, or a run failed.
    """
    chosen = _arguments()
    console = Console()
    _check_java(console)
    warnings.simplefilter("ignore")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    clear_example_home()
    prepare_dagster_home()
    started = time.monotonic()
    runs = {
        "airlines, airports, planes, weather, calendar": ("reference_tables", {}),
        f"flights, {chosen.first} .. {chosen.last}": ("flight_days", _span(chosen.first, chosen.last)),
        f"flights, {chosen.again} again": ("flight_days", {_PARTITION: chosen.again}),
        "captions of flights": ("flight_captions", {}),
        "delays, vectors, aircraft, routes, carriers, cancellations": (
            "derived_tables",
            _span(chosen.first[:8] + "01", chosen.last[:8] + "01"),
        ),
        "aircraft again, merged by tail number": ("aircraft_seen", {}),
    }
    with dg.DagsterInstance.get() as instance, _bar(console) as bar:
        for title, (job, tags) in runs.items():
            _run(job, tags, title, instance, bar)
        _print_histories(console)
        _run("lance_maintenance", {}, "maintenance", instance, bar)
        _print_maintenance(console, _observed(instance))
        _print_indices(console)
        _show_a_branch(console, _week(chosen.again), instance, bar)
        _run("cancellations_since", {}, "cancellations, from changes", instance, bar)
        _print_changes(console, instance)
        _run("flight_captions", {}, "captions of flights that lack them", instance, bar)
        _print_captions(console, instance)
        _write_notices()
        _run("observe_notices", {}, "a table that others write", instance, bar)
        _run("check_tables", {}, "checks", instance, bar)
    console.print(f"\n{time.monotonic() - started:.0f} s. [bold]make ui[/bold] shows the runs in the Dagster UI.")


def _show_a_branch(console: Console, week: tuple[str, str], instance: dg.DagsterInstance, bar: Progress) -> None:
    """Materialize a week again on a branch, print its changes, promote it, and print the versions before and after."""
    before = _flights()
    tags = {**_span(*week), "lance/branch": BRANCH}
    _run("flight_days", tags, f"{week[0]} .. {week[1]} on a branch", instance, bar)
    _print_diff(console, _flights().branches.diff(BRANCH))
    branch = before.checkout_version((BRANCH, None))
    _run("lance_promote", {"lance/branch": BRANCH}, "promote the branch", instance, bar)
    shown = Table(title="flights before and after the promotion", title_justify="left")
    for heading in ("", "version", "rows", "fragments"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, table in {"main before": before, BRANCH: branch, "main after": _flights()}.items():
        shown.add_row(name, str(table.version), f"{table.count_rows():,}", f"{len(table.get_fragments()):,}")
    console.print(shown)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Writes flights by Spark into Lance tables in Dagster.")
    parser.add_argument("--first", default="2013-01-01", help="first day of the range")
    parser.add_argument("--last", default="2013-12-31", help="last day of the range")
    parser.add_argument("--again", default="2013-02-14", help="the day that is materialized twice")
    return parser.parse_args()


def _span(first: str, last: str) -> dict[str, str]:
    """The tags of one run of a range of partitions."""
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def _week(first: str) -> tuple[str, str]:
    """The first and last day of the week that begins with a day."""
    start = date.fromisoformat(first)
    return first, (start + timedelta(days=6)).isoformat()


def _flights() -> lance_core.LanceDataset:
    return lance_core.dataset(str(example_home() / "lake" / "nyc" / "flights.lance"))


def _write_notices() -> None:
    """Write the commits of the weather office, which does not use Dagster."""
    for number, (day, text) in enumerate((("2013-02-08", "blizzard"), ("2013-03-08", "snow"))):
        row = pa.table({"day": [date.fromisoformat(day)], "notice": [text]})
        mode: Literal["append", "create"] = "append" if number else "create"
        lance_core.write_dataset(row, notices_uri(), mode=mode, commit_message=f"notice of {text}")


def _observed(instance: dg.DagsterInstance) -> dict[str, Mapping[str, Any]]:
    """The report of maintenance about each table: the metadata of its newest observation."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in TABLES:
        (record,) = instance.fetch_observations(dg.AssetKey(["nyc", name]), limit=1).records
        assert record.asset_observation is not None
        found[name] = {key: entry.value for key, entry in record.asset_observation.metadata.items()}
    return found


def _print_maintenance(console: Console, observed: Mapping[str, Mapping[str, Any]]) -> None:
    """Print fragments and bytes before and after maintenance."""
    shown = Table(title="maintenance: small fragments are merged, no row changes", title_justify="left")
    for heading in ("table", "", "rows", "fragments before", "after", "MB before", "after", "seconds"):
        shown.add_column(heading, justify="left" if heading in ("table", "") else "right")
    for name, entries in observed.items():
        sizes = (f"{entries[f'lance/bytes_{when}'] / 1e6:.1f}" for when in ("before", "after"))
        fragments = (f"{entries[f'lance/fragments_{when}']:,}" for when in ("before", "after"))
        seconds = f"{entries['lance/seconds']:.1f}"
        shown.add_row(
            name, entries["lance/maintenance"], f"{entries['lance/rows_after']:,}", *fragments, *sizes, seconds
        )
    console.print(shown)


def _print_indices(console: Console) -> None:
    """Print the declared indices, as the writes and maintenance have left them; without pylance, what is missing."""
    shown = Table(title="search: declared indices, and what they find", title_justify="left")
    for heading in ("table", "index", "kind", "rows covered", "recall", "MB"):
        shown.add_column(heading, justify="left" if heading in ("table", "index", "kind") else "right")
    for name, column in _SEARCHED.items():
        states = describe_index_health(lance_core.dataset(str(example_home() / "lake" / "nyc" / f"{name}.lance")))
        built = [index for index in states if index.column == column and index.built]
        for index in built:
            recall, size = (index.recall or {}).get("value"), (index.size_bytes or 0) / 1e6
            measured = "" if recall is None else f"{recall:.3f}"
            shown.add_row(name, index.name, index.kind, f"{index.covered:.0%}", measured, f"{size:.1f}")
        if not built:
            shown.add_row(name, escape(f"none on {column}: pip install 'lance-dagster[search]'"))
    console.print(shown)


def _print_changes(console: Console, instance: dg.DagsterInstance) -> None:
    """Print the changes that the newest run of the incremental asset read."""
    (record,) = instance.fetch_materializations(dg.AssetKey(["nyc", "cancellations"]), limit=1).records
    assert record.asset_materialization is not None
    entries: dict[str, Any] = {key: one.value for key, one in record.asset_materialization.metadata.items()}
    (read,) = entries["lance/changes"]
    console.print(
        f"versions {read['from_version']} to {read['to_version']} of {read['asset']} were read; "
        f"{entries['lance/commit']['rows_updated']:,} of {entries['dagster/row_count']:,} rows updated",
        highlight=False,
    )


def _print_captions(console: Console, instance: dg.DagsterInstance) -> None:
    """Print the rows that each run of the computed column has computed."""
    shown = Table(title="captions: each row is computed once", title_justify="left")
    for heading in ("run", "rows due", "by reason", "calls", "failed rows", "seconds"):
        shown.add_column(heading, justify="left" if heading in ("run", "by reason") else "right")
    for record in reversed(instance.fetch_materializations(dg.AssetKey(["nyc", "captions"]), limit=2).records):
        assert record.asset_materialization is not None
        entries: dict[str, Any] = {key: entry.value for key, entry in record.asset_materialization.metadata.items()}
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in entries["lance/rows_due"].items())
        numbers = (f"{entries[f'lance/{name}']:,}" for name in ("calls", "rows_failed"))
        seconds = f"{entries['lance/seconds']:.1f}"
        shown.add_row(record.run_id[:8], f"{entries['lance/due']:,}", reasons, *numbers, seconds)
    console.print(shown)


def _print_diff(console: Console, diff: Any) -> None:
    """Print the changes of a branch."""
    days = f"{len(diff.partitions)} days, {diff.partitions[0]} .. {diff.partitions[-1]}"
    shown = Table(title=f"branch {diff.branch}: its changes before the promotion", title_justify="left")
    for heading in ("forked from", "days", "rows added", "rows removed", "fragments added", "MB to copy"):
        shown.add_column(heading)
    rows = (f"{diff.rows.added:,}", f"{diff.rows.removed:,}", f"{len(diff.fragments.added):,}")
    shown.add_row(f"version {diff.fork_version}", days, *rows, f"{diff.num_bytes / 1e6:.1f}")
    console.print(shown)


def _check_java(console: Console) -> None:
    try:
        pyspark_lance.ensure_java()
    except LanceError as error:
        console.print(str(error), highlight=False)
        raise SystemExit(1) from error


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description:36}"), BarColumn(), TextColumn("{task.fields[step]:14}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        yield bar


def _run(job: str, tags: Mapping[str, str], title: str, instance: dg.DagsterInstance, bar: Progress) -> None:
    """Run a job in this process, and show its progress: as a bar in a terminal, as lines elsewhere."""
    from example_project.definitions import defs  # noqa: PLC0415 - imports Spark, so only after the check for Java

    definition = defs.resolve_job_def(job)
    run_id, began = str(uuid.uuid4()), time.monotonic()
    task = bar.add_task(title, total=len(definition.nodes), step="")
    with ThreadPoolExecutor(max_workers=1) as worker:
        future = worker.submit(
            definition.execute_in_process,
            run_config=_QUIET,
            instance=instance,
            run_id=run_id,
            tags=dict(tags),
            partition_key=tags.get(_PARTITION),
        )
        reported = set[str]()
        while not future.done():
            steps = instance.get_run_step_stats(run_id)
            if bar.disable:
                _report(steps, reported, bar.console)
            running = [step.step_key.removeprefix("nyc__") for step in steps if step.end_time is None]
            bar.update(task, completed=len(steps) - len(running), step=" ".join(running))
            time.sleep(1)
        future.result()
    bar.update(task, completed=len(definition.nodes), step=f"run {run_id[:8]}")
    if bar.disable:
        bar.console.print(f"{title}: run {run_id[:8]}, {time.monotonic() - began:.0f} s")


def _report(steps: Sequence[Any], reported: set[str], console: Console) -> None:
    """Print a line for each step that has ended since the last call."""
    for step in steps:
        if step.end_time is not None and step.step_key not in reported:
            reported.add(step.step_key)
            console.print(f"  {step.step_key}: {step.end_time - (step.start_time or step.end_time):.0f} s")


def _print_histories(console: Console) -> None:
    """Print the versions of each table, read from the table."""
    for name in TABLES:
        dataset = lance_core.dataset(str(example_home() / "lake" / "nyc" / f"{name}.lance"))
        size = f"{len(dataset.schema)} columns, {dataset.total_bytes / 1e6:.1f} MB"
        shown = Table(title=f"{name}: {size}", title_justify="left")
        for heading, justify in _COLUMNS.items():
            shown.add_column(heading, justify=justify)
        for version in dataset.versions():
            shown.add_row(*_row(dataset.checkout_version(version["version"])))
        console.print(shown)


def _row(dataset: lance_core.LanceDataset) -> tuple[str, ...]:
    transaction = dataset.read_transaction(dataset.version)
    assert transaction is not None
    properties = transaction.transaction_properties or {}
    return (
        str(dataset.version),
        transaction.operation.name,
        f"{dataset.count_rows():,}",
        f"{len(dataset.get_fragments()):,}",
        properties.get("dagster.run_id", "")[:8],
        _keys(properties.get("dagster.partition_keys")),
    )


def _keys(value: str | None) -> str:
    """The partition keys of a commit: the key, or the number of keys with the first and the last."""
    if value is None:
        return "(not partitioned)"
    keys = json.loads(value)
    if isinstance(keys, dict):
        return f"{keys['count']} keys, {keys['first']} .. {keys['last']}"
    return keys[0] if len(keys) == 1 else f"{len(keys)} keys, {keys[0]} .. {keys[-1]}"


if __name__ == "__main__":
    main()
