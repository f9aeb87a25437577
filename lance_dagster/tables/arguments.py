"""The arguments that the resources share, and the rejection of unknown ones with the nearest known name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, Self, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from lance_dagster.tables.location import checked_root
from lance_dagster.tables.names import near_name

_Model = TypeVar("_Model", bound=BaseModel)

_FOREIGN: Final[Mapping[str, str]] = {
    "mode": "write_mode",
    "overwrite_schema": 'schema_mode="overwrite"',
    "schema_update_mode": "schema_mode",
    "upsert_options": 'write_mode="merge" and the metadata lance/merge_on of the asset',
    "base_path": "root_uri",
    "base_dir": "root_uri",
    "uri": "root_uri",
}
"""Arguments of other table IO managers, and their equivalents here."""


class CheckedArguments(BaseModel):
    """A resource whose errors name unknown arguments, and never show values, which may be secrets."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _check_arguments(cls, values: Any) -> Any:
        reject_unknown_arguments(cls, values)
        return values


class RootArguments(CheckedArguments):
    """The arguments of a resource that finds tables below a root."""

    root_uri: str | None = Field(
        default=None,
        description="Folder or object-store prefix that holds the tables; required without a namespace. With one, it "
        "holds outputs of ops and the log of maintenance alone.",
    )
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="How to reach the storage; names of object_store or s3fs. Use EnvVar.",
        json_schema_extra={"dagster__is_secret": True},
    )
    namespace: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description='Properties of a namespace that locates the tables, such as {"impl": "rest", "uri": ...}. Use '
        "EnvVar for secrets.",
        json_schema_extra={"dagster__is_secret": True},
    )
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="Folder of the tables of assets whose metadata names none; by default their keys name it.",
    )

    _check_root = field_validator("root_uri", mode="before")(checked_root)

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.root_uri is None and not self.namespace:
            raise ValueError("root_uri is missing: give the folder of the tables, or a namespace that locates them")
        return self


def reject_unknown_arguments(model: type[BaseModel], arguments: Any) -> None:
    """Reject arguments that a model does not have.

    Args:
        model: The class.
        arguments: Its arguments; pydantic checks a value that is no mapping.

    Raises:
        ValueError: An argument is unknown; the error names it and the nearest known argument, and shows no values.
            Pydantic wraps the error.
    """
    if not isinstance(arguments, Mapping) or model.model_config.get("extra") != "forbid":
        return
    argument_names = {field.alias or name for name, field in model.model_fields.items()}
    names = argument_names | set(model.model_fields)
    for name in arguments:
        if name in names:
            continue
        lance_argument = _FOREIGN.get(str(name), "")
        is_renamed = lance_argument.partition("=")[0] in argument_names
        hint = f"; use {lance_argument}" if is_renamed else near_name(str(name), argument_names)
        raise ValueError(f"{model.__name__} has no argument {name!r}; it has {', '.join(sorted(argument_names))}{hint}")


def field_with_description(default: Any, description: str) -> Any:
    """A field of a dataclass, with a description, which models derived from the dataclass show."""
    return dataclasses.field(default=default, metadata={"description": description})


def with_fields_of(record: type, *, without: Collection[str] = ()) -> Callable[[type[_Model]], type[_Model]]:
    """Add the fields of a dataclass to a model: optional, None by default, and durations as strings.

    Args:
        record: The dataclass.
        without: Names of fields to leave out.
    """
    hints = get_type_hints(record)
    added: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if field.name not in without:
            kinds = [kind for kind in get_args(hints[field.name]) or [hints[field.name]] if kind is not timedelta]
            kind = reduce(or_, [*kinds, None])
            added[field.name] = (kind, Field(default=None, description=field.metadata["description"]))

    def extended(model: type[_Model]) -> type[_Model]:
        extended_model = create_model(model.__name__, __base__=model, __module__=model.__module__, **added)
        extended_model.__doc__ = model.__doc__
        return extended_model

    return extended
