"""Jobs with one op that works on the tables of assets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster._context.jobs import build_job_with_some_resources
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, chosen_refs, table_refs, table_root

if TYPE_CHECKING:
    import lance_core


class LostTables:
    """Notes tables that were dropped or renamed while a run worked, which goes on with the others before it fails.

    Args:
        context: The step, whose log gets the errors.
    """

    def __init__(self, context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
        self._context = context
        self.reasons: list[str] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the error of a table that was dropped or renamed, which ends the block."""
        from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

        try:
            yield
        except DatasetNotFoundError as error:
            self._context.log.exception("a table was dropped or renamed meanwhile")
            self.reasons.append(str(error))

    def fail(self, consequence: str) -> None:
        """Fail if there are any.

        Raises:
            Failure: A table was dropped or renamed; the message begins with what that means for the run.
        """
        if self.reasons:
            raise dg.Failure(f"{consequence}: {'; '.join(self.reasons)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A run of a job on tables.

    Attributes:
        context: The context of the op.
        root: The root of the tables.
        refs: All tables of the job.
        config: The configuration of the run.
    """

    context: dg.OpExecutionContext
    root: TableRoot
    refs: Sequence[TableRef]
    config: Any

    def chosen_refs(self) -> Iterator[TableRef]:
        """The tables that the configuration chooses, each with the metadata of its definition; see `chosen_refs`."""
        return chosen_refs(self.context, self.refs, self.config.tables)

    def reject_moved(self, refs: Iterable[TableRef], dataset: lance_core.LanceDataset) -> None:
        """Reject a table that was opened before others renamed it or swapped it with another one in its namespace.

        Args:
            refs: The assets whose table it was.
            dataset: The table.

        Raises:
            DatasetNotFoundError: An asset has no table any more, or another one.
        """
        from lance_core import canonical_uri  # noqa: PLC0415 - code locations load without it
        from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

        root = self.root.with_listing()
        moved = [ref.name for ref in refs if canonical_uri(root.locate(ref).uri) != dataset.root_uri]
        if moved:
            raise DatasetNotFoundError(
                f"{dataset.root_uri} is no longer the table of asset {', '.join(moved)}, as others renamed or dropped "
                "it in the namespace meanwhile; nothing more is changed there: start the run again"
            )


def build_table_job(
    tables: Iterable[TableLike] | TableLike,
    config: type[dg.Config],
    work: Callable[[TableRun], None],
    *,
    name: str,
    label: str,
    description: str,
    io_manager_key: str,
    tags: Mapping[str, str] | None = None,
) -> dg.JobDefinition:
    """A job whose only op works on tables.

    Args:
        tables: The tables.
        config: The class of the configuration of a run.
        work: What the op does.
        name: Name of the job; the op is named `<name>_op`.
        label: The argument with the name, for messages.
        description: Description of the job and of the op.
        io_manager_key: The resource that knows where the tables are; the code location provides it.
        tags: Tags of the runs.
    """
    refs = table_refs(tables)

    def run(context: dg.OpExecutionContext, config: Any) -> None:
        root = table_root(getattr(context.resources, io_manager_key))
        work(TableRun(context=context, root=root, refs=refs, config=config))

    run.__annotations__ = {"context": dg.OpExecutionContext, "config": config}  # Dagster reads the class from there
    op_name = f"{checked_job_name(name, label)}_op"
    op = dg.op(name=op_name, description=description, required_resource_keys={io_manager_key}, out=dg.Out(dg.Nothing))(
        run
    )

    @dg.graph(name=name)
    def graph() -> None:
        op()

    metadata = {"lance/tables": [ref.name for ref in refs]}
    return build_job_with_some_resources(
        graph, {}, name=name, description=description, tags=dict(tags or {}), metadata=metadata
    )
