"""The reports that the command `undo` makes to a Dagster instance."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_dagster.undo.plan import Undo

if TYPE_CHECKING:
    import dagster as dg

    from lance_dagster.events.reporting import TableReport
    from lance_dagster.tables.location import TableLocation
    from lance_dagster.tables.refs import TableRef


@contextmanager
def reporting_instance() -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of DAGSTER_HOME.

    Raises:
        UnsupportedError: Dagster is not installed.
        InvalidInputError: DAGSTER_HOME is not set.
    """
    try:
        import dagster as dg  # noqa: PLC0415 - the other commands need no Dagster
    except ModuleNotFoundError as error:
        raise UnsupportedError("--report needs Dagster: pip install 'lance-dagster[dagster]'") from error
    if not os.environ.get("DAGSTER_HOME"):
        raise InvalidInputError(
            "--report needs the environment variable DAGSTER_HOME; set it to the folder of the Dagster instance"
        )
    with dg.DagsterInstance.get() as instance:
        yield instance


def report_undo_of(
    instance: dg.DagsterInstance, root: str, namespace: Mapping[str, str] | None, plan: Undo, version: int
) -> None:
    """Report a table after an undo that was just committed, for each asset that the undone commits name."""
    from lance_dagster.undo.events import report_undo  # noqa: PLC0415 - imports Dagster

    for asset in plan.assets:
        _report(instance, root, namespace, report_undo(instance, _ref(asset), plan, version))


def report_undo_before(
    instance: dg.DagsterInstance,
    root: str,
    namespace: Mapping[str, str] | None,
    branch: lance_core.LanceDataset,
    run_id: str,
) -> None:
    """Report a table after an earlier undo, unless Dagster has recorded it."""
    from lance_dagster.lineage.runs import versions_of_run  # noqa: PLC0415 - imports Dagster
    from lance_dagster.undo.events import report_earlier_undo  # noqa: PLC0415 - imports Dagster

    for asset in sorted({name for commit in versions_of_run(branch, run_id) for name in commit.assets}):
        _report(instance, root, namespace, report_earlier_undo(instance, _ref(asset), branch, run_id))


def _report(
    instance: dg.DagsterInstance, root: str, namespace: Mapping[str, str] | None, report: TableReport | None
) -> None:
    from lance_dagster.events.reporting import build_materializations  # noqa: PLC0415 - imports Dagster

    if report is None:
        return
    for event in build_materializations(report, _location(root, namespace, report.dataset)):
        instance.report_runless_asset_event(event)


def _ref(asset: str) -> TableRef:
    import dagster as dg  # noqa: PLC0415 - the other commands need no Dagster

    from lance_dagster.tables.refs import TableRef  # noqa: PLC0415 - imports Dagster

    return TableRef(key=dg.AssetKey.from_user_string(asset))


def _location(root: str, namespace: Mapping[str, str] | None, dataset: lance_core.LanceDataset) -> TableLocation:
    """The location of a table, whose schema and name are the folders below the root, or its id in a namespace."""
    from lance_dagster.tables.location import TableLocation  # noqa: PLC0415 - imports Dagster
    from lance_dagster.tables.namespaces import name_below  # noqa: PLC0415 - imports Dagster

    uri, root = dataset.root_uri, lance_core.canonical_uri(root)
    below = None if uri == root else name_below(root, uri, dataset.snapshot.options, namespace)
    schema, _, table = (below or "/".join(uri.split("/")[-2:]).removesuffix(".lance")).rpartition("/")
    return TableLocation(uri=uri, schema=schema, table=table)
