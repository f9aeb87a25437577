"""The tables of a lake: all tables below a root, whoever writes them, listed when a run or tick begins.

    root                      True: the root of the IO manager; or a URI, reached with the IO manager's storage options;
                              a namespace locates its tables without one
    include, exclude          globs over the path of a table below the root, such as "nyc/*"; `*` also matches slashes
    policies                  "nyc": fields for the tables in a folder; "nyc/flights": for one table
    policy_names              the keys of `policies` as the caller spells them

Policies are applied from the outside in: the policy of the job, then those of each folder, then that of the table, then
the metadata `lance/maintenance` of its asset, if the code location has one. A table is named by the key of its asset,
else by its path without the suffix.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import Logger
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import dagster as dg

from lance_dagster._context.steps import AnyContext
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.tables.location import TABLE_KEY, checked_root, remember_options, resolved_options
from lance_dagster.tables.refs import (
    INDICES_KEY,
    MAINTENANCE_KEY,
    TableLike,
    TableRef,
    TableRoot,
    known_refs,
    table_refs,
)

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import FoundTable

SUFFIX: Final = ".lance"


Listing: TypeAlias = Sequence[Mapping[str, Any]]
"""Tables below a root that were listed before: the `path`, `uri` and `other_paths` of each."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A table of a lake.

    Attributes:
        ref: The asset of the table; made from its path if the code location has no asset for it.
        path: The path below the root, without the suffix.
        uri: The URI of the table.
        versions: The versions in ascending order, if the listing has them; else None.
        is_declared: Whether the code location has an asset for the table.
        own_options: The storage options that a namespace gives for the table; None for those of the root.
        names: The path, and those of the table's further ids: globs and policies can use any of them.
        ids: Its ids in a namespace, each as its parts; None where no namespace names the tables.
        problem: Why the table cannot be opened; None if it can.
    """

    ref: TableRef
    path: str
    uri: str
    versions: Sequence[int] | None = None
    is_declared: bool = False
    own_options: Mapping[str, str] | None = field(default=None, repr=False)
    names: tuple[str, ...]
    ids: Sequence[Sequence[str]] | None = None
    problem: str | None = None

    @property
    def latest(self) -> int | None:
        """The newest version in the listing; None if the listing has no versions."""
        return self.versions[-1] if self.versions else None

    def open(self, options: Mapping[str, str] | None) -> lance_core.LanceDataset | None:
        """The table at the newest version in the listing, else at its newest version; None if it was dropped.

        Raises:
            StoreError: The namespace gives no usable location of the table.
        """
        import lance_core  # noqa: PLC0415 - code locations load without it
        from lance_core.errors import DatasetNotFoundError, StoreError, VersionNotFoundError  # noqa: PLC0415 - heavy imports

        if self.problem is not None:
            raise StoreError(self.problem)
        storage_options = dict(self.own_options or options or {}) or None
        if self.latest is not None:
            try:
                return lance_core.dataset(self.uri, version=self.latest, storage_options=storage_options)
            except VersionNotFoundError:
                pass  # the version was removed after the listing
        try:
            return lance_core.dataset(self.uri, storage_options=storage_options)
        except DatasetNotFoundError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A root and a choice of the tables below it; the head of the module describes the fields."""

    root: str | bool | None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    policies: Mapping[str, Any] = field(default_factory=dict)
    listing: Listing | None = None
    namespace: Mapping[str, Any] = field(default_factory=dict, repr=False)
    policy_names: tuple[str, ...] = ()

    def place(self, root: TableRoot) -> TableRoot:
        """The root of the lake as a `TableRoot`."""
        root_uri = root.root_uri if self.root is True else str(self.root or "")
        is_of_root = self.root is True and not self.namespace
        namespace = root.namespace if is_of_root else resolved_options(self.namespace)
        return replace(root, root_uri=root_uri, namespace=namespace)

    def takes(self, path: str) -> bool:
        """Whether the globs choose a table, by its path without the suffix."""
        from lance_core.maintenance.routine.maintain import is_chosen  # noqa: PLC0415 - code locations load without it

        return is_chosen(path, self.include, self.exclude)

    def find(
        self,
        root: TableRoot,
        refs: Iterable[TableRef],
        context: AnyContext | None = None,
        *,
        with_manifest: bool = False,
    ) -> list[LakeTable]:
        """The chosen tables that are below the root now, in ascending order of their paths.

        Args:
            root: The root of the IO manager.
            refs: The assets of tables, whose definitions take precedence over those of the code location.
            context: The context of the run or tick, which has the assets of the code location; or None.
            with_manifest: Whether the manifest table of a directory namespace is one of them, and tables that cannot be
                opened are, which the log names otherwise.
        """
        from lance_core.catalog import MANIFEST_TABLE  # noqa: PLC0415 - code locations load without it

        place = self.place(root)
        declared = _locate_assets(root, [*(() if context is None else known_refs(context)), *refs])
        names_in_use = {ref.name for ref in declared.values()}
        lake_tables = []
        for table in self._list_tables(place):
            path = table.name
            if path == MANIFEST_TABLE and not with_manifest:
                continue
            if table.problem is not None and not with_manifest:
                _log.warning("%s is left out: %s", path, table.problem)
                continue
            ref = None if table.problem is not None else declared.get(_canonical(table.uri))
            name = path
            while ref is None and name in names_in_use:
                name += SUFFIX
            named = ref or TableRef(key=dg.AssetKey(name.split("/")), metadata={})
            names_in_use.add(named.name)
            lake_tables.append(
                LakeTable(
                    ref=named,
                    path=path,
                    uri=table.uri,
                    names=table.names,
                    ids=table.ids,
                    versions=table.versions,
                    is_declared=ref is not None,
                    own_options=table.storage_options if place.namespace else None,
                    problem=table.problem,
                )
            )
        return lake_tables

    def _list_tables(self, place: TableRoot) -> list[FoundTable]:
        """The chosen tables, as the listing has them, or by a listing of the root."""
        from lance_core.maintenance import FoundTable  # noqa: PLC0415 - code locations load without it
        from lance_core.maintenance.routine.maintain import find_chosen_tables, reject_names_of_two, takes  # noqa: PLC0415 - code locations load without it

        if self.listing is None:
            space = dict(place.namespace) or None
            choice = (self.include, self.exclude, place.options, space, self.policy_names)
            return find_chosen_tables(place.root_uri, *choice)
        tables = [
            FoundTable(
                path=entry["path"],
                uri=entry["uri"],
                other_paths=tuple(entry.get("other_paths", ())),
                storage_options=_options_when_opened(place, entry) if place.namespace else None,
            )
            for entry in self.listing
        ]
        reject_names_of_two(tables, [*self.include, *self.exclude, *self.policy_names])
        return [table for table in tables if takes(table, self.include, self.exclude)]

    def policy(
        self, policy: LanceMaintenancePolicy, table: LakeTable, ref: TableRef | None, log: Logger = _log
    ) -> LanceMaintenancePolicy | None:
        """The policy for a table; None if the table is not maintained.

        Args:
            policy: The policy of the job.
            table: The table.
            ref: Its asset, with the metadata that count; None to leave these out.
            log: Gets a warning if the policies for the names of the table differ.

        Raises:
            DagsterInvalidDefinitionError: The metadata `lance/maintenance` of its asset is invalid.
        """
        from lance_core.maintenance.routine.maintain import agree_on_policy  # noqa: PLC0415 - code locations load without it

        metadata = {} if ref is None else ref.metadata or {}

        def policy_of_name(path: str) -> LanceMaintenancePolicy | None:
            path_policy = self._policy_of_path(policy, path)
            if path_policy is None and metadata.get(MAINTENANCE_KEY) is None:
                return None
            return policy_of(path_policy or policy, metadata, label=f"asset {(ref or table.ref).name}")

        return agree_on_policy(table.names, self.policies, policy_of_name, log)

    def _policy_of_path(self, policy: LanceMaintenancePolicy, path: str) -> LanceMaintenancePolicy | None:
        from lance_core.maintenance.routine.maintain import policy_levels  # noqa: PLC0415 - code locations load without it

        path_policy: LanceMaintenancePolicy | None = policy
        for name in policy_levels(path):
            if name in self.policies:
                path_policy = policy_of(
                    path_policy or policy, {MAINTENANCE_KEY: self.policies[name]}, label=f"policies[{name!r}]"
                )
        return path_policy


