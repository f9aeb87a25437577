"""Tables by asset, and access to them, for resources, jobs, checks and sensors.

    TableRef     one asset whose table is meant: its key and definition metadata
    TableRoot    the folder that holds all tables, and its storage options: locates and opens the table of an asset

An asset is given as in Dagster (a definition, a spec, a key), or as the string "schema/table". Tables are located by
the rules of the IO manager (`location`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster._context.roots import find_start_of_root
from lance_dagster._context.steps import AnyContext, RunFacts, asset_definition, is_external_asset, known_assets
from lance_dagster.tables.branch_policy import BranchPolicy, branch_of_job, tag_run_with_branch
from lance_dagster.tables.location import NO_LOCATION, TableLocation, locate_table, open_table, resolved_options
from lance_dagster.tables.lost_writes import reject_lost_input
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.namespaces import describe_return, follow_id, read_listing, resolve_location

if TYPE_CHECKING:
    import lance_core
    from lance_core.catalog import Listing

MAINTENANCE_KEY: Final = "lance/maintenance"
"""The entry of an asset's metadata that says whether, and by which policy, its table is maintained."""

INDICES_KEY: Final = "lance/indices"
"""The entry of an asset's metadata that declares the indices of its table, in place of those of any policy."""

INDEX_ON_WRITE_KEY: Final = "lance/index_on_write"
"""The entry of an asset's metadata that says whether its writes build and extend the indices of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """One asset whose table is meant.

    Attributes:
        key: The asset's key.
        metadata: Its definition metadata; None if only the key is known.
        partitions_def: Its partitions; None if it has none, or only the key is known.
        is_external: Whether the asset is external or observable, so that others write it; None if only the code
            location knows, as for a key or a spec.
        is_spec: Whether the reference is an `AssetSpec`, which does not define who writes the asset.
    """

    key: dg.AssetKey
    metadata: Mapping[str, Any] | None = None
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    is_external: bool | None = None
    is_spec: bool = False

    @property
    def name(self) -> str:
        """The key as a string, parts joined by slashes."""
        return self.key.to_user_string()

    def resolved(self, context: AnyContext) -> TableRef:
        """This reference with the metadata and partitions of the asset's definition, if the code location has one.

        A spec adds its metadata to those of the definition, and the entries of the spec win.

        Args:
            context: The context of the op, asset, check or sensor, whose code location has the definition.
        """
        is_complete = self.metadata is not None and not self.is_spec
        if is_complete and self.partitions_def is not None:
            return self
        metadata, partitions_def = asset_definition(context, self.key)
        if is_complete:
            metadata = self.metadata
        elif self.metadata is not None:
            metadata = {**(metadata or {}), **self.metadata}
        return replace(self, metadata=metadata, partitions_def=self.partitions_def or partitions_def)

    def with_indices_of(self, other: TableRef) -> TableRef:
        """This reference, whose asset shares its table with another one, with the indices that the other declares.

        Args:
            other: The other asset; of a column for which both declare an index, this one's declaration counts.
        """
        mine, more = (plain_metadata((ref.metadata or {}).get(INDICES_KEY)) for ref in (self, other))
        if self.metadata is None or other.key == self.key or not isinstance(more, Mapping):
            return self
        joined = {**more, **(mine if isinstance(mine, Mapping) else {})}
        return replace(self, metadata={**self.metadata, INDICES_KEY: joined})


TableLike = TableRef | dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | dg.SourceAsset | str | Sequence[str]
"""A reference to a table: an asset of any kind, its key, or "schema/table"."""


_remembered_roots: dict[tuple[dg.AssetKey, Any], tuple[str, Mapping[str, Any], str | None, Mapping[str, Any]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRoot:
    """A folder of tables. Storage options are secrets: they are in no repr.

    Attributes:
        root_uri: The folder or object-store prefix; empty if a namespace locates the tables, and there is none.
        storage_options: The options by which the storage is reached.
        schema: The folder of the tables of assets whose metadata names none; None if their keys name it.
        branching: Which runs read and write a branch.
        ui_url: The URL of the Dagster UI, if it is not at the root of its host.
        reads_materialized: Whether inputs are read at the versions that Dagster recorded last, which cleanup must keep;
            None if the resource does not define it.
        max_unindexed_fragments: The most fragments that zone maps on partition columns may leave uncovered; None for no
            zone maps.
        namespace: The properties of a namespace of others that locates the tables; empty for none.
        listing: What the manifest table of the root lists, for locating many tables; None to read it for each.
    """

    root_uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    branching: BranchPolicy = field(default_factory=BranchPolicy.off)
    ui_url: str = ""
    max_unindexed_fragments: int | None = 64
    reads_materialized: bool | None = None
    namespace: Mapping[str, str] = field(default_factory=dict, repr=False)
    listing: Listing | None = field(default=None, repr=False, compare=False)

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options as lance_core takes them."""
        return dict(self.storage_options) or None

    def locate(self, table: TableLike) -> TableLocation:
        """The location of a table, by the namespace, or by the manifest table of the root, if there is one.

        Raises:
            DagsterInvalidDefinitionError: The table cannot be located: see `locate_table`.
        """
        if isinstance(table, str) and "/" in table:
            key, metadata, schema = dg.AssetKey(table.split("/")), None, None
        else:
            ref = table if isinstance(table, TableRef) else table_ref(table)
            key, metadata, schema = ref.key, ref.metadata, self.schema
        root_uri = NO_LOCATION if self.namespace else self.root_uri
        location = locate_table(root_uri, key, metadata or {}, default_schema=schema)
        name = plain_metadata((metadata or {}).get("dagster/table_name"))
        is_external = location.path is None and name == ".".join(key.path)
        if is_external and self.root_uri and not self.root_uri.startswith(NO_LOCATION):
            return follow_id(location, self, key.to_user_string(), self.listing)
        return resolve_location(location, self, self.listing)

    def locate_changed(self, ref: TableRef, dataset: lance_core.LanceDataset) -> TableLocation:
        """The location of the table of an asset for events about a change that was committed to it.

        Args:
            ref: The asset.
            dataset: The table that was changed.

        Raises:
            DatasetNotFoundError: The asset has no table any more, or another one.
        """
        from lance_core import canonical_uri  # noqa: PLC0415 - code locations load without it
        from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

        location = self.with_listing().locate(ref)
        if canonical_uri(location.uri) != dataset.root_uri:
            remedy = describe_return(self, dataset.root_uri, location.object_id or ref.name)
            raise DatasetNotFoundError(
                f"the change was committed to {dataset.root_uri}, but the table {location.name} was dropped or renamed "
                f"in its namespace meanwhile, so that asset {ref.name} has no event of it: {remedy}, and start "
                "the job again, which then reports it"
            )
        return location

    def with_listing(self) -> Self:
        """This root with what its manifest table lists now, to locate many tables; unlisted ones are in folders."""
        return self if self.namespace else replace(self, listing=read_listing(self))

    def open(
        self,
        table: TableLike,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> lance_core.LanceDataset:
        """Open a table; see `LanceTableResource.open`."""
        choices = {"version": version, "tag": tag, "as_of": as_of}
        pins = [name for name, value in choices.items() if value is not None]
        if len(pins) > 1 or (tag is not None and branch is not None):
            names = [*pins, *(["branch"] if branch is not None else [])]
            raise ValueError(f"{' and '.join(names)} cannot be combined")
        location = self.locate(table)
        uri, options = location.uri, location.options(self.storage_options)
        branch = location.branch if branch is None and tag is None else branch
        if branch is None:
            moment = None if as_of is None else as_moment(as_of)
            return open_table(uri, version=version if tag is None else tag, asof=moment, storage_options=options)
        opened = open_table(uri, version=(branch, version), storage_options=options)
        return opened if as_of is None else opened.checkout_version(opened.version_as_of(as_moment(as_of)))

    def open_in_run(self, table: TableLike, facts: RunFacts | None) -> lance_core.LanceDataset:
        """Open a table as a run sees it.

        A run on a branch sees that branch of the table, or, if the table lacks it, main as it was when the backfill or
        the root run began. Any other run sees the newest version.

        Args:
            table: The table.
            facts: The run; None outside of a run, where only the environment names a branch.
        """
        branch, location = tag_run_with_branch(self.branching, facts), self.locate(table)
        if branch is None or location.branch is not None:
            return self.open(table)
        key = table_ref(table).key
        return branch_for_reading(location.uri, branch, facts, key, location.options(self.storage_options))

    def branch_of_job(self, context: AnyContext) -> str | None:
        """The branch on which a job or sensor works, by its environment or the tag of its run; None for main.

        Raises:
            DagsterInvalidDefinitionError: The variable or the tag names no branch.
        """
        return branch_of_job(
            self.branching, {} if isinstance(context, dg.SensorEvaluationContext) else context.run.tags
        )

    def open_on(self, table: TableLike, branch: str | None) -> lance_core.LanceDataset | None:
        """The newest version of a table on a branch; None if the table does not exist, or does not have the branch."""
        main = self.open_or_none(table)
        return main if self.locate(table).branch is not None else on_branch(main, branch)

    def open_or_none(self, table: TableLike) -> lance_core.LanceDataset | None:
        """The newest version of a table; None if the table does not exist."""
        return _open_if_exists(lambda: self.open(table))

    def open_uri(self, uri: str) -> lance_core.LanceDataset | None:
        """The newest version of the table at a URI below the root; None if there is no table."""
        return _open_if_exists(lambda: open_table(uri, storage_options=self.options))


def _open_if_exists(opening: Callable[[], lance_core.LanceDataset]) -> lance_core.LanceDataset | None:
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    try:
        return opening()
    except DatasetNotFoundError:
        return None


def is_foreign(ref: TableRef, context: dg.OpExecutionContext | dg.SensorEvaluationContext | None = None) -> bool:
    """Whether others write a table, and its metadata does not ask for maintenance here.

    An asset is foreign if it is external or observable: the code location does not materialize it. The owner decides
    about versions, files and branches, so maintenance and promotion leave the table alone. A bare key names a table of
    our own unless the code location defines it as external. With the metadata `lance/maintenance` set to True, a policy
    or the fields of one, an external table is maintained all the same.

    Args:
        ref: The table.
        context: The context of the run or tick, whose code location defines the asset; without one, as when a job is
            defined, only `ref` counts.
    """
    metadata_of_asset: list[Any] = [ref.metadata]
    is_external = ref.is_external
    if context is not None:
        metadata_of_asset.append(asset_definition(context, ref.key)[0])
        if is_external is None:
            is_external = is_external_asset(context, ref.key)
        if is_external is None and ref.is_spec:
            # A spec declares what others write, unless it has the metadata by which our IO manager places a table.
            is_external = not {"schema", "table"} & set(ref.metadata or ())
    said = [metadata[MAINTENANCE_KEY] for metadata in metadata_of_asset if metadata and MAINTENANCE_KEY in metadata]
    return bool(is_external) and (not said or plain_metadata(said[0]) in (None, False))


def branch_for_reading(
    uri: str, branch: str, facts: RunFacts | None, key: dg.AssetKey, storage_options: Mapping[str, str] | None
) -> lance_core.LanceDataset:
    """The table at the version that a run on a branch reads.

    That is the branch if the table has it, else main as it was when the root backfill or the root run began.

    Args:
        uri: The table.
        branch: The run's branch.
        facts: The run; None outside of a run, where main's latest version is read.
        key: The asset of the table.
        storage_options: The options by which the storage is reached.

    Raises:
        DatasetNotFoundError: The table does not exist, or did not when the root backfill or the root run began.
        VersionNotFoundError: The version of main was cleaned up.
        Failure: Runs of the same root wrote to the branch, which was discarded.
    """
    main = open_table(uri, storage_options=dict(storage_options or {}) or None)
    head = on_branch(main, branch)
    if head is not None:
        return head
    if facts is None:
        return main
    reject_lost_input(facts, branch, key, main)
    since = find_start_of_root(facts)
    return main if since is None else _main_at_begin(main, since)


def _main_at_begin(main: lance_core.LanceDataset, since: datetime) -> lance_core.LanceDataset:
    """Main as it was when the root backfill or the root run began.

    Raises:
        DatasetNotFoundError: The table did not exist.
        VersionNotFoundError: The version was cleaned up.
    """
    from lance_core.errors import DatasetNotFoundError, VersionNotFoundError  # noqa: PLC0415 - code locations load without it

    remedy = "launch a new run, or a new backfill, instead of a re-execution"
    when = (
        f"when the root run or the backfill began ({since:%Y-%m-%d %H:%M:%S %Z}), as which a run on a branch reads it"
    )
    try:  # the clocks of machines that write may be ahead of that of the instance
        return main.checkout_version(main.version_as_of(since, clock="storage"))
    except VersionNotFoundError as error:
        versions = [version["version"] for version in main.version_refs()]
        has_gap = len(versions) < main.version and main.checkout_version(versions[0]).timestamp <= since
        if versions[0] > 1 or has_gap:
            raise VersionNotFoundError(f"{main.uri}: the version {when}, was cleaned up; {remedy}") from error
        raise DatasetNotFoundError(f"{main.uri} did not exist {when}; {remedy}") from error


def on_branch(main: lance_core.LanceDataset | None, branch: str | None) -> lance_core.LanceDataset | None:
    """The newest version of a branch of a table, or of main for None; None if there is no table or no such branch."""
    from lance_core.errors import NotFoundError  # noqa: PLC0415 - code locations load without it

    if main is None or branch is None:
        return main
    try:
        return main.checkout_version((branch, None))
    except NotFoundError:
        return None


def roots_of(resources: Iterable[object]) -> list[TableRoot]:
    """The roots of those resources of a step that have Lance tables."""
    roots = (getattr(resource, "table_root", None) for resource in resources)
    return [root for root in roots if isinstance(root, TableRoot)]


def table_root(resource: object) -> TableRoot:
    """The root of a resource: a `LanceIOManager` or the IO manager that it creates, or a `LanceTableResource`.

    Raises:
        DagsterInvalidDefinitionError: The resource is something else.
    """
    root = resource if isinstance(resource, TableRoot) else getattr(resource, "table_root", None)
    if not isinstance(root, TableRoot):
        raise dg.DagsterInvalidDefinitionError(
            f"a {type(resource).__name__} has no Lance tables; name a resource that is a LanceIOManager or a "
            "LanceTableResource"
        )
    return root


def remember_root(
    asset_key: dg.AssetKey,
    stamped_uri: object,
    root_uri: str,
    options: Mapping[str, Any],
    schema: str | None,
    namespace: Mapping[str, Any],
) -> None:
    """Keep the root of an asset's table, for everything in this process that has no resource to ask.

    Args:
        asset_key: The asset.
        stamped_uri: The metadata `dagster/uri` of its definition, by which the root is looked up.
        root_uri: The root; empty for none.
        options: The options by which it is reached; values can be `EnvVar`.
        schema: As in `TableRoot`.
        namespace: As in `TableRoot`; values can be `EnvVar`.
    """
    _remembered_roots[asset_key, plain_metadata(stamped_uri)] = (root_uri, dict(options), schema, dict(namespace))


def remembered_root(asset_key: dg.AssetKey, stamped_uri: object) -> TableRoot | None:
    """The root that was kept for an asset, its environment variables resolved now; None if none was."""
    place = _remembered_roots.get((asset_key, plain_metadata(stamped_uri)))
    if place is None:
        return None
    root_uri, options, schema, namespace = place
    resolved, properties = resolved_options(options), resolved_options(namespace)
    return TableRoot(root_uri=root_uri, storage_options=resolved, schema=schema, namespace=properties)


def known_refs(context: AnyContext) -> list[TableRef]:
    """The assets of the code location; empty if the code location is not known."""
    return [
        TableRef(key=key, metadata=metadata, partitions_def=definition)
        for key, metadata, definition in known_assets(context)
    ]


def group_by_table(
    tables: Iterable[tuple[TableRef, lance_core.LanceDataset]],
) -> list[tuple[lance_core.LanceDataset, list[TableRef]]]:
    """Tables with their assets, because several assets may share a table."""
    by_uri: dict[str, tuple[lance_core.LanceDataset, list[TableRef]]] = {}
    for ref, dataset in tables:
        by_uri.setdefault(dataset.root_uri, (dataset, []))[1].append(ref)
    return list(by_uri.values())


def join_names(refs: Iterable[TableRef]) -> str:
    """The names of assets, for messages."""
    return ", ".join(ref.name for ref in refs)


class ChosenTables(dg.Config):
    """The tables that one run of a job processes."""

    model_config = ConfigDict(extra="forbid")

    tables: list[str] = Field(default=[], description='Keys, such as "nyc/flights"; all tables of the job if empty.')


def chosen_refs(context: AnyContext, refs: Sequence[TableRef], names: Sequence[str]) -> Iterator[TableRef]:
    """The tables that a run of a job processes, each with the metadata of its definition.

    Args:
        context: The context of the op or sensor.
        refs: The tables of the job.
        names: Keys; all tables of the job if empty.

    Raises:
        Failure: A key names no table of the job.
    """
    refs_by_name = {ref.name: ref for ref in refs}
    unknown = sorted(set(names) - set(refs_by_name))
    if unknown:
        raise dg.Failure(f"{', '.join(unknown)}: no table of this job; it has {', '.join(sorted(refs_by_name))}")
    for ref in [refs_by_name[name] for name in dict.fromkeys(names)] if names else refs:
        yield ref.resolved(context)


def is_tagged(context: dg.OpExecutionContext, tag: str) -> bool:
    """Whether a tag of the run is "true"; False if the run lacks the tag.

    Raises:
        Failure: The tag is neither "true" nor "false".
    """
    tag_value = context.run.tags.get(tag)
    if tag_value not in (None, "true", "false"):
        raise dg.Failure(f"run tag {tag} must be true or false, not {tag_value!r}")
    return tag_value == "true"


def table_refs(tables: Iterable[TableLike] | TableLike) -> list[TableRef]:
    """The tables of assets, specs and keys, in order and each once; a multi-asset gives several tables.

    Raises:
        DagsterInvalidDefinitionError: A reference is none of these.
    """
    if isinstance(tables, TableRef | str | dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | dg.SourceAsset):
        tables = [tables]
    refs: dict[dg.AssetKey, TableRef] = {}
    for table in tables:
        for ref in _refs(table):
            earlier = refs.get(ref.key)
            if earlier is None or earlier.metadata is None:
                refs[ref.key] = ref
    return list(refs.values())


def table_ref(table: TableLike) -> TableRef:
    """The table of a reference to one asset.

    Raises:
        DagsterInvalidDefinitionError: The reference is to no asset, or to several.
    """
    refs = list(_refs(table))
    if len(refs) != 1:
        names = [ref.name for ref in refs]
        raise dg.DagsterInvalidDefinitionError(f"one table is needed, not {len(refs)}: {names}; name one by its key")
    return refs[0]


def as_moment(value: object) -> datetime:
    """A point in time from a datetime, its ISO form, or seconds since 1970, which Dagster's timestamp metadata holds.

    A time without a zone is in UTC, like every time in a table.

    Raises:
        ValueError: The value is none of these, or no time in the ISO form.
    """
    from lance_core.times import moment  # noqa: PLC0415 - code locations load without it

    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    try:
        return moment(value)  # type: ignore[arg-type]  # it rejects other types itself
    except ValueError as error:
        raise ValueError(f"as_of is not a time in its ISO form, such as 2026-11-22T04:00:00: {value!r}") from error


def _refs(table: Any) -> Iterator[TableRef]:
    if isinstance(table, TableRef):
        yield table
    elif isinstance(table, dg.AssetsDefinition):
        for spec in table.specs:
            yield TableRef(
                key=spec.key,
                metadata=spec.metadata,
                partitions_def=spec.partitions_def,
                is_external=not table.is_materializable,
            )
    elif isinstance(table, dg.AssetSpec | dg.SourceAsset):
        yield TableRef(
            key=table.key,
            metadata=table.metadata,
            partitions_def=table.partitions_def,
            is_external=True if isinstance(table, dg.SourceAsset) else None,
            is_spec=isinstance(table, dg.AssetSpec),
        )
    elif isinstance(table, dg.AssetKey):
        yield TableRef(key=table)
    elif isinstance(table, str) and table:
        yield TableRef(key=dg.AssetKey.from_user_string(table))
    elif isinstance(table, Sequence) and table and all(isinstance(part, str) for part in table):
        yield TableRef(key=dg.AssetKey(list(table)))
    else:
        raise dg.DagsterInvalidDefinitionError(
            f'a table is named by an asset, a spec, an asset key or the string "schema/table", not by {table!r}'
        )
