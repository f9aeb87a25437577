"""Ceph's S3 gateway on a loopback port, for tests: a monitor, one object store in memory and the gateway.

The programs are those of the system's packages. They run in the foreground, below a new folder, without
authentication among each other; the gateway checks the signatures of its users like any S3.
"""

import contextlib
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests import processes
from tests.s3_endpoint import KEY_ID, SECRET, S3Endpoint

PROGRAMS = ("monmaptool", "ceph-mon", "ceph", "ceph-osd", "radosgw", "radosgw-admin")
PACKAGES = "ceph-mon ceph-osd ceph-common radosgw"

# One of everything, no authentication, and no part of it may wait for a manager: there is none.
_CLUSTER = {
    "auth cluster required": "none",
    "auth service required": "none",
    "auth client required": "none",
    "ms client mode": "crc",
    "ms mon client mode": "crc",  # the gateway insists on encryption otherwise, which needs authentication
    "public network": "127.0.0.0/8",
    "osd pool default size": "1",
    "osd pool default min size": "1",
    "osd pool default pg num": "4",
    "osd pool default pgp num": "4",
    "osd pool default pg autoscale mode": "off",
    "osd crush chooseleaf type": "0",
    "osd objectstore": "memstore",
    "osd class load list": "*",
    "osd class default list": "*",
    "memstore device bytes": str(2 << 30),
    "mon allow pool size one": "true",
    "mon max pg per osd": "1000",
    "mon data avail warn": "2",
    "mon data avail crit": "1",
}


def missing_programs() -> list[str]:
    """The programs of Ceph that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextlib.contextmanager
def ceph_server() -> Iterator[S3Endpoint]:
    """Start all three, and stop them afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ceph-"))
    cluster = _Cluster(folder)
    try:
        cluster.start()
        yield S3Endpoint(cluster.gateway_port)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Cluster:
    folder: Path
    gateway_port: int = 0
    running: list = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> None:
        monitor_port, self.gateway_port = (self.stack.enter_context(processes.held_port()) for _ in range(2))
        place = f"[v2:127.0.0.1:{monitor_port}]"
        cluster_id = str(uuid.uuid4())
        self._write_settings(cluster_id, place)
        self._run("monmaptool", "--create", "--fsid", cluster_id, "--addv", "a", place, self.folder / "monmap")
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", self.folder / "monmap")
        self._begin("ceph-mon", "-i", "a")
        disk = str(uuid.uuid4())
        self._run("ceph", "--connect-timeout", "60", "osd", "new", disk)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._begin("ceph-osd", "-i", "0")
        self._begin("radosgw", "-n", "client.gateway")
        self._wait()
        user = ["--uid=tester", "--display-name=tester", f"--access-key={KEY_ID}", f"--secret-key={SECRET}"]
        self._run("radosgw-admin", "-n", "client.gateway", "user", "create", *user)

    def stop(self) -> None:
        for process in self.running:
            process.kill()  # there is nothing to save, and an orderly end takes ten seconds
        self.stack.close()

    def _write_settings(self, cluster_id: str, place: str) -> None:
        for name in ("mon", "osd", "gateway"):
            (self.folder / name).mkdir()
        places = {
            "fsid": cluster_id,
            "mon host": place,
            "mon initial members": "a",
            "mon data": self.folder / "mon",
            "osd data": self.folder / "osd",
            "run dir": self.folder,
            "admin socket": self.folder / "$name.asok",
            "pid file": self.folder / "$name.pid",
            "log file": self.folder / "$name.log",
        }
        gateway = {
            # Without the second, each small answer waits for the delayed acknowledgement of the kernel.
            "rgw frontends": f"beast endpoint=127.0.0.1:{self.gateway_port} tcp_nodelay=1",
            "rgw data": self.folder / "gateway",
        }
        lines = ["[global]", *(f"{name} = {value}" for name, value in (_CLUSTER | places).items())]
        lines += ["[client.gateway]", *(f"{name} = {value}" for name, value in gateway.items())]
        (self.folder / "ceph.conf").write_text("\n".join(lines) + "\n")

    def _run(self, program: str, *arguments: object) -> None:
        processes.run(self._command(program, arguments), cwd=self.folder, check=True)

    def _begin(self, program: str, *arguments: object) -> None:
        command = self._command(program, ("-f", *arguments))
        context = processes.running(command, cwd=self.folder, log=self.folder / f"{program}.out")
        self.running.append(self.stack.enter_context(context))

    def _command(self, program: str, arguments: tuple[object, ...]) -> list[str]:
        settings = () if program == "monmaptool" else ("-c", self.folder / "ceph.conf")
        return [program, *map(str, (*settings, *arguments))]

    def _wait(self) -> None:
        while all(process.poll() is None for process in self.running):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.gateway_port}/", timeout=5).close()
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
            else:
                return
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out"))
        raise RuntimeError(f"Ceph did not start: {logs}")
