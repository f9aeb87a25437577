"""The options of the data source `lance`: the table of them, and their values, read and checked.

Case and underscores in a name do not matter: `replaceWhere` and `replace_where` are one option, so that Spark's names
and the names of `pyspark_lance.write` both work.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import lance_core
from lance_core import LanceDataset
from lance_core.errors import DatasetNotFoundError, InvalidInputError
from lance_core.times import moment, zone_named
from pyspark_lance.engine.lexing import translate_strings
from pyspark_lance.engine.sessions import is_utc, reject_memory
from pyspark_lance.reading.change_feed import ChangeFeed, plan_feed
from pyspark_lance.writing.committed_batches import DECISIONS
from pyspark_lance.writing.options import WriteArguments

Use = Literal["read", "readStream", "write", "writeStream"]


class Option(NamedTuple):
    """An option of the data source.

    Attributes:
        name: The name; one that ends with `<key>` stands for all names that begin in this way.
        used_by: The uses of the data source that have it; the others reject it.
        meaning: The values and what they do.
    """

    name: str
    used_by: str
    meaning: str


_READS: Final = "read, readStream"
_WRITES: Final = "write, writeStream"

OPTIONS: Final = (
    Option("version", "read", "number of the version"),
    Option("versionAsOf", "read", "the same as `version`"),
    Option("tag", "read", "name of the version"),
    Option("asof", "read", "ISO time: the version that was the latest then; a time without a zone is in UTC"),
    Option("timestampAsOf", "read", "the same as `asof`; a time without a zone needs `timeZone`"),
    Option("timeZone", f"{_READS}, write", "zone of times that name none, such as `Asia/Tokyo`"),
    Option("branch", f"{_READS}, {_WRITES}", "the branch that is read or written"),
    Option("columns", _READS, "names with commas between them, also `_rowid`, `_rowaddr` and fields such as `point.x`"),
    Option(
        "filter",
        _READS,
        "SQL over columns of the table, with the [functions that need no"
        " DataFusion](compatibility.md#what-else-differs): only rows that meet it are read",
    ),
    Option("blobs", _READS, "`descriptions` or `bytes`: how columns of blobs are read"),
    Option("parallelism", "read", "number of tasks that run at once"),
    Option("readChangeFeed", _READS, "`true`: rows that were inserted, updated and deleted, with `_change_type`"),
    Option(
        "startingVersion", _READS, "first version whose rows are read; `latest` (streams): only rows that come later"
    ),
    Option("startingTimestamp", _READS, "with `readChangeFeed`: time from which on changes are read; see `timeZone`"),
    Option("endingVersion", "read", "with `readChangeFeed`: last version whose changes are read; else the latest"),
    Option("endingTimestamp", "read", "with `readChangeFeed`: time up to which changes are read; see `timeZone`"),
    Option("netChanges", _READS, "`true`, with `readChangeFeed`: a row occurs once, however often it changed"),
    Option("maxVersionsPerTrigger", "readStream", "largest number of versions in one micro-batch"),
    Option("ignoreChanges", "readStream", "`true`: updated rows are read as new rows, and deletes are ignored"),
    Option("undecidedBatch", "writeStream", "what is done with an undecided batch: `error`, `write` or `skip`"),
    Option("checkpointLocation", "writeStream", "where Spark keeps the progress of the query"),
    Option("vector_columns", _WRITES, "`v=128,w=64`: arrays that are stored as vectors of 128 and 64 items"),
    Option("schema_mode", _WRITES, "`strict`, `add_columns` or `overwrite`"),
    Option("mergeSchema", _WRITES, "`true`: the same as `schema_mode` `add_columns`"),
    Option("overwriteSchema", _WRITES, "`true`: the same as `schema_mode` `overwrite`"),
    Option("merge_on", "write", "`id,day`: rows replace those of the table that have the same values in these columns"),
    Option("replaceWhere", "write", "with mode overwrite: SQL that says which rows are replaced"),
    Option("partition_by", _WRITES, "`day,kind`: each data file holds rows of one value of these columns"),
    Option("partitionOverwriteMode", _WRITES, "`dynamic`, in an overwrite: only partitions with rows are replaced"),
    Option("commit_message", _WRITES, "a string that the commit keeps"),
    Option("idempotency_key", "write", "`key=value`: nothing is written if a commit has this property already"),
    Option("idempotency_since", "write", "version at which the search for that commit ends; it is not searched itself"),
    Option("max_rows_per_file", _WRITES, "rows after which a task begins another data file"),
    Option("max_bytes_per_file", _WRITES, "bytes after which a task begins another data file"),
    Option("data_storage_version", _WRITES, "version of the file format of a new table, such as `2.2`"),
    Option("enable_stable_row_ids", _WRITES, "`true`: rows of a new table have ids by which changes are followed"),
    Option("allow_external_blob_outside_bases", _WRITES, "`true`: blobs may be given by any URI"),
    Option("transaction_properties", _WRITES, "JSON object of strings that the commit keeps"),
    Option("transaction.<key>", _WRITES, "a string of `transaction_properties`; Spark turns the key into lower case"),
    Option("storage.<key>", f"{_READS}, {_WRITES}", "options of the storage, by object_store's names"),
)

_GOES_ON: Final = "a stream continues with each new version"
_FROM: Final = f"{_GOES_ON}; startingVersion gives the number of the first one whose rows are read"
_UNTIL: Final = f"{_GOES_ON}; trigger(availableNow=True) ends the query with the one that is the latest when it begins"
_IN_BATCH: Final = "use it in foreachBatch, with batch.write or pyspark_lance.write"
_REMEDIES: Final = {
    "readStream": {
        **dict.fromkeys(("version", "versionAsOf", "tag", "asof", "timestampAsOf"), _FROM),
        **dict.fromkeys(("endingVersion", "endingTimestamp"), _UNTIL),
        "parallelism": "DataFrame.repartition distributes the rows of a batch",
        "checkpointLocation": "it is an option of the writeStream of the query",
    },
    "writeStream": {
        "idempotency_key": "a stream sets the key of each batch itself",
        "idempotency_since": "a stream sets the key of each batch itself",
        "merge_on": f"its batches append or overwrite all rows; {_IN_BATCH}, or pyspark_lance.merge",
        "replaceWhere": f"its batches append or overwrite all rows; {_IN_BATCH}",
    },
}
"""What to do instead, by the use of the data source for which an option is not."""

_FILE_FLAGS: Final = ("enable_stable_row_ids", "allow_external_blob_outside_bases")
_BLOBS: Final = {"descriptions": "blobs_descriptions", "bytes": "all_binary"}
_NAMES: Final = [option.name for option in OPTIONS]
_KNOWN: Final = frozenset(name.replace("_", "").lower() for name in _NAMES)
_PREFIXES: Final = (*(name.removesuffix("<key>") for name in _NAMES if name.endswith("<key>")), "option.")
"""`option.`: Spark repeats the options of CREATE TABLE under it."""
_SPARKS_OWN: Final = frozenset(
    {"path", "location", "provider", "owner", "ismanagedlocation", "serialization.format", "queryname", "outputmode"}
)
_PUSHDOWN: Final = (
    "option pushdown is not offered: Spark keeps one read plan per frame, and a filter of one use of the frame would"
    " remove rows from the others. option('filter', 'id = 5') fixes a filter when the frame is made"
)
_CREATE: Final = (
    "CREATE TABLE ... USING lance, in a catalog of Spark's own: Spark does not pass the options of such a table on to a"
    " data source in Python, so that each later statement would lack the path. CREATE TEMPORARY VIEW t USING lance"
    " OPTIONS (path '...') makes a name to read and write; pyspark_lance.sql creates tables with names that last"
)
_NO_PATH: Final = (
    "no path was given. Spark passes on the path of load(path), save(path) and option path, but not the path of a table"
    " in its catalog: use SELECT ... FROM t WITH (path = '...'), or CREATE TEMPORARY VIEW v USING lance OPTIONS (path"
    " '...')"
)


def _key(name: str) -> str:
    """The form of a name in which case and underscores do not matter; what follows a prefix stays as it is."""
    name = name.lower()
    return name if name.startswith(_PREFIXES) else name.replace("_", "")


class SourceOptions:
    """The options that the user gave.

    Raises:
        InvalidInputError: An option is not known, or is given twice.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {_key(name): value for name, value in options.items()}
        if {"provider", "owner"} <= self._values.keys():
            raise InvalidInputError(_CREATE)
        if "pushdown" in self._values:
            raise InvalidInputError(_PUSHDOWN)
        unknown = [
            name
            for name in options
            if _key(name) not in _SPARKS_OWN | _KNOWN and not name.lower().startswith(_PREFIXES)
        ]
        if unknown:
            raise InvalidInputError(f"options {unknown} are not known; there are {_NAMES}")
        if len(self._values) < len(options):
            keys = [_key(name) for name in options]
            twice = [name for name in options if keys.count(_key(name)) > 1]
            raise InvalidInputError(f"only one of the options {twice} can be given")

    def check_use(self, use: Use) -> None:
        """Make sure that a use of the data source has all options that are given.

        Raises:
            InvalidInputError: An option would have no effect; the message names it and the remedy.
        """
        for option in OPTIONS:
            uses = option.used_by.split(", ")
            if use in uses or not self._is_given(option.name):
                continue
            remedy = _REMEDIES.get(use, {}).get(option.name, f"it is an option of {' and '.join(uses)}; leave it out")
            raise InvalidInputError(f"option {option.name} is not for {use}: {remedy}")

    def _is_given(self, name: str) -> bool:
        prefix = name.removesuffix("<key>")
        return self.value(name) is not None if prefix == name else self._with_prefix(prefix) is not None

    @property
    def storage(self) -> dict[str, str] | None:
        """Options of the storage."""
        return self._with_prefix("storage.")

    @property
    def uri(self) -> str:
        """The table, or the branch of it.

        Raises:
            InvalidInputError: The user gave no path.
        """
        path = self._values.get("path")
        if not path:
            raise InvalidInputError(_NO_PATH)
        reject_memory(path)
        branch = self.value("branch")
        if branch is None or branch == "main":
            return path
        return lance_core.dataset(path, (branch, None), storage_options=self.storage).uri

    def open(self, version: int | None = None) -> LanceDataset:
        """The table at the version that was asked for, or at another one.

        Raises:
            InvalidInputError: Several options name a version.
        """
        if version is not None:
            return self._dataset(version)
        names = ("version", "versionAsOf", "tag", "asof", "timestampAsOf")
        chosen = [name for name in names if self.value(name) is not None]
        if len(chosen) > 1:
            raise InvalidInputError(f"only one of the options {chosen} can be given")
        number = next((self.integer(name) for name in names[:2] if self.value(name) is not None), None)
        asof = self.value("asof") if self.value("timestampAsOf") is None else self.moment("timestampAsOf")
        version_or_tag = self.value("tag") if number is None else number
        return self._dataset(version_or_tag, asof=asof)

    def open_or_none(self) -> LanceDataset | None:
        """The latest version; None if there is no table."""
        try:
            return self._dataset(None)
        except DatasetNotFoundError:
            return None

    def write_options(self, *, overwrite: bool) -> WriteArguments:
        """The arguments of `pyspark_lance.write`.

        Raises:
            InvalidInputError: An option has no valid value, or excludes another one that is given.
        """
        condition = self.value("replaceWhere")
        dynamic = (self.value("partitionOverwriteMode") or "").lower() or None
        if dynamic not in (None, "static", "dynamic"):
            raise InvalidInputError(f"option partitionOverwriteMode must be static or dynamic, not {dynamic!r}")
        return WriteArguments.of(
            {
                "mode": "overwrite" if overwrite else "append",
                "cluster": False,  # a data source cannot move rows between tasks
                "vector_columns": self._widths(),
                "schema_mode": self._schema_mode(),
                "replace_where": None if condition is None else translate_strings(condition),
                "assume_utc": self.assume_utc,
                "partition_by": self.names("partition_by"),
                "partition_overwrite": dynamic,
                "merge_on": self.names("merge_on"),
                "commit_message": self.value("commit_message"),
                "transaction_properties": self._properties(),
                "idempotency_key": self._pair("idempotency_key"),
                "idempotency_since": self.integer("idempotency_since") or 0,
                "storage_options": self.storage,
                "data_storage_version": self.value("data_storage_version"),
                **{name: self.integer(name) for name in ("max_rows_per_file", "max_bytes_per_file")},
                **{name: self.boolean(name) for name in _FILE_FLAGS},
            }
        )

    @property
    def assume_utc(self) -> bool:
        """Whether times without a zone are in UTC, by option timeZone: a data source cannot see the session's zone.

        Raises:
            InvalidInputError: Option timeZone names no zone.
        """
        zone = self.value("timeZone")
        return zone is not None and (is_utc(zone) or zone_named(zone) == dt.UTC)

    def moment(self, name: str) -> dt.datetime:
        """A time; a data source cannot see the session's zone.

        Raises:
            InvalidInputError: The value is not a time, or names no zone and option timeZone is not given.
        """
        value, zone = self.value(name) or "", self.value("timeZone")
        if zone is not None:
            return moment(value, zone=zone_named(zone))
        instant = moment(value)
        if instant != moment(value, zone=dt.timezone(dt.timedelta(hours=1))):
            raise InvalidInputError(
                f"option {name}: {value!r} has no time zone, and a data source cannot see which one the session has."
                " Say it in the time, as in 2026-11-22T04:00:00+09:00, or by option('timeZone',"
                " spark.conf.get('spark.sql.session.timeZone')); pyspark_lance.read(..., asof=...) takes the session's"
            )
        return instant

    @property
    def blob_handling(self) -> str:
        """How columns of blobs are read.

        Raises:
            InvalidInputError: Option blobs has another value.
        """
        blobs = self.value("blobs") or "descriptions"
        if blobs not in _BLOBS:
            raise InvalidInputError(f"option blobs: {blobs!r} is none of {', '.join(_BLOBS)}")
        return _BLOBS[blobs]

    def plan_feed(self, dataset: LanceDataset, begin_version: int, **facts: Any) -> ChangeFeed:
        """The changes after a version, with both images of updated rows; see `change_feed.plan_feed`."""
        storage, blobs = self.storage, self.blob_handling
        return plan_feed(dataset, begin_version, preimages=True, storage_options=storage, blob_handling=blobs, **facts)

    def _dataset(self, version: int | str | None, *, asof: dt.datetime | str | None = None) -> LanceDataset:
        scans = {"blob_handling": self.blob_handling}
        return lance_core.dataset(
            self.uri, version, asof=asof, storage_options=self.storage, default_scan_options=scans
        )

    @property
    def undecided_batch(self) -> str:
        """What is done with a batch that may have been committed: error, write or skip."""
        value = (self.value("undecidedBatch") or "error").lower()
        if value not in DECISIONS:
            raise InvalidInputError(f"option undecidedBatch must be one of {', '.join(DECISIONS)}, not {value!r}")
        return value

    def value(self, name: str) -> str | None:
        """The value of an option; None if it was not given."""
        return self._values.get(_key(name))

    def names(self, name: str) -> tuple[str, ...] | None:
        """An option that lists names, with commas between them."""
        value = self.value(name)
        return None if value is None else tuple(part.strip() for part in value.split(","))

    def integer(self, name: str) -> int | None:
        """An option that is a number; None if it was not given."""
        value = self.value(name)
        if value is not None and not value.strip().isdecimal():
            raise InvalidInputError(f"option {name} must be a number, not {value!r}")
        return None if value is None else int(value)

    def boolean(self, name: str) -> bool:
        """An option that is true or false; false if it was not given."""
        value = (self.value(name) or "false").lower()
        if value not in ("true", "false"):
            raise InvalidInputError(f"option {name} must be true or false, not {value!r}")
        return value == "true"

    def _schema_mode(self) -> str:
        schema_mode = self.value("schema_mode")
        for name, mode in (("mergeSchema", "add_columns"), ("overwriteSchema", "overwrite")):
            if self.boolean(name):
                if schema_mode not in (None, mode):
                    raise InvalidInputError(f"options {name} and schema_mode {schema_mode!r} do not go together")
                schema_mode = mode
        return schema_mode or "strict"

    def _properties(self) -> dict[str, str] | None:
        value = self.value("transaction_properties")
        try:
            properties: Any = {} if value is None else json.loads(value)
        except ValueError as error:
            raise InvalidInputError(f"option transaction_properties is no JSON: {error}") from error
        if not isinstance(properties, dict) or not all(
            isinstance(property_value, str) for property_value in properties.values()
        ):
            raise InvalidInputError("option transaction_properties must be a JSON object whose values are strings")
        return {**properties, **(self._with_prefix("transaction.") or {})} or None

    def _pair(self, name: str) -> tuple[str, str] | None:
        value = self.value(name)
        if value is None:
            return None
        key, separator, rest = value.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"option {name} must be of the form key=value, not {value!r}")
        return key, rest

    def _widths(self) -> dict[str, int] | None:
        """Widths of vectors from `name=width` with commas between them."""
        value = self.value("vector_columns")
        widths: dict[str, int] = {}
        for part in value.split(",") if value else ():
            name, _, width = part.rpartition("=")
            if not name.strip() or not width.strip().isdecimal():
                raise InvalidInputError(f"option vector_columns must be of the form name=width,..., not {value!r}")
            widths[name.strip()] = int(width)
        return widths or None

    def _with_prefix(self, prefix: str) -> dict[str, str] | None:
        prefixed_options = {
            key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)
        }
        return prefixed_options or None
