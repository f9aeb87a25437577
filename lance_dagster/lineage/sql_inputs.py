"""The tables that SQL in the body of a step reads, as inputs of the step's writes.

    pyspark_lance.sql(session, "SELECT ... FROM lake.nyc.flights")    in the body of an asset
        -> the asset of that table -> dagster.input.nyc/flights on the commit of the step

A table without an asset is recorded by its path, if it is below the root of a resource of the step, else by its URI.
What a check reads of the branch of its run, as lake.nyc.flights@`work`, counts for the promotion of the branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster._context.runs import running_step
from lance_dagster.lineage.check_reads import record_check_read
from lance_dagster.lineage.step_inputs import remember_input
from lance_dagster.tables.branch_policy import tag_run_with_branch
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.namespaces import name_below
from lance_dagster.tables.refs import TableRoot, known_refs, roots_of

if TYPE_CHECKING:
    import lance_core


def watch_sql_inputs() -> None:
    """From now on, record tables that `pyspark_lance.sql` reads in the bodies of assets and ops of this process."""
    with suppress(ImportError):  # without Spark there are no such statements
        from pyspark_lance import on_read  # noqa: PLC0415 - optional

        on_read(_record)


def _record(dataset: lance_core.LanceDataset) -> None:
    """Record a table that the running step reads."""
    running = running_step()
    if running is None:
        return
    roots = roots_of(running.resources)
    name = _name_of(dataset.root_uri, roots)
    remember_input(running.facts.step, name, dataset, attempt=running.attempt)
    if running.facts.evaluates_checks and dataset.branch in {
        tag_run_with_branch(root.branching, running.facts) for root in roots
    }:
        record_check_read(running.facts, dataset.branch, dataset, running.partitions)


def _name_of(uri: str, roots: Sequence[TableRoot]) -> str:
    """The name of the asset whose table has a URI; without one its path below a root, or else the URI."""
    from lance_core import canonical_uri  # noqa: PLC0415 - code locations load without it

    # An asset that writes the rows of a table comes before those that own columns.
    refs = sorted(known_refs(dg.OpExecutionContext.get()), key=lambda ref: TABLE_KEY in (ref.metadata or {}))
    table_uri = canonical_uri(uri)
    for root in (root.with_listing() for root in roots):
        for ref in refs:
            with suppress(dg.DagsterInvalidDefinitionError):  # the asset has no table below this root
                if canonical_uri(root.locate(ref).uri) == table_uri:
                    return ref.name
    names = (name_below(root.root_uri, table_uri, root.options) for root in roots if not root.namespace)
    return next((name for name in names if name is not None), table_uri)
