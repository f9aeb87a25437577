"""`LanceIOManager`: the configuration, as Dagster shows and validates it.

`manager` does the work, so that loading a code location imports neither pyarrow nor lance_core nor pyspark.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster._context.step_start import call_at_step_start
from lance_dagster.tables.arguments import RootArguments
from lance_dagster.tables.branch_policy import BranchPolicy
from lance_dagster.tables.settings import LoadType, OnEarlierAttempt, OutputSettings, ReadMode, TableSettings, WriteMode
from pyspark_lance import EmptyOutput, OutOfPartition, SchemaMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lance_dagster.handlers.base import LanceTypeHandler
    from lance_dagster.io_manager.manager import LanceTableIOManager
    from lance_dagster.tables.refs import TableRoot


class LanceIOManager(dg.ConfigurableIOManagerFactory["LanceTableIOManager"], RootArguments):
    """Stores assets as Lance tables, one per asset, at `{root_uri}/{asset key}.lance`.

    Stores and loads Spark DataFrames (classic and Connect), pyarrow tables and readers, pandas and polars frames, among
    others. A run of partitions replaces the rows of exactly these partitions, in one commit; the asset's metadata
    `partition_expr` names the partition column, or for several dimensions `{dimension: column}`. The transaction
    properties of each commit name the run. A retry of a write replaces the earlier attempts: the table holds the rows
    of the last attempt.

    Example:
        ```python
        defs = dg.Definitions(
            assets=[events],
            resources={"io_manager": LanceIOManager(root_uri="s3://lake", spark=LanceSparkResource())},
        )
        ```
    """

    write_mode: WriteMode = Field(
        default="overwrite",
        description=(
            "overwrite: replaces the run's partitions, or the whole table of an asset without partitions. append: adds "
            "rows. merge: merges rows by the key lance/merge_on of the asset. columns: sets columns in the table "
            "lance/table of another asset. error: fails if the partitions have rows, or if the table of an asset "
            "without partitions exists. create_only: fails if the table exists."
        ),
    )
    schema_mode: SchemaMode = Field(
        default="strict",
        description=(
            "strict: an output has the columns of the table. add_columns: it may have new ones. overwrite: it may have "
            "any, if the whole table is overwritten."
        ),
    )
    empty_output: EmptyOutput = Field(
        default="write",
        description="An output without rows. write: removes what it replaces. skip: writes nothing. error: fails.",
    )
    out_of_partition: OutOfPartition = Field(
        default="error",
        description="An output with rows outside of the run's partitions. error: fails. allow: writes these rows.",
    )
    on_earlier_attempt: OnEarlierAttempt = Field(
        default="replace",
        description=(
            "What a retry does if it cannot replace the rows of an earlier attempt. replace: fails and names the "
            "remedies. adopt: keeps the earlier attempt's commit. append: adds its own rows."
        ),
    )
    read: ReadMode = Field(
        default="latest",
        description="latest: the newest version. materialized: the one of main that Dagster recorded last; runs on a "
        "branch read the newest version of the branch.",
    )
    default_load_type: LoadType = Field(
        default="auto",
        description=(
            "The type as which an input without a type annotation is loaded. auto: a Spark frame if there is a spark "
            "resource or an active session, else the first of pandas, polars and pyarrow that is installed."
        ),
    )
    spark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]  # Dagster's form of an optional resource
    cluster: bool = Field(
        default=True, description="Shuffle Spark frames by partition, so that a fragment holds one partition."
    )
    stable_row_ids: bool = Field(
        default=True,
        description=(
            "Create tables with stable row ids, which rows keep when they are updated, so that inputs of changes, "
            "column writes and promotions follow updated rows. An existing table without them gets them by lance "
            "migrate-row-ids, or by stable_row_ids of a LanceMaintenancePolicy."
        ),
    )
    max_rows_per_file: int | None = Field(default=None, gt=0)
    max_bytes_per_file: int | None = Field(default=None, gt=0)
    data_storage_version: str | None = Field(default=None, description="Version of the file format of new data files.")
    table_config: dict[str, str] = Field(
        default_factory=dict,
        description="Entries of the table's configuration to set; none is removed. The commit that creates or "
        "overwrites the table sets them; other writes set missing ones in a version of their own before.",
    )
    branching: BranchPolicy = Field(
        default_factory=BranchPolicy.off, description="Which runs write to a branch of their tables instead of main."
    )

    index_partitions: bool = Field(
        default=True,
        description=(
            "Keep zone maps on the partition columns, so that the cost of work on a partition depends on the partition "
            "alone. A write creates or refreshes them, in a version of their own, if more than max_unindexed_fragments "
            "fragments are not covered."
        ),
    )
    max_unindexed_fragments: int = Field(
        default=64, ge=0, description="The most fragments that zone maps on partition columns may leave uncovered."
    )

    ui_url: str | None = Field(
        default=None,
        description=(
            "URL of the Dagster UI, if it is not at the root of its host: a path such as /dagster (the webserver's "
            "--path-prefix), or a URL. Links to runs begin with it."
        ),
        pattern=r"^(https?:/)?/[A-Za-z0-9._~:/%\[\]-]*$",
    )

    derive_column_lineage: bool = Field(
        default=False,
        description=(
            "Report dagster/column_lineage from the plans of Spark frames, for assets without the metadata "
            "lance/column_lineage."
        ),
    )

    def type_handlers(self) -> "Sequence[LanceTypeHandler]":
        """Handlers for further types of values, which are tried before those of this package; override this method.

        Example:
            ```python
            class WithSeries(LanceIOManager):
                def type_handlers(self):
                    return [SeriesHandler()]
            ```
        """
        return ()

    def settings(self) -> TableSettings:
        """The configuration as the record that the IO manager uses."""
        configured = {
            **{name: getattr(self, name) for name in type(self).model_fields},
            "root_uri": self.root_uri or "",
            "storage_options": dict(self.storage_options),
            "namespace": dict(self.namespace),
            "schema": self.schema_,
            "reads_materialized": self.read == "materialized",
            "type_handlers": tuple(self.type_handlers()),
            "table_config": dict(self.table_config),
            "max_unindexed_fragments": self.max_unindexed_fragments if self.index_partitions else None,
            "ui_url": self.ui_url or "",
        }
        output = OutputSettings(**_for_record(OutputSettings, configured))
        return TableSettings(output=output, **_for_record(TableSettings, configured))

    @property
    def table_root(self) -> "TableRoot":
        """The root of the tables, for jobs, checks and sensors."""
        return self.settings()

    def create_io_manager(self, context: dg.InitResourceContext) -> "LanceTableIOManager":
        """Create the IO manager; Dagster calls this in each process that runs steps."""
        from lance_dagster.io_manager.manager import LanceTableIOManager  # noqa: PLC0415 - heavy imports at first use

        manager = LanceTableIOManager(self.settings(), context)
        call_at_step_start(context, manager.remember_begin, manager.miss_begin)
        return manager


def _for_record(record: type, configured: "Mapping[str, Any]") -> dict[str, Any]:
    return {field.name: configured[field.name] for field in fields(record) if field.name in configured}
