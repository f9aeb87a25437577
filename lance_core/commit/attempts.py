"""Attempts of one write: a retried write replaces the rows that its earlier attempts committed.

The commit of an attempt carries two transaction properties: the token, which all attempts of one write share and no
other write has, and the number of the attempt:

    <key of the token>   <token>
    lance.write_attempt      "17.2": numbers from the left, as in version numbers; the higher one is the later attempt

A commit that removed the rows of earlier attempts names the versions of these attempts in `lance.replaces`, as "5,6".

Which attempt wins is one rule for every mode. An attempt fails with `SupersededError` if the table has a commit

    of the same write              by an attempt with a higher number
    of another write, that filled  by an attempt with a higher number, in a version after `WriteAttempt.begun`: the two
    the same rows ("later_wins")   overlapped in time, from the begin of one to the commit of the other

and replaces the other's rows otherwise. So of two writes that overlap the one with the higher number wins, whichever
commits first, and of others the one that began later. The order is that of numbers and versions; no clock is asked.

The record is the table's own state (`table.idempotency`): attempts that added rows, and fills, which are attempts that
replaced all rows of the table or of slices. It does not need the versions that it names, which may be cleaned up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from lance_core.errors import EarlierAttemptCommittedError, InvalidInputError, RetryableConflictError, SupersededError
from lance_core.table.transaction import Transaction

ATTEMPT_KEY: Final = "lance.write_attempt"
"""Property with the number of the attempt that made a commit."""

REPLACES_KEY: Final = "lance.replaces"
"""Property with the versions of the earlier attempts that a commit replaces."""

OnEarlierAttempt = Literal["replace", "adopt", "append"]

ConflictPolicy = Literal["fail", "later_wins", "exclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttempt:
    """One attempt of a write that may be attempted several times: in the end the table has the last attempt's rows.

    Attributes:
        token: Key and value of the transaction property that all attempts of the write carry, and no other write.
        number: The number of the attempt, compared from the left; a later attempt has a higher number.
        earlier: Versions that earlier attempts have committed, as far as the caller knows them. The commit itself finds
            versions that earlier attempts commit while this attempt runs.
        surviving_attempts: Numbers of attempts whose rows stay, although their version is in `earlier`: the promotion
            of a branch commits several attempts in one version.
        on_earlier_attempt: What an append does if the rows of an earlier attempt cannot be identified any more:
            "replace" raises, "adopt" keeps the earlier commit and adds nothing, "append" adds the rows in addition.
        conflict_policy: What happens if another write has committed since the version that this attempt was made from.
            "fail": a commit that filled the same rows is a conflict. "later_wins": an overwrite or a replacement also
            replaces rows of writes with a lower number; a write with a higher number supersedes it. "exclusive": any
            commit of another write is a conflict, so that an overwrite removes nothing but the rows of earlier
            attempts.
        outside_slices: Whether rows of earlier attempts can lie outside of the slices whose rows are replaced.
        note: A short string that the table keeps with the attempt, such as the id of the run that made it.
        begun: The version that was the newest when the attempt began, 0 if there was no table; None for the version
            that the write was made from.

    Raises:
        InvalidInputError: The policy, the number or the version is invalid.
    """

    token: tuple[str, str]
    number: tuple[int, ...] = (0,)
    earlier: tuple[int, ...] = ()
    surviving_attempts: tuple[tuple[int, ...], ...] = ()
    on_earlier_attempt: OnEarlierAttempt = "replace"
    conflict_policy: ConflictPolicy = "fail"
    outside_slices: bool = False
    note: str = ""
    begun: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("on_earlier_attempt", OnEarlierAttempt), ("conflict_policy", ConflictPolicy)):
            if getattr(self, name) not in get_args(choices):
                raise InvalidInputError(
                    f"{name} must be one of {', '.join(get_args(choices))}, not {getattr(self, name)!r}"
                )
        if not self.number or any(type(part) is not int or part < 0 for part in self.number):
            raise InvalidInputError(
                f"the number of an attempt must be a tuple of integers of at least 0, not {self.number!r}"
            )
        if self.begun is not None and (type(self.begun) is not int or self.begun < 0):
            raise InvalidInputError(f"begun must be the number of a version, or 0, not {self.begun!r}")

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties that identify the write and the attempt."""
        return {self.token[0]: self.token[1], ATTEMPT_KEY: _dotted(self.number)}

    def is_of(self, properties: Mapping[str, str] | None) -> bool:
        """Whether any attempt of this write made a commit with these properties."""
        return (properties or {}).get(self.token[0]) == self.token[1]

    def is_superseded_by(self, properties: Mapping[str, str] | None) -> bool:
        """Whether a later attempt of this write made a commit with these properties."""
        return self.is_of(properties) and number_of(properties or {}) > self.number


