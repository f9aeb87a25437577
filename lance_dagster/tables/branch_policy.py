"""`BranchPolicy`: which runs write to a branch of their tables, and the name of that branch.

    policy                        a run of backfill b7 (root run r1)      any other run (root run r2)
    ------                        ----------------------------------      ---------------------------
    off()                         main                                    main
    per_run()                     dagster/run/r1                          dagster/run/r2
    per_backfill()                dagster/backfill/b7                     main
    from_tag("lance/branch")      the tag's value; no tag: main; "auto": dagster/backfill/b7 or dagster/run/r2
    env("NAME")                   the variable's value, read when the run writes. Values mean what they mean in a tag,
                                  but main must be named (NAME=main): a run fails if the variable is unset or empty

The branch is a fact about the root run, or about the root backfill that launched it (`_context.roots`): all runs,
re-executions, steps, checks, inputs and resources find it there. A run whose own tag, or whose environment, names
another branch than its root is rejected. A run of a write-audit-publish job has the tag `lance/audited`, and writes to
a branch of its own under every policy; since it publishes to main, a variable must name main.

The jobs and sensors of this package, which write no assets, work on the branch that the variable or the tag names, and
else on main (`branch_of_job`).
"""

import os
from collections.abc import Mapping
from typing import Final, Literal, Self

import dagster as dg
from pydantic import Field, model_validator

from lance_dagster._context.roots import root_of
from lance_dagster._context.steps import RunFacts, facts_of
from lance_dagster.tables.arguments import CheckedArguments

BRANCH_TAG = "lance/branch"
"""Run tag that names the branch."""

AUDITED_TAG = "lance/audited"
"""Run tag of write-audit-publish jobs: each run writes to a branch of its own."""

DEFER_TAG = "dagster/defer_asset_events"
"""Dagster's tag of runs whose writes are not recorded as materializations."""

PUBLISHES_TAG = "lance/publishes"
"""Tag of runs whose materializations are about main, even if the run tag `lance/branch` names a branch."""

FORCE_TAG = "lance/force"
"""Run tag that promotes a branch even if gates reject it."""

NO_RETRIES = {"dagster/max_retries": "0"}
"""Tags of runs that are not retried, because a retry would be rejected for the same reason."""

BY_THREAD = "do it in the thread of the body, or start the thread's function by contextvars.copy_context().run"
"""The remedy for reads in threads, of which Dagster does not name the step."""

AUTO = "auto"
MAIN = "main"

_ENV_TAG: Final = "lance/env."
"""Prefix of the tag of a root run with the branch that a variable of the environment named."""

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


def tag_run_with_branch(policy: BranchPolicy, facts: RunFacts | None) -> str | None:
    """Choose the branch of a run, record it as the run's tag `lance/branch`, and return it; None, untagged, for main.

    Outside of a run only a variable of the environment names a branch.

    Raises:
        DagsterInvalidDefinitionError: The tag or variable is empty or no name of a branch, or the variable is not set.
        Failure: The run is a re-execution, and the first run was on another branch, or is not known any more.
    """
    if facts is None:
        return None if policy.kind != "env" else _branch_of_environment(policy, None)
    branch = _branch_of_root(policy, facts)
    if branch is not None:
        _add_tag(facts, facts.run_id, BRANCH_TAG, branch)
    return branch


def reject_without_step(
    facts: RunFacts | None, context: dg.InitResourceContext | None, policy: BranchPolicy, what: str, remedy: str
) -> None:
    """Reject work in a run on a branch for which Dagster names no step, as in a thread that a body has started.

    Args:
        facts: The run and the step that do the work; None if they are not known.
        context: The context in which the resource was created; None outside of a run.
        policy: The policy of the resource; if it is off, the branch is that which another resource has recorded.
        what: The work, for the message.
        remedy: What to do instead, for the message.

    Raises:
        DagsterInvalidInvocationError: The run is on a branch, and the step is not known.
    """
    if facts is not None or context is None or context.run is None or context.instance is None:
        return
    facts = facts_of(context.instance.get_run_by_id(context.run.run_id) or context.run, context.instance)
    branch = tag_run_with_branch(policy, facts) or (facts.tags.get(BRANCH_TAG) if policy.kind == "off" else None)
    if branch is not None:
        raise dg.DagsterInvalidInvocationError(
            f"{what} in a run on branch {branch}, and Dagster does not name the step, which would have to do it on the "
            f"branch and record it: {remedy}"
        )


def _branch_of_root(policy: BranchPolicy, facts: RunFacts) -> str | None:
    is_audited = facts.tags.get(AUDITED_TAG) == "true"
    if policy.kind == "off" and not is_audited:
        return None
    root = root_of(facts)
    if is_audited and policy.kind == "env" and (branch := _branch_of_environment(policy, None)) is not None:
        raise dg.Failure(
            f"{branch_source(policy, branch)}, and a write-audit-publish job publishes to main: run it where "
            f"{policy.name}={MAIN}, or run its assets without the job",
            allow_retries=False,
        )
    if is_audited or policy.kind == "per_run":
        return run_branch(facts)
    if policy.kind == "env":
        branch, label = _branch_of_environment(policy, facts), f"environment variable {policy.name}"
        before = root.tags.get(_ENV_TAG + str(policy.name))
        if before is not None and before != (branch or MAIN):
            raise _other_branch(facts, before, f"{label} is {branch or MAIN}")
        _add_tag(facts, facts.root_run_id, _ENV_TAG + str(policy.name), branch or MAIN)
        return branch
    if not root.is_known:
        raise dg.Failure(
            f"run {facts.run_id} re-executes run {root.run_id}, of which Dagster has no record any more, so that the "
            "branch is unknown to which that run wrote: launch a new run",
            allow_retries=False,
        )
    if policy.kind == "per_backfill":
        return None if root.backfill_id is None else backfill_branch(root.backfill_id)
    tag = policy.name or BRANCH_TAG
    branch = _branch_of_tag(tag, root.tags.get(tag), facts)
    tagged = facts.tags.get(tag)
    if tagged not in (None, AUTO) and (named := _branch_of_tag(tag, tagged, facts)) != branch:
        raise _other_branch(facts, branch, f"its run tag {tag} is {named or MAIN}")
    return branch


