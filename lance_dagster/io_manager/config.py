"""`LanceIOManager`: the configuration, as Dagster shows and validates it.

The work itself is in `manager`, so that loading a code location imports neither pyarrow nor
lance_core nor pyspark.
"""

from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster.tables.arguments import RootArguments
from lance_dagster.tables.branch_policy import BranchPolicy
from lance_dagster.tables.settings import (
    LoadType,
    OnEarlierAttempt,
    OutputSettings,
    ReadMode,
    TableSettings,
    WriteMode,
)
from pyspark_lance import EmptyOutput, OutOfPartition, SchemaMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance_dagster.handlers.base import LanceTypeHandler
    from lance_dagster.io_manager.manager import LanceTableIOManager
    from lance_dagster.tables.refs import TableRoot

__all__ = ["LanceIOManager"]


class LanceIOManager(dg.ConfigurableIOManagerFactory["LanceTableIOManager"], RootArguments):
    """Stores assets as Lance tables, one per asset, at `{root_uri}/{asset key}.lance`.

    Stores and loads Spark DataFrames (classic and Connect), pyarrow tables and readers, pandas and polars frames.
    A run of some partitions replaces the rows of exactly these partitions, in one commit; the asset's metadata
    `partition_expr` names the column, or for several dimensions `{dimension: column}`. Each commit carries the run in
    its transaction properties. A retry of a write replaces the attempt before it: the table holds the
    rows of the last attempt.

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
            "overwrite: the run's partitions, or the whole table of an asset without any. append: adds rows. "
            "merge: by the key lance/merge_on of the asset. "
            "columns: of an asset that owns columns of the table of another asset, lance/table. "
            "error: fails if the partitions have rows. create_only: fails if the table exists."
        ),
    )
    schema_mode: SchemaMode = Field(
        default="strict",
        description=(
            "strict: the columns of the table. add_columns: new ones too. overwrite: any, when the whole table is "
            "overwritten."
        ),
    )
    empty_output: EmptyOutput = Field(
        default="write", description="write: an output without rows clears what it replaces. skip: writes nothing."
    )
    out_of_partition: OutOfPartition = Field(
        default="error", description="What to do about a row outside of the run's partitions; allow: keep it."
    )
    on_earlier_attempt: OnEarlierAttempt = Field(
        default="replace",
        description=(
            "What a retry of an append does if the rows of an earlier attempt cannot be distinguished any more. "
            "replace: fails and names the remedies. adopt: keeps the earlier attempt's commit. append: adds its rows."
        ),
    )
    read: ReadMode = Field(
        default="latest", description="latest: the newest version. materialized: the one that Dagster recorded last."
    )
    default_load_type: LoadType = Field(
        default="auto",
        description=(
            "What an input without a type becomes. auto: a Spark frame where there is a spark resource or an active "
            "session, else the first of pandas, polars and pyarrow that is installed."
        ),
    )
    spark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]  # how Dagster says that it may be missing
    cluster: bool = Field(
        default=True, description="Shuffle Spark frames by partition, so that a fragment holds one partition."
    )
    stable_row_ids: bool = Field(
        default=False,
        description=(
            "Give rows of new tables ids that they keep when they are updated, so that inputs of changes and "
            "column writes follow updated rows; a table keeps what it was created with."
        ),
    )
    max_rows_per_file: int | None = Field(default=None, gt=0)
    max_bytes_per_file: int | None = Field(default=None, gt=0)
    data_storage_version: str | None = Field(default=None, description="Version of the file format of new data files.")
    table_config: dict[str, str] = Field(
        default_factory=dict,
        description="Entries of the table's configuration to set; none is removed. Those that the table lacks come in "
        "the commit that creates or overwrites it, else in a version of their own before the write.",
    )
    branching: BranchPolicy = Field(
        default_factory=BranchPolicy.off, description="Which runs write to a branch of their tables, beside main."
    )

    index_partitions: bool = Field(
        default=True,
        description=(
            "Keep a zone map on the partition columns, so that work on a partition costs a partition: created and "
            "refreshed after a write, in a version of its own, when max_unindexed_fragments lie outside of it."
        ),
    )
    max_unindexed_fragments: int = Field(
        default=64, ge=0, description="How many fragments may lie outside of the zone map before it is refreshed."
    )

    ui_url: str | None = Field(
        default=None,
        description=(
            "Where the Dagster UI is, if not at the root of its host: a path such as /dagster (the webserver's "
            "--path-prefix), or a URL. Links to runs begin with it."
        ),
        pattern=r"^(https?:/)?/[A-Za-z0-9._~:/%\[\]-]*$",
    )

    derive_column_lineage: bool = Field(
        default=False,
        description=(
            "Report dagster/column_lineage from the plan of a Spark frame, as far as it goes, where the asset's "
            "metadata lance/column_lineage does not."
        ),
    )

    def type_handlers(self) -> "Sequence[LanceTypeHandler]":
        """Handlers for further types of values; override it. They are asked before the handlers of this package.

        Example:
            ```python
            class WithSeries(LanceIOManager):
                def type_handlers(self):
                    return [SeriesHandler()]
            ```
        """
        return ()

    def settings(self) -> TableSettings:
        """The configuration as the plain record that the IO manager works with."""
        output = OutputSettings(
            write_mode=self.write_mode,
            schema_mode=self.schema_mode,
            empty_output=self.empty_output,
            out_of_partition=self.out_of_partition,
            cluster=self.cluster,
            stable_row_ids=self.stable_row_ids,
            on_earlier_attempt=self.on_earlier_attempt,
        )
        return TableSettings(
            root_uri=self.root_uri,
            storage_options=dict(self.storage_options),
            schema=self.schema_,
            output=output,
            reads_materialized=self.read == "materialized",
            default_load_type=self.default_load_type,
            spark=self.spark,
            type_handlers=tuple(self.type_handlers()),
            max_rows_per_file=self.max_rows_per_file,
            max_bytes_per_file=self.max_bytes_per_file,
            data_storage_version=self.data_storage_version,
            table_config=dict(self.table_config),
            branching=self.branching,
            max_unindexed_fragments=self.max_unindexed_fragments if self.index_partitions else None,
            ui_url=self.ui_url or "",
            derive_column_lineage=self.derive_column_lineage,
        )

    @property
    def table_root(self) -> "TableRoot":
        """The location of the tables, for jobs, checks and sensors."""
        return self.settings()

    def create_io_manager(self, context: dg.InitResourceContext) -> "LanceTableIOManager":  # noqa: ARG002 - Dagster's signature
        """Called by Dagster for each process that runs steps."""
        from lance_dagster.io_manager.manager import LanceTableIOManager  # noqa: PLC0415 - heavy imports at first use

        return LanceTableIOManager(self.settings())