class AttemptProperties(dict[str, str], ABC):
    """Transaction properties of a write that may be attempted several times.

    `lance_core.write_dataset` and `pyspark_lance.write` replace the rows that earlier attempts have committed if
    they are given such properties.
    """

    @abstractmethod
    def write_attempt_for(self, dataset: Any, mode: str) -> WriteAttempt:
        """The attempt that these properties belong to.

        Args:
            dataset: The newest version of the table, a `LanceDataset`; None if there is no table yet.
            mode: The mode of the write.
        """


def number_of(properties: Mapping[str, str]) -> tuple[int, ...]:
    """The number of the attempt that made a commit; an empty tuple, which sorts first, if none is recorded."""
    parts = properties.get(ATTEMPT_KEY, "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() and part.isascii() for part in parts) else ()


def check_concurrent_attempts(
    write: WriteAttempt, root: str, committed: Mapping[int, Transaction], replaces: Collection[int] = ()
) -> None:
    """Check the commits made since a write's read version for attempts of the same write, and for other writes.

    Args:
        write: This attempt.
        root: The dataset, for messages.
        committed: The transactions of the commits since the attempt's read version, by version.
        replaces: Versions of earlier attempts that the change replaces, besides those that `write` names.

    Raises:
        SupersededError: A later attempt has committed.
        EarlierAttemptCommittedError: An earlier attempt has committed that the change does not replace.
        RetryableConflictError: Another write has committed, and the conflict policy is "exclusive".
    """
    attempts = {version: other for version, other in committed.items() if write.is_of(other.properties)}
    for version, other in attempts.items():
        reject_later(write, root, version, number_of(other.properties), is_same_write=True)
    earlier = [version for version in attempts if version not in write.earlier and version not in replaces]
    other_writes = committed.keys() - attempts.keys()
    if write.conflict_policy == "exclusive" and other_writes:
        raise RetryableConflictError(
            f"{root}: version {max(other_writes)} was committed meanwhile by another writer, and this write would "
            "remove its rows; repeat the write"
        )
    if earlier:
        raise EarlierAttemptCommittedError(
            f"{root}: version {min(earlier)} is an earlier attempt of the same write", min(earlier)
        )


def reject_later(write: WriteAttempt, root: str, version: int, number: tuple[int, ...], *, is_same_write: bool) -> None:
    """The rule which attempt wins: reject this one if another commit of its rows has a higher number.

    Args:
        write: This attempt.
        root: The dataset, for messages.
        version: The version of the other commit.
        number: The number of the other attempt.
        is_same_write: Whether that is an attempt of the same write; otherwise it is another write of the same rows,
            which committed after this one began.

    Raises:
        SupersededError: The other attempt is the later one.
    """
    if number <= write.number:
        return
    later_number, write_number = _dotted(number), _dotted(write.number)
    if is_same_write:
        raise SupersededError(
            f"{root}: version {version} was committed by a later attempt of the same write (attempt {later_number}, "
            f"this one is {write_number}); nothing of this one was committed, and its files are removed"
        )
    raise SupersededError(
        f"{root}: version {version} was committed by a later write of the same rows, since this one began (its number "
        f"is {later_number}, this one's {write_number}); nothing of this one was committed"
    )


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