def _options_when_opened(place: TableRoot, entry: Mapping[str, Any]) -> dict[str, str]:
    """The options of a table of a namespace, which gives its own ones when the table is opened."""
    from lance_core.catalog import Namespace  # noqa: PLC0415 - code locations load without it

    table_id = Namespace.parse_id(entry["path"].removesuffix(SUFFIX))
    return {**place.storage_options, **Namespace(place.namespace).options_of(table_id)}


def make_lake(
    root: str | bool | None,
    include: str | Sequence[str],
    exclude: str | Sequence[str],
    policies: Mapping[str, Any] | None = None,
    policy: LanceMaintenancePolicy | None = None,
    listing: Listing | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Lake | None:
    """The lake that the arguments of a builder describe; None if they name neither a root nor a namespace.

    Raises:
        DagsterInvalidDefinitionError: A policy or the root is invalid, or there are globs or policies but no root.
    """
    chosen: dict[str, Any] = {"include": _globs(include), "exclude": _globs(exclude)}
    if not namespace and (root is None or root is False):
        choices = [name for name, value in {**chosen, "policies": policies}.items() if value]
        if choices:
            raise dg.DagsterInvalidDefinitionError(
                f"{', '.join(choices)} choose among the tables below a root, and there is none: pass root=True for the "
                "root of the IO manager, or a URI"
            )
        return None
    root = None if root is False else checked_root(root)
    for name, path_policy in (policies or {}).items():
        policy_of(policy or LanceMaintenancePolicy(), {MAINTENANCE_KEY: path_policy}, label=f"policies[{name!r}]")
    by_path = {name.strip("/").removesuffix(SUFFIX): path_policy for name, path_policy in (policies or {}).items()}
    chosen |= {"policies": by_path, "policy_names": tuple(policies or ())}
    return Lake(root=root, listing=listing, namespace=namespace or {}, **chosen)


def lance_external_assets(
    root: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    *,
    known: Iterable[TableLike] | TableLike = (),
    storage_options: Mapping[str, Any] | None = None,
    schema: str | None = None,
    group_name: str | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> list[dg.AssetSpec]:
    """External assets for the tables below a root, so that the asset catalog of the Dagster UI shows the whole lake.

    The tables are listed when the code location is loaded; reload it to see new tables. Where others give the id of a
    table to another one, the assets of a directory namespace follow; those of a service stand for the table that had
    the id until a reload. A maintenance job with this root maintains them; a job to which they are passed as assets
    leaves them alone, because others write them.

    Args:
        root: The URI of the root; not needed beside a namespace.
        include: Globs over the paths of tables below the root, such as "nyc/*"; all tables if there are none.
        exclude: Globs of tables to leave out.
        known: Assets of the code location whose tables are below the root; they get no external assets.
        storage_options: The options by which the root is reached; values can be `EnvVar`. They are not in metadata.
        schema: The IO manager's `schema`, by which the tables of `known` are located.
        group_name: The asset group of the external assets.
        namespace: Properties of a namespace, such as `{"impl": "rest", "uri": "https://..."}`, whose tables are listed
            in place of those below the root; values can be `EnvVar`.

    Raises:
        DagsterInvalidDefinitionError: The root is no URI, or holds credentials, which would show in the UI.

    Examples:
        >>> written = lance.write_dataset({"id": [1]}, "lake/nyc/flights.lance")
        >>> [spec.key.path for spec in lance_dagster.lance_external_assets("lake")]
        [['nyc', 'flights']]
    """
    lake = make_lake(root, include, exclude, namespace=namespace)
    if lake is None:
        raise dg.DagsterInvalidDefinitionError(
            f"root must be the URI of a folder of tables, not {root!r}; or pass the properties of a namespace"
        )
    return build_external_assets(lake, known, storage_options=storage_options, schema=schema, group_name=group_name)


def build_external_assets(
    lake: Lake,
    declared_assets: Iterable[TableLike] | TableLike,
    *,
    storage_options: Mapping[str, Any] | None,
    schema: str | None,
    group_name: str | None = None,
) -> list[dg.AssetSpec]:
    """The external assets of the tables of a lake; see `lance_external_assets`."""
    tables = list_tables_when_loaded(
        lake, table_refs(declared_assets), storage_options=storage_options, schema=schema, label="lance_external_assets"
    )
    return [build_external_asset(table, storage_options, group_name) for table in tables if not table.is_declared]


def list_tables_when_loaded(
    lake: Lake, refs: Iterable[TableRef], *, storage_options: Mapping[str, Any] | None, schema: str | None, label: str
) -> list[LakeTable]:
    """The chosen tables that are below a root when the code location is loaded.

    Args:
        lake: The root, and the globs.
        refs: Assets of the code location.
        storage_options: The options by which the root is reached; values can be `EnvVar`.
        schema: The IO manager's `schema`, by which the tables of `known` are located.
        label: The builder, for messages.

    Raises:
        DagsterInvalidDefinitionError: The root is not a URI.
    """
    if lake.root is True and not lake.namespace:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: root=True is the root of the IO manager, which is unknown while the code location is loaded, "
            'when the tables are listed; pass the URI of the root, such as root="s3://bucket/lake"'
        )
    options = resolved_options(storage_options or {})
    place = lake.place(TableRoot(root_uri="", storage_options=options, schema=schema))
    return lake.find(place, refs)


def build_external_asset(
    table: LakeTable, storage_options: Mapping[str, Any] | None, group_name: str | None = None
) -> dg.AssetSpec:
    """The external asset of a table without an asset; this process opens the table with the storage options."""
    metadata = {"lance/uri": table.uri, "dagster/uri": table.uri, "dagster/table_name": table.path.replace("/", ".")}
    if storage_options or table.own_options:
        remember_options(table.ref.key, table.uri, table.own_options or storage_options or {})
    return dg.AssetSpec(table.ref.key, metadata=metadata, group_name=group_name, kinds={"lance"})


def _globs(globs: str | Sequence[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)


def _locate_assets(root: TableRoot, refs: Iterable[TableRef]) -> dict[str, TableRef]:
    """The assets of tables by the tables' URIs; assets whose tables cannot be located are left out.

    The last reference to an asset counts. If several assets share a table, an asset that writes rows takes precedence
    over one that owns columns; it has the indices that the others declare.
    """
    refs_by_uri: dict[str, TableRef] = {}
    root = root.with_listing()
    for ref in {ref.key: ref for ref in refs}.values():
        try:
            location = root.locate(ref)
        except dg.DagsterInvalidDefinitionError:
            continue
        uri = _canonical(location.uri)
        other = refs_by_uri.get(uri)
        if other is None:
            refs_by_uri[uri] = ref
        elif TABLE_KEY not in (ref.metadata or {}) or TABLE_KEY in (other.metadata or {}):
            refs_by_uri[uri] = ref.with_indices_of(other)
        else:
            refs_by_uri[uri] = other.with_indices_of(ref)
    return refs_by_uri


def locate_declaring(root: TableRoot, refs: Iterable[TableRef]) -> dict[str, TableRef]:
    """By the URIs of tables an asset with the indices that all assets of the table declare, if any does.

    Args:
        root: The root.
        refs: Assets, of which several may share a table.
    """
    return _locate_assets(root, [ref for ref in refs if (ref.metadata or {}).get(INDICES_KEY) is not None])


def join_shared(root: TableRoot, ref: TableRef, refs: Iterable[TableRef]) -> TableRef:
    """The asset by which the table of an asset is maintained, with the indices that all its assets declare.

    Args:
        root: The root.
        ref: The asset, whose table can be located.
        refs: Further assets, of this table and of others.
    """
    (uri,) = _locate_assets(root, [ref])
    return _locate_assets(root, [*refs, ref])[uri]


def _canonical(uri: str) -> str:
    import lance_core  # noqa: PLC0415 - code locations load without it

    return lance_core.canonical_uri(uri)
