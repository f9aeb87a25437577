"""What the command `undo` asks a Dagster instance, and reports to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_dagster.lineage.runs import versions_of_run
from lance_dagster.undo.plan import CannotUndoError, Undo

if TYPE_CHECKING:
    import dagster as dg

    from lance_dagster.events.reporting import TableReport
    from lance_dagster.tables.location import TableLocation
    from lance_dagster.tables.refs import TableRef


@contextmanager
def recording_instance(*, required: bool) -> Iterator[dg.DagsterInstance | None]:
    """The Dagster instance of DAGSTER_HOME; None where there is none, and none is required.

    Raises:
        UnsupportedError: Dagster is not installed, and the instance is required.
        InvalidInputError: DAGSTER_HOME is not set, and the instance is required; or it names no instance.
    """
    home, is_installed = os.environ.get("DAGSTER_HOME"), find_spec("dagster") is not None
    if required and not is_installed:
        raise UnsupportedError("--report needs Dagster: pip install 'lance-dagster[dagster]'")
    if required and not home:
        raise InvalidInputError(
            "--report needs the environment variable DAGSTER_HOME; set it to the folder of the Dagster instance"
        )
    if not home or not is_installed:
        yield None
        return
    import dagster as dg  # noqa: PLC0415 - the other commands need no Dagster

    try:
        opened = dg.DagsterInstance.get()
    except dg.DagsterError as error:
        raise InvalidInputError(
            f"the environment variable DAGSTER_HOME names no Dagster instance: {error}; set it to the folder of "
            "the one that recorded the run, or unset it"
        ) from error
    with opened as instance:
        yield instance


def reject_lost_versions(
    instance: dg.DagsterInstance | None,
    root: str,
    options: Mapping[str, str] | None,
    namespace: Mapping[str, str] | None,
    tables: Sequence[lance_core.LanceDataset],
    run_id: str,
    planned: Sequence[lance_core.LanceDataset],
) -> None:
    """Reject an undo if the run has recorded a version of a table below the root that is not there any more.

    Args:
        instance: The instance that recorded the run; None if it is not asked.
        root: The root, or the URI of a table; of a namespace a prefix of ids.
        options: The options by which the storage is reached.
        namespace: The properties of a namespace of others; None for none.
        tables: The tables that are there.
        run_id: The run.
        planned: The branches on which the run is undone, or was before.

    Raises:
        CannotUndoError: A version is not there; nothing was committed.
    """
    if instance is None:
        return
    from lance_dagster.lineage.lost_tables import explain_lost_versions  # noqa: PLC0415 - imports Dagster
    from lance_dagster.tables.refs import TableRoot  # noqa: PLC0415 - imports Dagster
    from lance_dagster.tables.write_events import read_write_events_of_run  # noqa: PLC0415 - imports Dagster

    mains = {table.root_uri: table for table in tables}
    prefix = lance_core.canonical_uri(root) if namespace is None else root.strip("/")
    writes, undone = [], {(_ref(asset).key, head.branch) for head in planned for asset in _assets(head, run_id)}
    for event in read_write_events_of_run(instance, run_id):
        name = event.uri if namespace is None else event.object_id
        is_chosen = not prefix or f"{name}/".startswith(f"{prefix}/")
        if event.uri is not None and (event.uri in mains or is_chosen):
            writes.append((event, mains.get(event.uri)))
        undone |= {(event.key, head.branch) for head in planned if head.root_uri == event.uri}
    place = TableRoot(
        root_uri=root if namespace is None else "", storage_options=options or {}, namespace=namespace or {}
    )
    lost = explain_lost_versions(instance, place, run_id, writes, undone)
    if lost:
        raise CannotUndoError(
            f"nothing was undone: {'; '.join(lost)}. To go on without a table, undo the others by their own URIs or ids"
        )


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
    from lance_dagster.undo.events import report_earlier_undo  # noqa: PLC0415 - imports Dagster

    for asset in sorted(_assets(branch, run_id)):
        _report(instance, root, namespace, report_earlier_undo(instance, _ref(asset), branch, run_id))


def _report(
    instance: dg.DagsterInstance, root: str, namespace: Mapping[str, str] | None, report: TableReport | None
) -> None:
    from lance_dagster.events.reporting import build_materializations  # noqa: PLC0415 - imports Dagster

    if report is None:
        return
    for event in build_materializations(report, _location(root, namespace, report.dataset)):
        instance.report_runless_asset_event(event)


def _assets(branch: lance_core.LanceDataset, run_id: str) -> set[str]:
    """The assets that the commits of a run in a branch name."""
    return {name for commit in versions_of_run(branch, run_id) for name in commit.assets}


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