def branch_of_job(policy: BranchPolicy, tags: Mapping[str, str]) -> str | None:
    """The branch on which a job or sensor of this package works, which writes no asset; None for main.

    Args:
        policy: The policy. One that gives each run or backfill a branch of its own names none for such a job.
        tags: The tags of the run; empty for a sensor.

    Raises:
        DagsterInvalidDefinitionError: The tag or variable is empty, "auto" or no name of a branch, or the variable is
            not set.
    """
    if policy.kind == "env":
        return _branch_of_environment(policy, None)
    if policy.kind != "from_tag":
        return None
    tag = policy.name or BRANCH_TAG
    return _branch_of_tag(tag, tags.get(tag), None)


def only_branch(policy: BranchPolicy) -> str | None:
    """The one branch that is promoted and discarded in this environment; None if all are, as where it names main.

    Raises:
        DagsterInvalidDefinitionError: The variable is empty or not set, or no branch can have that name.
    """
    if policy.kind != "env" or os.environ.get(str(policy.name)) == AUTO:
        return None
    return _branch_of_environment(policy, None)


def branch_source(policy: BranchPolicy, branch: str) -> str:
    """The tag or the variable that names a branch, for messages."""
    kind = "environment variable" if policy.kind == "env" else "run tag"
    return f"{kind} {policy.name or BRANCH_TAG} is {branch}"


def _branch_of_tag(tag: str, value: str | None, facts: RunFacts | None) -> str | None:
    label = f"run tag {tag}"
    if value is not None and not value.strip():
        raise _unnamed(label, "empty")
    return named_branch(value, facts, label=label)


def _branch_of_environment(policy: BranchPolicy, facts: RunFacts | None) -> str | None:
    name = str(policy.name)
    value, label = os.environ.get(name, ""), f"environment variable {name}"
    if not value.strip():
        raise _unnamed(label, "empty" if name in os.environ else "not set")
    return named_branch(value, facts, label=label)


def _unnamed(label: str, what: str) -> dg.DagsterInvalidDefinitionError:
    return dg.DagsterInvalidDefinitionError(
        f"{label} is {what}, but must name the branch that runs write to: set it to a branch, to {AUTO}, or for "
        f"production to {MAIN}"
    )


def _other_branch(facts: RunFacts, branch: str | None, difference: str) -> dg.Failure:
    return dg.Failure(
        f"run {facts.run_id} re-executes run {facts.root_run_id}, which was on {branch or MAIN}, and {difference}: a "
        "re-execution goes on with the branch of the first run. Re-execute it there, or launch a new run",
        allow_retries=False,
    )


def _add_tag(facts: RunFacts, run_id: str, tag: str, value: str) -> None:
    """Tag a run, if the instance has a record of it that lacks the tag."""
    record = facts.record(run_id)
    if facts.instance is not None and record is not None and record.dagster_run.tags.get(tag) != value:
        facts.instance.add_run_tags(run_id, {tag: value})


def named_branch(value: str | None, facts: RunFacts | None, *, label: str) -> str | None:
    """The branch that a tag's value stands for.

    Args:
        value: A name, "auto", "main", or nothing.
        facts: The run, for "auto"; None where no run writes assets, so that "auto" names nothing.
        label: The source of the value, for messages.

    Raises:
        DagsterInvalidDefinitionError: No branch can have that name.
    """
    if not value or value == MAIN:
        return None
    near = value.strip().lower()
    if near in (MAIN, AUTO) and value != near:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: no branch can be called {value!r}, which is easily mistaken for {near!r}; write {near!r} for "
            + ("production" if near == MAIN else "a branch per backfill or run")
        )
    if value != AUTO:
        return check_name(value, label=label)
    if facts is None:
        raise dg.DagsterInvalidDefinitionError(
            f"{label} is {AUTO}, a branch for each backfill or run that writes assets: name a branch, or {MAIN}"
        )
    root = root_of(facts)
    return run_branch(facts) if root.backfill_id is None else backfill_branch(root.backfill_id)


def describe_launch(policy: BranchPolicy, branch: str) -> str:
    """How to launch a run on a branch, for messages: the end of the sentence "launch the check ..."."""
    if policy.kind == "from_tag":
        return f"in a run with the tag {policy.name or BRANCH_TAG}: {branch}"
    if policy.kind == "env":
        return f"where {policy.name} is {branch}"
    return "in a re-execution of a run on the branch"


def check_name(name: str, *, label: str) -> str:
    """A name that a branch can have in every tool.

    Raises:
        DagsterInvalidDefinitionError: No branch can have that name.
    """
    from lance_core.dataset import check_branch_name  # noqa: PLC0415 - heavy imports at first use
    from lance_core.errors import InvalidInputError  # noqa: PLC0415 - code locations load without lance_core

    try:
        return check_branch_name(name)
    except InvalidInputError as error:
        raise dg.DagsterInvalidDefinitionError(f"{label}: no branch can be called {name!r}: use {_ALLOWED}") from error


def backfill_branch(backfill_id: str) -> str:
    """The name of a backfill's branch."""
    return f"dagster/backfill/{backfill_id}"


def run_branch(facts: RunFacts) -> str:
    """The name of the branch of a run and its re-executions."""
    return f"dagster/run/{facts.root_run_id}"
