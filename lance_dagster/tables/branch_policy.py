"""`BranchPolicy`: which runs write to a branch of their tables, and the name of that branch.

    policy                        a run of backfill b7 (root run r1)      any other run (root run r2)
    ------                        ----------------------------------      ---------------------------
    off()                         main                                    main
    per_run()                     dagster/run/r1                          dagster/run/r2
    per_backfill()                dagster/backfill/b7                     main
    from_tag("lance/branch")      the tag's value; no tag: main; "auto": dagster/backfill/b7 or dagster/run/r2
    env("NAME")                   the variable's value, read when the run writes. Values mean what they mean in a tag,
                                  but main must be named (NAME=main): a run fails if the variable is unset or empty

Re-executions use the branch of the first run, because the branch is named after the root run or the root backfill. A
run of a write-audit-publish job has the tag `lance/audited`, and writes to a branch of its own under every policy.
"""

import os
from typing import TYPE_CHECKING, Literal, Self

import dagster as dg
from pydantic import Field, model_validator

from lance_dagster.tables.arguments import CheckedArguments

if TYPE_CHECKING:
    from lance_dagster._context.steps import RunFacts

__all__ = [
    "AUDITED_TAG",
    "AUTO",
    "BRANCH_TAG",
    "FORCE_TAG",
    "MAIN",
    "NO_RETRIES",
    "PUBLISHES_TAG",
    "BranchPolicy",
    "backfill_branch",
    "branch_of_run",
    "named_branch",
    "run_branch",
]

BRANCH_TAG = "lance/branch"
"""Run tag that names the branch."""

AUDITED_TAG = "lance/audited"
"""Run tag of write-audit-publish jobs: each run writes to a branch of its own."""

PUBLISHES_TAG = "lance/publishes"
"""Tag of runs whose materializations are about main, even if the run tag `lance/branch` names a branch."""

FORCE_TAG = "lance/force"
"""Run tag that promotes a branch even if gates reject it."""

NO_RETRIES = {"dagster/max_retries": "0"}
"""Tags of runs that are not retried, because a retry would be rejected for the same reason."""

AUTO = "auto"
MAIN = "main"

_ALLOWED = "ASCII letters, digits, '.', '-' and '_', with single slashes between parts"


class BranchPolicy(dg.Config, CheckedArguments):
    """The runs that write to a branch; the class methods create it, and the head of the module lists them.

    Attributes:
        kind: The name of the class method.
        name: The run tag, or the environment variable.
    """

    kind: Literal["off", "per_run", "per_backfill", "from_tag", "env"] = "off"
    name: str | None = Field(
        default=None, description="The run tag, or the environment variable, that names the branch."
    )

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.kind == "env" and not self.name:
            raise ValueError("kind 'env' needs a name: the name of the environment variable")
        return self

    @classmethod
    def off(cls) -> Self:
        """All runs write to main."""
        return cls(kind="off")

    @classmethod
    def per_run(cls) -> Self:
        """Every run, with its re-executions, has a branch of its own."""
        return cls(kind="per_run")

    @classmethod
    def per_backfill(cls) -> Self:
        """Every backfill has a branch; other runs write to main."""
        return cls(kind="per_backfill")

    @classmethod
    def from_tag(cls, tag: str = BRANCH_TAG) -> Self:
        """The run's tag names the branch: "auto" is a branch per backfill, else per root run; no tag means main."""
        return cls(kind="from_tag", name=tag)

    @classmethod
    def env(cls, name: str) -> Self:
        """The environment variable names the branch, as a tag does; for main it must be set to "main"."""
        return cls(kind="env", name=name)


def branch_of_run(policy: BranchPolicy, facts: "RunFacts | None") -> str | None:
    """The branch that a run writes to; None for main, and outside of a run.

    Raises:
        DagsterInvalidDefinitionError: The tag or variable is empty or no name of a branch, or the variable is not set.
    """
    if facts is None:
        return None
    if facts.tags.get(AUDITED_TAG) == "true":
        return run_branch(facts)
    if policy.kind == "off":
        return None
    if policy.kind == "per_run":
        return run_branch(facts)
    if policy.kind == "per_backfill":
        return _backfill_branch(facts)
    name = policy.name or (BRANCH_TAG if policy.kind == "from_tag" else "")
    given = facts.tags.get(name) if policy.kind == "from_tag" else os.environ.get(name, "")
    where = f"{'run tag' if policy.kind == 'from_tag' else 'environment variable'} {name}"
    if given is not None and not given.strip():
        raise dg.DagsterInvalidDefinitionError(
            f"{where} is {'empty' if policy.kind == 'from_tag' or name in os.environ else 'not set'}, but must name "
            f"the branch that runs write to: set it to a branch, to {AUTO}, or for production to {MAIN}"
        )
    return named_branch(given, facts, where=where)


def named_branch(value: str | None, facts: "RunFacts", *, where: str) -> str | None:
    """The branch that a tag's value stands for.

    Args:
        value: A name, "auto", "main", or nothing.
        facts: The run, for "auto".
        where: The source of the value, for messages.

    Raises:
        DagsterInvalidDefinitionError: No branch can have that name.
    """
    if not value or value == MAIN:
        return None
    near = value.strip().lower()
    if near in (MAIN, AUTO) and value != near:
        raise dg.DagsterInvalidDefinitionError(
            f"{where}: no branch can be called {value!r}, which is easily mistaken for {near!r}; write {near!r} for "
            + ("production" if near == MAIN else "a branch per backfill or run")
        )
    return (_backfill_branch(facts) or run_branch(facts)) if value == AUTO else check_name(value, where=where)


def check_name(name: str, *, where: str) -> str:
    """A name that a branch can have in every tool.

    Raises:
        DagsterInvalidDefinitionError: No branch can have that name.
    """
    from lance_core.dataset import check_branch_name  # noqa: PLC0415 - heavy imports at first use
    from lance_core.errors import InvalidInputError  # noqa: PLC0415 - code locations load without lance_core

    try:
        return check_branch_name(name)
    except InvalidInputError as error:
        raise dg.DagsterInvalidDefinitionError(f"{where}: no branch can be called {name!r}: use {_ALLOWED}") from error


def backfill_branch(backfill_id: str) -> str:
    """The name of a backfill's branch."""
    return f"dagster/backfill/{backfill_id}"


def run_branch(facts: "RunFacts") -> str:
    """The name of the branch of a run and its re-executions."""
    return f"dagster/run/{facts.root_run_id}"


def _backfill_branch(facts: "RunFacts") -> str | None:
    tags = facts.tags
    found = (
        tags.get("dagster/root_backfill_id") or tags.get("dagster/parent_backfill_id") or tags.get("dagster/backfill")
    )
    return None if found is None else backfill_branch(found)
