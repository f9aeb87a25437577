"""Proofs that writes were committed, kept in the table's own state.

A version that records its write can be cleaned up. Proofs are kept in the table's configuration instead, which every
later version, branch and clone inherits, whichever tool commits it. A proof is written in the same version as its rows.

    lance-dagster.idempotency.stream.<id>   "<batch> <version> <hour>"         the last batch of a stream
    lance-dagster.idempotency.keys          {"<digest>": [version, hour]}      keys of writes: each is committed once
    lance-dagster.idempotency.attempts      [[digest, version, hour, "17.2", note, [f, g], [r, s]], ...]
                                            attempts that added rows: fragments f to g - 1, stable row ids r to s - 1;
                                            [-1, -1] for fragments if the rows were removed since, such as by an undo
    lance-dagster.idempotency.fills         [[digest, version, hour, "17.2", note, [slice, ...]], ...]
                                            attempts that replaced the rows of slices: their digests, none for all rows,
                                            null for too many slices; of each write the newest
    lance-dagster.idempotency.since         {"streams": v, "keys": v, "attempts": v, "fills": v}: complete after v
    lance-dagster.idempotency.days          set by the user: days for which a proof is kept; 90 by default

Hours are counted from the epoch. `since` rises when proofs are dropped because of their age or their number. Writes of
versions up to `since` can then be found only by reading these versions; if they were cleaned up, the outcome of such a
write is undecided.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.row_changes import RowChange
from lance_core.table.rowids import decode_row_ids_of
from lance_core.table.watermarks import is_watermark, moved

PREFIX: Final = "lance-dagster.idempotency."
DAYS_KEY: Final = f"{PREFIX}days"
_STREAM: Final = f"{PREFIX}stream."
_KEYS: Final = f"{PREFIX}keys"
_ATTEMPTS: Final = f"{PREFIX}attempts"
_FILLS: Final = f"{PREFIX}fills"
_SINCE: Final = f"{PREFIX}since"

_DAYS: Final = 90
_HOUR_NS: Final = 3_600_000_000_000
_DIGEST_BYTES: Final = 12
_SLICE_DIGITS: Final = 12
_MOST: Final = {"streams": 1000, "keys": 4096, "attempts": 1000, "fills": 200}
"""Number of proofs of each kind that a table keeps, the newest ones."""
_MOST_SLICES: Final = 32
"""The most slices that the proof of one fill names."""

Kind = Literal["streams", "keys", "attempts", "fills"]
_Range = tuple[int, int]
_REMOVED: Final = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """The last batch of a stream that was committed.

    Attributes:
        number: Number of the batch.
        version: The version that it created.
        hour: Time of the commit, in hours since the epoch.
    """

    number: int
    version: int
    hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """An attempt of a write that was committed.

    Attributes:
        token: Digest of the write's token.
        version: The version that it created.
        hour: Time of the commit, in hours since the epoch.
        number: Number of the attempt.
        note: A note of the writer, such as the id of its run.
    """

    token: str
    version: int
    hour: int
    number: tuple[int, ...]
    note: str = ""

    def entry(self, *further_facts: Any) -> list[Any]:
        """The entry in the table's configuration, which ends with the facts of its kind."""
        return [self.token, self.version, self.hour, ".".join(map(str, self.number)), self.note, *further_facts]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedAttempt(CommittedWrite):
    """An attempt of a write that added rows.

    Attributes:
        fragments: The range of its fragment ids, the end excluded; None if it is not known.
        row_ids: The range of its stable row ids, the end excluded; None without stable row ids.
    """

    fragments: _Range | None = None
    row_ids: _Range | None = None

    @property
    def is_removed(self) -> bool:
        """Whether a later commit removed all rows of the attempt: an undo, a restore, or one that replaced all rows."""
        return self.fragments == _REMOVED

    def removed(self) -> CommittedAttempt:
        """The attempt after its rows were removed."""
        return replace(self, fragments=_REMOVED, row_ids=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFill(CommittedWrite):
    """An attempt of a write that replaced all rows of the table, or all rows of some slices.

    Attributes:
        slices: Digests of the slices; empty for the whole table; None if there were too many to record.
    """

    slices: tuple[str, ...] | None = ()

    def overlaps(self, slices: Sequence[str]) -> bool | None:
        """Whether the fill replaced rows of some slices; None if that is not recorded.

        Args:
            slices: The identities of the slices; empty for the whole table.
        """
        if self.slices is None:
            return None if slices else True
        return not slices or not self.slices or not set(_slice_digests(slices)).isdisjoint(self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """All proofs of a version.

    Attributes:
        streams: Last batches by stream.
        keys: Version and hour by digest of a key, oldest first.
        attempts: Attempts that added rows, oldest first.
        fills: Attempts that replaced rows, oldest first; the newest of each write.
        since: Version after which no proof is missing, by kind; empty if no proof was ever kept.
    """

    streams: Mapping[str, CommittedBatch] = field(default_factory=dict)
    keys: Mapping[str, _Range] = field(default_factory=dict)
    attempts: tuple[CommittedAttempt, ...] = ()
    fills: tuple[CommittedFill, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Proofs:
        """Read the proofs of a table's configuration.

        Raises:
            CorruptFileError: An entry cannot be parsed.
        """
        return cls(
            streams={
                key.removeprefix(_STREAM): _convert_entry(key, value, _read_batch)
                for key, value in config.items()
                if key.startswith(_STREAM)
            },
            keys=_convert_entry(_KEYS, config.get(_KEYS, "{}"), _read_keys),
            attempts=_convert_entry(_ATTEMPTS, config.get(_ATTEMPTS, "[]"), _attempts),
            fills=_convert_entry(_FILLS, config.get(_FILLS, "[]"), _fills),
            since=_convert_entry(_SINCE, config.get(_SINCE, "{}"), _read_since),
        )

    def entries(self) -> dict[str, str]:
        """The entries of the configuration."""
        entries = {
            _STREAM + name: f"{batch.number} {batch.version} {batch.hour}" for name, batch in self.streams.items()
        }
        if self.keys:
            entries[_KEYS] = _to_json(self.keys)
        if self.attempts:
            entries |= _attempts_entry(self.attempts)
        if self.fills:
            entries[_FILLS] = _to_json([fill.entry(fill.slices) for fill in self.fills])
        if self.since:
            entries[_SINCE] = _to_json(self.since)
        return entries

    def key(self, idempotency_key: tuple[str, str]) -> int | None:
        """The version of the write with an idempotency key; None if it is unknown."""
        write = self.keys.get(_digest(idempotency_key))
        return None if write is None else write[0]

    def attempts_of(self, token: tuple[str, str]) -> tuple[CommittedAttempt, ...]:
        """The attempts of a write, oldest first."""
        digest = _digest(token)
        return tuple(attempt for attempt in self.attempts if attempt.token == digest)

    def fill_of(self, token: tuple[str, str]) -> CommittedFill | None:
        """The newest fill of a write; None if none is recorded."""
        digest = _digest(token)
        return next((fill for fill in self.fills if fill.token == digest), None)

    def complete_after(self, kind: Kind) -> int | None:
        """The version after which all writes of a kind are known; None if no proof was ever kept."""
        return self.since.get(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedBranch:
    """A branch whose rows a commit adds to its parent.

    Attributes:
        config: Its configuration, with the proofs of writes on it.
        fork_version: The version of the parent that it was forked from.
        fragments: The ids of its fragments that the commit adds, in the order of the new ids.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    fork_version: int = 0
    fragments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProof:
    """The proof of one commit.

    Attributes:
        idempotency_key: Key and value that at most one commit may have.
        batch: A stream, and the number of its batch.
        attempt: Key and value of the write's token; None without attempts.
        adds: Whether the attempt is recorded as one that adds rows.
        fills: Identities of the slices whose rows the attempt replaces, empty for all rows; None to record no fill.
        number: Number of the attempt.
        note: The writer's note on the attempt.
        replaces: Versions of earlier attempts whose rows this commit replaces.
        takes_back: Versions that this commit undoes; None if it replaces all rows of the table.
        branch: The branch whose rows the commit adds.
        moves: Transaction properties that move watermarks.
        row_change: The last change of rows after the commit; None if that is not known.
    """

    idempotency_key: tuple[str, str] | None = None
    batch: tuple[str, int] | None = None
    attempt: tuple[str, str] | None = None
    adds: bool = False
    fills: Sequence[str] | None = None
    number: tuple[int, ...] = (0,)
    note: str = ""
    replaces: tuple[int, ...] = ()
    takes_back: frozenset[int] | None = frozenset()
    branch: PromotedBranch = field(default_factory=PromotedBranch)
    moves: Mapping[str, str] = field(default_factory=dict)
    row_change: RowChange | None = None

    def add_to(self, after: Manifest, before: Manifest | None) -> Manifest:
        """Add this proof to a version that is about to be committed.

        Args:
            after: The version, with its number and its time.
            before: The preceding version; None for the first.
        """
        manifest = self._add_entry(_without_rows(after, self.takes_back), before)
        if self.row_change is None or _SINCE not in manifest.config:
            return manifest
        made_by = f"{after.timestamp_ns} {after.transaction_file}"
        identified = self.row_change.identified(after.config, after.version, made_by)
        return replace(manifest, config={**manifest.config, **self.row_change.entry, **identified})

    def _add_entry(self, after: Manifest, before: Manifest | None) -> Manifest:
        if self.moves:
            after = replace(after, config=moved(after.config, self.moves))
        branch = Proofs.of(self.branch.config)
        has_attempt = self.attempt is not None and (self.adds or self.fills is not None)
        if self.idempotency_key is None and self.batch is None and not has_attempt and not branch.entries():
            return after
        proofs = Proofs.of(after.config)
        hour = after.timestamp_ns // _HOUR_NS
        start = 0 if before is None else before.version
        rows_since = start if _highest_fragment(before) >= 0 else 0  # versions without rows have no attempt's rows
        since = {"streams": start, "keys": 0, "attempts": rows_since, "fills": 0} | dict(proofs.since)
        proofs = _with_branch(replace(proofs, since=since), branch, self.branch, after, before)
        if self.batch is not None:
            number = CommittedBatch(number=self.batch[1], version=after.version, hour=hour)
            proofs = replace(proofs, streams={**proofs.streams, self.batch[0]: number})
        if self.idempotency_key is not None:
            digest = _digest(self.idempotency_key)
            keys = {key: write for key, write in proofs.keys.items() if key != digest}
            proofs = replace(proofs, keys={**keys, digest: (after.version, hour)})
        proofs = _trim(self._add_attempt(proofs, after, before, hour), hour - 24 * _days_kept(after.config))
        settings = {key: value for key, value in after.config.items() if not is_proof(key)}
        return replace(after, config={**settings, **proofs.entries()})

    def _add_attempt(self, proofs: Proofs, after: Manifest, before: Manifest | None, hour: int) -> Proofs:
        if self.attempt is None:
            return proofs
        token, attempts, fills = _digest(self.attempt), proofs.attempts, proofs.fills
        facts: dict[str, Any] = {
            "token": token, "version": after.version, "hour": hour, "number": self.number, "note": self.note
        }  # fmt: skip
        if self.adds:
            first_row = 0 if before is None else before.next_row_id
            attempt = CommittedAttempt(
                **facts,
                fragments=_new_fragments(after, before),
                row_ids=(first_row, after.next_row_id) if after.uses_stable_row_ids else None,
            )
            other_attempts = (other for other in attempts if other.token != token or other.version not in self.replaces)
            attempts = (*other_attempts, attempt)
        if self.fills is not None:
            slices = None if len(self.fills) > _MOST_SLICES else _slice_digests(self.fills)
            other_fills = (other for other in fills if other.token != token)
            fills = (*other_fills, CommittedFill(**facts, slices=slices))
        return replace(proofs, attempts=attempts, fills=fills)


def is_proof(key: str) -> bool:
    """Whether an entry of the configuration is a proof, which commits maintain, rather than the user's."""
    return key.startswith(PREFIX) and key != DAYS_KEY


def is_of_commits(key: str) -> bool:
    """Whether an entry of the configuration is maintained by commits of any operation: a proof or watermarks."""
    return is_proof(key) or is_watermark(key)


def inherited(config: Mapping[str, str], latest: Mapping[str, str], version: int) -> dict[str, str]:
    """A configuration with its proofs replaced by those of a later configuration, as a restore needs it.

    Args:
        config: The configuration of the version that is restored.
        latest: The later configuration.
        version: The version that is restored. Rows of later attempts are removed, and those of earlier ones are again
            where they were.
    """
    mine = {key: value for key, value in config.items() if not is_proof(key)}
    restored_config = mine | {key: value for key, value in latest.items() if is_proof(key)}
    if _ATTEMPTS not in latest:
        return restored_config
    before = {(attempt.token, attempt.version, attempt.number): attempt for attempt in Proofs.of(config).attempts}
    return restored_config | _attempts_entry(
        before.get((attempt.token, attempt.version, attempt.number), attempt)
        if attempt.version <= version
        else attempt.removed()
        for attempt in Proofs.of(latest).attempts
    )


def _without_rows(after: Manifest, versions: frozenset[int] | None) -> Manifest:
    """A version whose attempts are recorded as removed if their rows were: those of some versions, or None for all."""
    if _ATTEMPTS not in after.config or (versions is not None and not versions and len(after.fragments)):
        return after
    is_all = versions is None or not len(after.fragments)
    attempts = (
        attempt.removed() if is_all or attempt.version in (versions or ()) else attempt
        for attempt in Proofs.of(after.config).attempts
    )
    return replace(after, config={**after.config, **_attempts_entry(attempts)})


def _attempts_entry(attempts: Iterable[CommittedAttempt]) -> dict[str, str]:
    return {_ATTEMPTS: _to_json([attempt.entry(attempt.fragments, attempt.row_ids) for attempt in attempts])}


def _with_branch(
    proofs: Proofs, branch: Proofs, place: PromotedBranch, after: Manifest, before: Manifest | None
) -> Proofs:
    """Add the proofs of a branch whose rows a version adds, with the version and the fragment ids that the rows get."""
    version = after.version
    streams = dict(proofs.streams)
    for name, batch in branch.streams.items():
        if name not in streams or streams[name].number < batch.number:
            streams[name] = replace(batch, version=version)
    keys = {digest: (version, hour) for digest, (_, hour) in branch.keys.items() if digest not in proofs.keys}
    inherited_ones = {(attempt.token, attempt.version, attempt.number): attempt for attempt in branch.attempts}
    mine = {(attempt.token, attempt.version, attempt.number) for attempt in proofs.attempts}
    new_ids = dict(zip(place.fragments, range(_highest_fragment(before) + 1, 1 << 62), strict=False))
    attempts = [
        _move_attempt(attempt, after, new_ids)
        for attempt in branch.attempts
        if (attempt.token, attempt.version, attempt.number) not in mine
    ]
    again = {attempt.token for attempt in attempts}
    removed = {key for key, attempt in inherited_ones.items() if attempt.is_removed}
    own_attempts = [
        attempt.removed() if (attempt.token, attempt.version, attempt.number) in removed else attempt
        for attempt in proofs.attempts  # the branch may have replaced the rows of attempts before the fork
        if attempt.token not in again
        or attempt.version > place.fork_version
        or (attempt.token, attempt.version, attempt.number) in inherited_ones
    ]
    newest = {fill.token: fill for fill in proofs.fills}
    for fill in branch.fills:
        newest_fill = newest.get(fill.token)
        if newest_fill is None or newest_fill.number < fill.number:
            newest.pop(fill.token, None)
            newest[fill.token] = replace(fill, version=version)
    return replace(
        proofs,
        streams=streams,
        keys={**proofs.keys, **keys},
        attempts=(*own_attempts, *attempts),
        fills=tuple(newest.values()),
    )


def _move_attempt(attempt: CommittedAttempt, after: Manifest, new_ids: Mapping[int, int]) -> CommittedAttempt:
    """An attempt on a branch whose rows are added to a version: with the ids that its fragments and rows get there."""
    moved = replace(attempt, version=after.version, fragments=None, row_ids=None)
    if attempt.is_removed:
        return moved.removed()
    if attempt.fragments is None:
        return moved
    ids = [new_ids.get(number) for number in range(*attempt.fragments)]
    fragments = [
        fragment for number in ids if number is not None and (fragment := after.fragments.get(number)) is not None
    ]
    if len(fragments) != len(ids) or any(right.id - left.id != 1 for left, right in pairwise(fragments)):
        return moved
    first = fragments[0].id if fragments else 0
    rows = [row_ids for fragment in fragments if (row_ids := decode_row_ids_of(fragment)) is not None and len(row_ids)]
    return replace(
        moved,
        fragments=(first, first + len(fragments)),
        row_ids=(
            int(min(ids_of_fragment.min() for ids_of_fragment in rows)),
            int(max(ids_of_fragment.max() for ids_of_fragment in rows)) + 1,
        )
        if rows
        else None,
    )


def _trim(proofs: Proofs, oldest: int) -> Proofs:
    """The proofs from an hour on, and of these at most as many as a table keeps, the newest ones."""
    streams = dict(sorted(proofs.streams.items(), key=lambda item: item[1].hour)[-_MOST["streams"] :])
    streams = {name: batch for name, batch in streams.items() if batch.hour >= oldest}
    keys = {key: write for key, write in list(proofs.keys.items())[-_MOST["keys"] :] if write[1] >= oldest}
    attempts = {attempt: None for attempt in proofs.attempts[-_MOST["attempts"] :] if attempt.hour >= oldest}
    fills = {fill: None for fill in proofs.fills[-_MOST["fills"] :] if fill.hour >= oldest}
    forgotten = {
        "streams": [batch.version for name, batch in proofs.streams.items() if name not in streams],
        "keys": [write[0] for key, write in proofs.keys.items() if key not in keys],
        "attempts": [attempt.version for attempt in proofs.attempts if attempt not in attempts],
        "fills": [fill.version for fill in proofs.fills if fill not in fills],
    }
    since = {kind: max([proofs.since[kind], *versions]) for kind, versions in forgotten.items()}
    return Proofs(streams=streams, keys=keys, attempts=tuple(attempts), fills=tuple(fills), since=since)


def _highest_fragment(manifest: Manifest | None) -> int:
    """The highest fragment id that a table has used; -1 if it never had a fragment."""
    if manifest is None:
        return -1
    recorded = -1 if manifest.max_fragment_id is None else manifest.max_fragment_id
    return max(recorded, manifest.fragments.highest_id)


def _new_fragments(after: Manifest, before: Manifest | None) -> _Range | None:
    """The range of the fragment ids that a version added; None if it has gaps."""
    highest = _highest_fragment(before)
    ids = sorted(fragment.id for fragment in after.fragments.fresh if fragment.id > highest)
    if not ids:
        return (0, 0)
    return (ids[0], ids[-1] + 1) if ids[-1] - ids[0] + 1 == len(ids) else None


def _days_kept(config: Mapping[str, str]) -> int:
    value = config.get(DAYS_KEY, str(_DAYS)).strip()
    if not value.isdecimal() or not value.isascii() or not int(value):
        raise InvalidInputError(f"configuration {DAYS_KEY} must be a number of days, at least 1, not {value!r}")
    return int(value)


def _digest(pair: tuple[str, str]) -> str:
    full = hashlib.sha256(json.dumps(pair).encode()).digest()
    return base64.urlsafe_b64encode(full[:_DIGEST_BYTES]).decode()


def _slice_digests(identities: Sequence[str]) -> tuple[str, ...]:
    """The first digits of the identity of each slice."""
    return tuple(identity[:_SLICE_DIGITS] for identity in identities)


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _convert_entry(key: str, value: str, convert: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFileError(
            f"configuration {key!r} cannot be read, so that it is not known which writes were committed: "
            f"{value[:80]!r}. It is written by commits only; restore its value from an earlier version"
        ) from error


def _read_batch(value: str) -> CommittedBatch:
    number, version, hour = map(int, value.split(" "))
    return CommittedBatch(number=number, version=version, hour=hour)


def _read_keys(value: str) -> dict[str, _Range]:
    return {str(digest): _to_range(write) for digest, write in json.loads(value).items()}


def _read_since(value: str) -> dict[str, int]:
    return {str(kind): int(version) for kind, version in json.loads(value).items()}


def _read_facts(token: str, version: int, hour: int, number: str, note: str) -> dict[str, Any]:
    """The facts with which the entry of each committed write begins."""
    return {
        "token": str(token),
        "version": int(version),
        "hour": int(hour),
        "number": tuple(map(int, number.split("."))),
        "note": str(note),
    }


def _attempts(value: str) -> tuple[CommittedAttempt, ...]:
    return tuple(
        CommittedAttempt(
            **_read_facts(*facts),
            fragments=None if fragments is None else _to_range(fragments),
            row_ids=None if row_ids is None else _to_range(row_ids),
        )
        for *facts, fragments, row_ids in json.loads(value)
    )


def _fills(value: str) -> tuple[CommittedFill, ...]:
    return tuple(
        CommittedFill(**_read_facts(*facts), slices=None if slices is None else tuple(map(str, slices)))
        for *facts, slices in json.loads(value)
    )


def _to_range(parts: Iterable[Any]) -> _Range:
    first, last = parts
    return int(first), int(last)
