"""A PostgreSQL server on a loopback port, for tests: the programs of the system's package, a new data folder."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import processes

PASSWORD = "test-password-canary"


@dataclass(frozen=True)
class PostgresServer:
    """A running server."""

    port: int

    def uri(self, database: str = "postgres", password: str = PASSWORD) -> str:
        return f"postgresql://tester:{password}@127.0.0.1:{self.port}/{database}"

    def run(self, statement: str, database: str = "postgres") -> list[tuple]:
        import psycopg

        with psycopg.connect(self.uri(database), autocommit=True, client_encoding="utf8") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        name = f"d{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        return name


def postgres_programs() -> Path | None:
    """Return the folder of the newest server that is installed."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/postgres"), *Path("/usr/pgsql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path:
        found.append(Path(on_path))
    return max((path.parent for path in found), key=lambda path: path.parent.name, default=None)


@contextlib.contextmanager
def postgres_server(programs: Path) -> Iterator[PostgresServer]:
    """Start a server in a process of its own, and stop it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        user = _unprivileged_user()
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if user is not None:
            for path in (folder, secret):
                os.chown(path, user, user)
        started = {"env": {"LC_ALL": "C", "PATH": os.defpath}, "cwd": folder}
        initdb = [programs / "initdb", "-D", folder / "data", "-U", "tester", "-A", "scram-sha-256", "--no-sync"]
        processes.run(_as_user(user, [*initdb, f"--pwfile={secret}"]), check=True, **started)
        with processes.held_port() as port:
            settings = {
                "listen_addresses": "127.0.0.1",
                "port": port,
                "unix_socket_directories": folder,
                "fsync": "off",
            }
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            command = _as_user(user, [programs / "postgres", "-D", folder / "data", *options])
            with processes.running(command, log=folder / "log", **started) as process:
                server = PostgresServer(port)
                _wait_for(server, process, folder)
                yield server
                process.send_signal(signal.SIGINT)  # by SIGTERM it would wait for its clients
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: PostgresServer, process: subprocess.Popen, folder: Path) -> None:
    import psycopg

    while process.poll() is None:
        with contextlib.suppress(psycopg.OperationalError):
            server.run("SELECT 1")
            return
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")


def _unprivileged_user() -> int | None:
    """Return the user under which the server runs, since it rejects root; None if this process is not root's."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise RuntimeError("PostgreSQL does not run as root, and there is no user to become")


def _as_user(user: int | None, command: list) -> list:
    """The command, run by a user. A change of the user clears the signal that ends a child with its parent; it is set again."""
    if user is None:
        return command
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--pdeathsig=KILL", "--", *command]
