"""The options of the data source `lance`, read and checked.

    option                            read  write  stream
    --------------------------------- ----- ------ ------
    version, versionAsOf, tag         x               the version: a number or a tag
    asof, timestampAsOf               x               the latest version at an ISO time; asof without a zone is in UTC
    timeZone                          x     x      x  the zone of times that name none, such as Asia/Tokyo
    branch                            x     x      x  the branch that is read or written
    columns                           x            x  names with commas between: `_rowid`, `_rowaddr`, `point.x` as well
    filter                            x            x  SQL over columns of the table: only such rows are read
    blobHandling                      x            x  blobs_descriptions, all_binary: how columns of blobs come
    parallelism                       x               tasks that run at once
    startingVersion                                r  first version whose rows are read; "latest" for none that is there
    maxVersionsPerTrigger                          r  versions of one micro-batch, at most
    undecidedBatch                                 w  error, write, skip: a batch of which nobody knows if it landed
    ignoreChanges                                  r  "true": rows of updates come as new ones, deletes are passed over
    vector_columns                          x      w  "v=128,w=64": arrays to store as vectors of so many items
    schema_mode                             x      w  strict, add_columns, overwrite
    mergeSchema, overwriteSchema            x      w  "true": schema_mode add_columns, overwrite
    merge_on                                x         "id,day": rows with a key of the table take the place of its rows
    replaceWhere                            x         with mode overwrite: SQL that says which rows are replaced
    partition_by                            x         "day,kind": no file holds rows of two values of these columns
    partitionOverwriteMode                  x         "dynamic", with mode overwrite: partitions that have rows go
    commit_message                          x      w  a string
    idempotency_key                         x      w  "key=value": nothing is written if a commit carries it already
    idempotency_since                       x         look back for that key to this version, which is left out
    max_rows_per_file, max_bytes_per_file, data_storage_version: as in `write`
    transaction_properties                  x      w  a JSON object of texts
    transaction.<key>                       x      w  one of them; Spark makes the key lower case
    storage.<key>                     x     x      x  options of the storage, by object_store's names

Names are looked up without regard to case, as Spark does.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Final

import lance_core
from lance_core import LanceDataset
from lance_core.errors import DatasetNotFoundError, InvalidInputError
from lance_core.times import moment, zone_named
from pyspark_lance.engine.sessions import is_utc
from pyspark_lance.reading.plan import checked_blob_handling
from pyspark_lance.writing.landed_batches import DECISIONS
from pyspark_lance.writing.options import WriteOptions

__all__ = ["SourceOptions"]

_READ: Final = (
    "version",
    "versionAsOf",
    "tag",
    "asof",
    "timestampAsOf",
    "timeZone",
    "columns",
    "filter",
    "blobHandling",
    "blob_handling",
    "parallelism",
)
_STREAM: Final = ("startingVersion", "maxVersionsPerTrigger", "ignoreChanges", "undecidedBatch", "checkpointLocation")
_WRITE: Final = (
    "vector_columns",
    "schema_mode",
    "mergeSchema",
    "overwriteSchema",
    "merge_on",
    "replaceWhere",
    "partition_by",
    "partitionOverwriteMode",
    "commit_message",
    "idempotency_key",
    "idempotency_since",
    "max_rows_per_file",
    "max_bytes_per_file",
    "data_storage_version",
    "transaction_properties",
)
_KNOWN: Final = {name.lower(): name for name in (*_READ, *_STREAM, *_WRITE, "branch")}
_SPARKS_OWN: Final = frozenset(
    {"path", "location", "provider", "owner", "is_managed_location", "serialization.format", "queryname", "outputmode"}
)
_PREFIXES: Final = ("storage.", "transaction.", "option.")
"""`option.`: Spark repeats the options of CREATE TABLE under it."""
_PUSHDOWN: Final = (
    "option pushdown is not offered: Spark keeps one read plan per frame, so that a filter of one use of the frame"
    " would remove rows from the others. option('filter', 'id = 5') fixes a filter when the frame is made"
)
_NO_PATH: Final = (
    "no path was given. Spark passes on that of load(path), save(path) and option path, and none of a table of its"
    " catalogue: say SELECT ... FROM t WITH (path = '...'), or CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')"
)


class SourceOptions:
    """The options that the user gave.

    Raises:
        InvalidInputError: An option is not known.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in options.items()}
        if "pushdown" in self._given:
            raise InvalidInputError(_PUSHDOWN)
        unknown = [
            key for key in self._given if key not in _SPARKS_OWN | _KNOWN.keys() and not key.startswith(_PREFIXES)
        ]
        if unknown:
            raise InvalidInputError(
                f"options {unknown} are not known; there are {sorted(_KNOWN.values())}, {_PREFIXES}"
            )

    @property
    def storage(self) -> dict[str, str] | None:
        """Options of the storage."""
        return self._with_prefix("storage.")

    @property
    def uri(self) -> str:
        """The table, or the branch of it.

        Raises:
            InvalidInputError: There is no path.
        """
        path = self._given.get("path")
        if not path:
            raise InvalidInputError(_NO_PATH)
        branch = self.text("branch")
        if branch is None or branch == "main":
            return path
        return lance_core.dataset(path, (branch, None), storage_options=self.storage).uri

    def open(self, version: int | None = None) -> LanceDataset:
        """The table at the version that was asked for, or at another one.

        Raises:
            InvalidInputError: Several options say which version.
        """
        if version is not None:
            return self._dataset(version)
        names = ("version", "versionAsOf", "tag", "asof", "timestampAsOf")
        chosen = [name for name in names if self.text(name) is not None]
        if len(chosen) > 1:
            raise InvalidInputError(f"only one of the options {chosen} can be given")
        number = next((self.integer(name) for name in names[:2] if self.text(name) is not None), None)
        asof = self.text("asof") if self.text("timestampAsOf") is None else self._moment("timestampAsOf")
        wanted = self.text("tag") if number is None else number
        return self._dataset(wanted, asof=asof)

    def open_or_none(self) -> LanceDataset | None:
        """The latest version; None if there is no table."""
        try:
            return self._dataset(None)
        except DatasetNotFoundError:
            return None

    def write_options(self, *, overwrite: bool) -> WriteOptions:
        """The arguments of `pyspark_lance.write`.

        Raises:
            InvalidInputError: An option cannot be used, or not with another one.
        """
        mode = "overwrite" if overwrite else "append"
        dynamic = (self.text("partitionOverwriteMode") or "static").lower()
        if dynamic not in ("static", "dynamic"):
            raise InvalidInputError(f"option partitionOverwriteMode must be static or dynamic, not {dynamic!r}")
        return WriteOptions(
            mode=mode,  # type: ignore[arg-type]  # one of the two
            cluster=False,  # a data source cannot bring rows together
            vector_columns=self._widths(),
            schema_mode=self._schema_mode(),  # type: ignore[arg-type]  # checked by plan_write
            replace_where=self.text("replaceWhere"),
            assume_utc=self.assume_utc,
            partition_by=self.names("partition_by"),
            partition_overwrite=dynamic,  # type: ignore[arg-type]  # one of the two
            merge_on=self.names("merge_on"),
            transaction_properties=self._properties(),
            commit_message=self.text("commit_message"),
            idempotency_key=self._pair("idempotency_key"),
            idempotency_since=self.integer("idempotency_since") or 0,
            storage_options=self.storage,
            max_rows_per_file=self.integer("max_rows_per_file"),
            max_bytes_per_file=self.integer("max_bytes_per_file"),
            data_storage_version=self.text("data_storage_version"),
        )

    @property
    def assume_utc(self) -> bool:
        """Whether times without a zone are in UTC: Spark tells a data source nothing of the session's zone.

        Raises:
            InvalidInputError: There is no such zone.
        """
        zone = self.text("timeZone")
        return zone is not None and (is_utc(zone) or zone_named(zone) == dt.UTC)

    def _moment(self, name: str) -> dt.datetime:
        """A time; Spark tells a data source nothing of the session's zone.

        Raises:
            InvalidInputError: It is none, or has no zone.
        """
        text, zone = self.text(name) or "", self.text("timeZone")
        if zone is not None:
            return moment(text, zone=zone_named(zone))
        found = moment(text)
        if found != moment(text, zone=dt.timezone(dt.timedelta(hours=1))):
            raise InvalidInputError(
                f"option {name}: {text!r} has no time zone, and Spark does not tell a data source which one the "
                "session has. Say it in the time, as in 2026-11-22T04:00:00+09:00, or by option('timeZone', "
                "spark.conf.get('spark.sql.session.timeZone')); pyspark_lance.read(..., asof=...) takes the session's"
            )
        return found

    @property
    def blob_handling(self) -> str:
        """How columns of blobs come, by either name of the option."""
        names = ("blobHandling", "blob_handling")
        given = [text for name in names if (text := self.text(name)) is not None]
        if len(given) > 1:
            raise InvalidInputError(f"only one of the options {list(names)} can be given")
        return checked_blob_handling(given[0] if given else None)

    def _dataset(self, version: int | str | None, *, asof: dt.datetime | str | None = None) -> LanceDataset:
        scans = {"blob_handling": self.blob_handling}
        return lance_core.dataset(
            self.uri, version, asof=asof, storage_options=self.storage, default_scan_options=scans
        )

    @property
    def undecided_batch(self) -> str:
        """What is done with a batch that may have landed."""
        value = (self.text("undecidedBatch") or "error").lower()
        if value not in DECISIONS:
            raise InvalidInputError(f"option undecidedBatch must be one of {', '.join(DECISIONS)}, not {value!r}")
        return value

    def text(self, name: str) -> str | None:
        """An option as it was given; None if it was not."""
        return self._given.get(name.lower())

    def names(self, name: str) -> tuple[str, ...] | None:
        """An option of names with commas between."""
        value = self.text(name)
        return None if value is None else tuple(part.strip() for part in value.split(","))

    def integer(self, name: str) -> int | None:
        """A number."""
        value = self.text(name)
        if value is not None and not value.strip().isdecimal():
            raise InvalidInputError(f"option {name} must be a number, not {value!r}")
        return None if value is None else int(value)

    def boolean(self, name: str) -> bool:
        """True or false; false if it was not given."""
        value = (self.text(name) or "false").lower()
        if value not in ("true", "false"):
            raise InvalidInputError(f"option {name} must be true or false, not {value!r}")
        return value == "true"

    def _schema_mode(self) -> str:
        given = self.text("schema_mode")
        for name, mode in (("mergeSchema", "add_columns"), ("overwriteSchema", "overwrite")):
            if self.boolean(name):
                if given not in (None, mode):
                    raise InvalidInputError(f"options {name} and schema_mode {given!r} do not go together")
                given = mode
        return given or "strict"

    def _properties(self) -> dict[str, str] | None:
        text = self.text("transaction_properties")
        try:
            given: Any = {} if text is None else json.loads(text)
        except ValueError as error:
            raise InvalidInputError(f"option transaction_properties is no JSON: {error}") from error
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise InvalidInputError("option transaction_properties must be a JSON object whose values are texts")
        return {**given, **(self._with_prefix("transaction.") or {})} or None

    def _pair(self, name: str) -> tuple[str, str] | None:
        value = self.text(name)
        if value is None:
            return None
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"option {name} must be of the form key=value, not {value!r}")
        return key, text

    def _widths(self) -> dict[str, int] | None:
        """Widths of vectors from `name=width` with commas between."""
        text = self.text("vector_columns")
        widths: dict[str, int] = {}
        for part in text.split(",") if text else ():
            name, _, width = part.rpartition("=")
            if not name.strip() or not width.strip().isdecimal():
                raise InvalidInputError(f"option vector_columns must be of the form name=width,..., not {text!r}")
            widths[name.strip()] = int(width)
        return widths or None

    def _with_prefix(self, prefix: str) -> dict[str, str] | None:
        found = {key.removeprefix(prefix): value for key, value in self._given.items() if key.startswith(prefix)}
        return found or None
