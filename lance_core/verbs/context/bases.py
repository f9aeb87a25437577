"""Base paths: places outside of the root for files of a dataset, and the choice of targets for new data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lance_core.errors import InvalidInputError
from lance_core.store import ObjectStore, canonical_uri, open_base
from lance_core.table.fragment import BasePath
from lance_core.table.paths import DATA_PREFIX


class DatasetBasePath:
    """A place outside the dataset's root, where files of the dataset may be stored.

    Args:
        path: URI or path of the place.
        name: A name to refer to it by.
        is_dataset_root: Whether files lie below `data/` and `_deletions/` there, rather than directly in it.
        id: The number by which files and indices refer to it; None or 0 lets the commit choose one.
    """

    __slots__ = ("_record",)

    def __init__(
        self,
        path: str,
        name: str | None = None,
        is_dataset_root: bool = False,
        id: int | None = None,  # noqa: A002 - pylance's name
    ) -> None:
        self._record = BasePath(id=id or 0, path=canonical_uri(path), name=name, is_dataset_root=is_dataset_root)

    @classmethod
    def from_record(cls, record: BasePath) -> DatasetBasePath:
        """The public form of a record; its path is kept as it is spelled."""
        result = cls(record.path, record.name, record.is_dataset_root, record.id)
        result._record = record
        return result

    def to_record(self) -> BasePath:
        """The record of the table layer."""
        return self._record

    @property
    def id(self) -> int:
        """The number by which files refer to it; 0 if the commit will choose one."""
        return self._record.id

    @property
    def name(self) -> str | None:
        """Its name."""
        return self._record.name

    @property
    def path(self) -> str:
        """URI or absolute path."""
        return self._record.path

    @property
    def is_dataset_root(self) -> bool:
        """Whether files lie below `data/` and `_deletions/` there."""
        return self._record.is_dataset_root

    def __repr__(self) -> str:
        """All attributes."""
        return (
            f"DatasetBasePath(id={self.id}, name={self.name!r}, path={self.path!r}, "
            f"is_dataset_root={self.is_dataset_root})"
        )

    def __eq__(self, other: object) -> bool:
        """Whether all attributes are equal."""
        return isinstance(other, DatasetBasePath) and self._record == other._record

    def __hash__(self) -> int:
        """By all attributes."""
        return hash(self._record)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """A place that new data files go to.

    Attributes:
        store: The store of the place.
        base_id: Id of the base path; None for the dataset itself.
        prefix: Prefix of the keys of data files in the store.
    """

    store: ObjectStore
    base_id: int | None = None
    prefix: str = DATA_PREFIX


def numbered(bases: Sequence[DatasetBasePath]) -> tuple[BasePath, ...]:
    """The records of the base paths of a new dataset; base paths without an id get the lowest free ids from 1.

    Raises:
        InvalidInputError: Two base paths have the same id, name or path.
    """
    used_ids = {base.id for base in bases if base.id}
    result, next_id = [], 1
    for base in bases:
        record = base.to_record()
        if not record.id:
            while next_id in used_ids:
                next_id += 1
            used_ids.add(next_id)
            record = BasePath(id=next_id, path=record.path, name=record.name, is_dataset_root=record.is_dataset_root)
        result.append(record)
    names = [record.name for record in result if record.name is not None]
    for kind, values in (("id", [r.id for r in result]), ("path", [r.path for r in result]), ("name", names)):
        if len(set(values)) < len(values):
            raise InvalidInputError(f"two base paths have the same {kind}: {values}")
    return tuple(result)


def write_targets(
    store: ObjectStore,
    bases: Sequence[BasePath],
    *,
    target_bases: Sequence[str] | None,
    target_all_bases: bool | None,
    options: Mapping[str, str],
) -> list[WriteTarget]:
    """The targets to which new data files are written, round-robin.

    Args:
        store: The dataset's own store.
        bases: Base paths of the dataset.
        target_bases: Names, paths or URIs of base paths; the dataset's own URI selects its root. None for the root.
        target_all_bases: If given, all base paths are targets; True puts the dataset's root before them. It cannot be
            combined with `target_bases`.
        options: Storage options of the dataset, which are used for the base paths too.

    Raises:
        InvalidInputError: A base path is not known, both arguments are given, or `target_all_bases` is False and the
            dataset has no base paths.
    """
    if target_bases is not None and target_all_bases is not None:
        raise InvalidInputError("target_bases and target_all_bases cannot be given together")
    root_target = WriteTarget(store=store)

    def target(base: BasePath) -> WriteTarget:
        opened = open_base(base.path, store.root, options)
        return WriteTarget(store=opened, base_id=base.id, prefix=DATA_PREFIX if base.is_dataset_root else "")

    if target_all_bases is not None:
        chosen = [root_target] if target_all_bases else []
        chosen.extend(target(base) for base in bases)
        if not chosen:
            raise InvalidInputError(
                "target_all_bases=False writes only to base paths, and the dataset has none; add_bases adds one"
            )
        return chosen
    chosen_bases = [_find(bases, name, store.root) for name in target_bases or ()]
    return [root_target if base is None else target(base) for base in chosen_bases] or [root_target]


def _find(bases: Sequence[BasePath], name: str, root: str) -> BasePath | None:
    """The base path with a name, path or URI; None for the dataset's root."""
    for base in bases:
        if base.name == name:
            return base
    for base in bases:
        if name == base.path or canonical_uri(name) == canonical_uri(base.path):
            return base
    if canonical_uri(name) == root:
        return None
    names = [base.name or base.path for base in bases]
    raise InvalidInputError(
        f"Base reference {name!r} not found in available bases {names}; give the name, path or URI of one of them, or "
        "add one with add_bases"
    )
