"""The rows of `store.external` in PostgreSQL, for the writers of many hosts.

    CREATE TABLE lance_manifests (
        base_uri TEXT,           the dataset's URI
        version  NUMERIC(20),    versions have 64 bits without a sign
        path     TEXT,           key of the manifest below base_uri, staging or final
        size     BIGINT,         in bytes
        PRIMARY KEY (base_uri, version)
    )

The table is created in the first schema of the connection's search path unless it exists. If the role may not create
tables, the table has to be created beforehand, with SELECT, INSERT, UPDATE and DELETE granted. Each method opens a
connection and a transaction of its own, so that threads and forked processes share nothing, and poolers such as
PgBouncer work.

Errors name host and database and never the rest of the URI, which may hold a password. Leave the password out of the
URI where libpq can find it elsewhere: PGPASSWORD, PGPASSFILE or a service file.
"""

from __future__ import annotations

# psycopg is an optional extra.
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from lance_core.errors import InvalidInputError, OutcomeUnknownError, StoreError, UnsupportedError

_CREATE = (
    "CREATE TABLE IF NOT EXISTS lance_manifests "
    "(base_uri TEXT, version NUMERIC(20), path TEXT NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (base_uri, version))"
)
_INSERT = (
    "INSERT INTO lance_manifests (base_uri, version, path, size) VALUES (%s, %s, %s, %s) "
    "ON CONFLICT (base_uri, version) DO NOTHING"
)
_HIGHER = "SELECT 1 FROM lance_manifests WHERE base_uri = %s AND version > %s LIMIT 1"
_UPDATE = "UPDATE lance_manifests SET path = %s, size = %s WHERE base_uri = %s AND version = %s"
_DELETE = "DELETE FROM lance_manifests WHERE base_uri = %s AND version = %s"
_CLEAR = "DELETE FROM lance_manifests WHERE base_uri = %s"
_SELECT = "SELECT path FROM lance_manifests WHERE base_uri = %s AND version = %s"
_LATEST = "SELECT version, path FROM lance_manifests WHERE base_uri = %s ORDER BY version DESC LIMIT 1"

_CONNECT_TIMEOUT_S = 10
# If two sessions create the table at the same time, one of them finds its name or its type in the catalog.
_CREATED_MEANWHILE = frozenset({"42P07", "42710", "23505"})


class PostgresTable:
    """Rows of one dataset in a PostgreSQL database.

    Args:
        uri: The database, `postgresql://user@host:port/name?option=value`, as libpq takes it.
        place: The dataset, as a URI.

    Raises:
        InvalidInputError: libpq cannot parse the URI.
        UnsupportedError: psycopg is not installed.
    """

    gives_numbers_once: Final = True

    def __init__(self, uri: str, place: str) -> None:
        self._uri = uri
        self._place = place
        parts = urlsplit(uri)  # messages name neither user, password nor options
        self._name = f"PostgreSQL at {parts.netloc.rpartition('@')[2] or 'the default host'}{parts.path}"
        psycopg = _driver()
        try:
            psycopg.conninfo.conninfo_to_dict(uri)
        except psycopg.Error:
            # libpq's message repeats the URI.
            raise InvalidInputError("storage option 'manifest_store' is not a URI that libpq can read") from None

    def __repr__(self) -> str:
        return f"PostgresTable({self._name!r}, {self._place!r})"

    def get(self, version: int) -> str | None:
        """Return the key of the version's manifest."""
        rows = self._run(_SELECT, self._place, version)[1]
        return str(rows[0][0]) if rows else None

    def latest(self) -> tuple[int, str] | None:
        """Return the highest version and its key."""
        rows = self._run(_LATEST, self._place)[1]
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def add(self, version: int, key: str, size: int) -> bool:
        """Insert a row unless there is one of this or a higher version.

        A row with the same key is this writer's own, from a request whose response was lost.
        """
        return self._run(_INSERT, self._place, version, key, size)[0] == 1 or self.get(version) == key

    def remove(self, version: int) -> None:
        """Delete a row."""
        self._run(_DELETE, self._place, version)

    def finalize(self, version: int, key: str, size: int) -> None:
        """Set the key of a row that exists."""
        if self._run(_UPDATE, key, size, self._place, version)[0] != 1:
            raise StoreError(f"{self._name}: the row of version {version} was deleted")

    def clear(self) -> None:
        """Delete all rows."""
        self._run(_CLEAR, self._place)

    def _run(self, statement: str, *values: str | int) -> tuple[int, list[tuple[Any, ...]]]:
        """Run a statement, after creating the table if it does not exist.

        Returns:
            The number of affected rows, and the selected rows.

        Raises:
            StoreError: The database rejected the statement or could not be reached.
            OutcomeUnknownError: The connection broke while a row was written.
        """
        psycopg = _driver()
        try:
            try:
                return self._execute(statement, values)
            except psycopg.errors.UndefinedTable:
                self._create_table()
                return self._execute(statement, values)
        except psycopg.Error as error:
            raise StoreError(self._describe(error)) from None

    def _create_table(self) -> None:
        psycopg = _driver()
        try:
            self._execute(_CREATE, ())
        except psycopg.Error as error:
            if error.sqlstate not in _CREATED_MEANWHILE:
                raise

    def _execute(self, statement: str, values: tuple[str | int, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        psycopg = _driver()
        # No statement is prepared on the server, as a pooler may send the next statement to another server.
        connected = psycopg.connect(
            self._uri,
            connect_timeout=_CONNECT_TIMEOUT_S,
            client_encoding="utf8",  # a database in SQL_ASCII would give bytes
            autocommit=True,
            prepare_threshold=None,
        )
        with closing(connected) as connection:
            try:
                if statement is _INSERT:
                    return self._insert(connection, values), []
                cursor = connection.execute(statement, values)
            except psycopg.OperationalError as error:
                # No state: the server did not respond. Classes 08 and 57: it ended the connection.
                if statement in (_INSERT, _UPDATE) and (error.sqlstate or "08")[:2] in ("08", "57"):
                    raise OutcomeUnknownError(self._describe(error)) from None
                raise
            return cursor.rowcount, cursor.fetchall() if cursor.description else []

    def _insert(self, connection: Any, values: tuple[str | int, ...]) -> int:
        """Insert a row, and roll back if there is a higher row; returns the number of inserted rows.

        The highest row is never deleted, so a higher row that existed before the insertion is seen after it.
        """
        place, version = values[:2]
        inserted = [0]  # the result if the transaction is rolled back
        with connection.transaction() as transaction:
            count = int(connection.execute(_INSERT, values).rowcount)
            if count and connection.execute(_HIGHER, (place, version)).fetchall():
                raise _driver().Rollback(transaction)
            inserted.append(count)
        return inserted[-1]

    def _describe(self, error: Any) -> str:
        """Describe an error without the message of libpq, which can repeat the URI."""
        return f"{self._name}: {type(error).__name__}, state {error.sqlstate or 'unknown'}"


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise UnsupportedError(
            "manifest_store=postgresql://... needs psycopg: install lance-dagster[postgres] and libpq"
        ) from None
    return psycopg
