"""Arguments of resources and policies that there are not: named, with the nearest that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from lance_dagster.tables.settings_keys import meant

__all__ = ["FOREIGN_ARGUMENTS", "reject_unknown_arguments"]

FOREIGN_ARGUMENTS: Final[Mapping[str, str]] = {
    "mode": "write_mode",
    "overwrite_schema": 'schema_mode="overwrite"',
    "schema_update_mode": "schema_mode",
    "upsert_options": 'write_mode="merge" and the metadata lance/merge_on of the asset',
    "namespace": "schema",
    "base_path": "root_uri",
    "base_dir": "root_uri",
    "uri": "root_uri",
}
"""Arguments of other table IO managers, and their equivalents here."""


def reject_unknown_arguments(model: type[BaseModel], given: Any, *, foreign: Mapping[str, str] | None = None) -> None:
    """Reject the arguments of a resource that it does not have.

    Args:
        model: The class.
        given: Its arguments; anything but a mapping is left to pydantic.
        foreign: Arguments of others, and what they are called here.

    Raises:
        ValueError: there is one, which pydantic reports; names it, and what is meant. Values are not shown.
    """
    if not isinstance(given, Mapping) or model.model_config.get("extra") != "forbid":
        return
    known = {field.alias or name for name, field in model.model_fields.items()}
    names = known | set(model.model_fields)
    for name in given:
        if name in names:
            continue
        own = (foreign or {}).get(str(name), "")
        hint = f"; use {own}" if own.partition("=")[0] in known else meant(str(name), known)
        raise ValueError(f"{model.__name__} has no argument {name!r}; it has {', '.join(sorted(known))}{hint}")
