"""`LanceTableResource`: Lance tables for the bodies of assets, checks, sensors and ops."""

from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from lance_dagster._context import running_step
from lance_dagster.location import checked_root
from lance_dagster.read_inputs import remember_input
from lance_dagster.tables import TableLike, TableRoot, table_ref

if TYPE_CHECKING:
    import lance_core

__all__ = ["LanceTableResource"]


class LanceTableResource(dg.ConfigurableResource["LanceTableResource"]):
    """Opens the tables of a root, by the location rules of `LanceIOManager`: `{root_uri}/{schema}/{table}.lance`.

    Example:
        ```python
        @dg.asset
        def late(lance: LanceTableResource) -> int:
            return lance.open("nyc/flights", tag="published").count_rows(filter="dep_delay > 60")

        defs = dg.Definitions([late], resources={"lance": LanceTableResource(root_uri="s3://lake")})
        ```
    """

    model_config = ConfigDict(extra="forbid")

    root_uri: str = Field(description="Folder or object-store prefix that holds the tables.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="How to reach the storage; names of object_store or s3fs. Use EnvVar.",
        json_schema_extra={"dagster__is_secret": True},
    )
    schema_: str | None = Field(
        default=None, alias="schema", description="Folder for assets that name none; else part of the asset key."
    )

    @field_validator("root_uri", mode="before")
    @classmethod
    def _check_root(cls, value: object) -> object:
        return checked_root(value)

    @property
    def table_root(self) -> TableRoot:
        """The location of the tables, for this package's other parts."""
        return TableRoot(root_uri=self.root_uri, storage_options=dict(self.storage_options), schema=self.schema_)

    def uri(self, asset_key: TableLike) -> str:
        """The URI of the table of an asset, or of "schema/table"; whether it exists is not looked at.

        Raises:
            DagsterInvalidDefinitionError: a name cannot be a folder name.
        """
        return self.table_root.locate(asset_key).uri

    def open(
        self,
        asset_key: TableLike,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> "lance_core.LanceDataset":
        """Open a table at one version, the newest unless something else is asked for.

        Inside of a step, an opened table counts as read: the commits of the step record it.

        Args:
            asset_key: An asset key, spec or definition, which follow the IO manager's rules, or the text
                "schema/table", which names the folders themselves.
            version: A version number, on the branch if one is given.
            tag: A tag.
            branch: A branch; main unless one is given.
            as_of: The newest version at or before this time; without a zone it is in UTC.

        Raises:
            ValueError: arguments exclude each other.
            DatasetNotFoundError: there is no table.
            VersionNotFoundError: there is no such version, tag or branch.
        """
        dataset = self.table_root.open(asset_key, version=version, tag=tag, branch=branch, as_of=as_of)
        remember_input(running_step(), table_ref(asset_key).name, dataset)
        return dataset

    def tables(self) -> list[str]:
        """The tables that are there, as "schema/table" in ascending order; tables elsewhere below the root are not."""
        import lance_core  # noqa: PLC0415 - code locations load without it

        found = lance_core.list_tables(self.root_uri, storage_options=self.table_root.options)
        return [name.removesuffix(".lance") for name in found if name.count("/") == 1]
