"""Brokers under load, ours and Apache Kafka 4.3.1, each a process of its own, and what /proc says of them.

Kafka gets what its own start script gives it: -Xmx1G -Xms1G, G1, all tiers of the compiler, and its default settings
but for the ports, one copy of everything, and no wait before a group's first rebalance.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars

from headrace.cli.instances import free_port
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError

TICKS = os.sysconf("SC_CLK_TCK")
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExplicitGCInvokesConcurrent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A running broker. `fsync` says when it syncs a log."""

    name: str
    fsync: str
    pid: int
    bootstrap_servers: str

    def cpu_seconds(self) -> float:
        """CPU seconds of the process so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self, which: str = "VmRSS") -> float:
        """Resident memory in MB of a million bytes; VmHWM for the most there ever was."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(which + ":"):
                return int(line.split()[1]) * 1024 / 1e6
        raise ValueError(which)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Tries until the broker answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with NetworkClient(self.bootstrap_servers, api_timeout_ms=10_000) as client:
                    Admin(client).create_topics({topic: partitions})
                    return
            except (HeadraceError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def delete_topic(self, topic: str) -> None:
        with NetworkClient(self.bootstrap_servers, api_timeout_ms=10_000) as client:
            Admin(client).delete_topics([topic])


class FullSizeKafka(KafkaBroker):
    """With the JVM that Kafka's own script starts."""

    def _command(self, main_class: str, *options: str) -> list[str]:
        del options
        return [java(), *KAFKA_JVM, "-cp", f"{self._jars}/*", main_class]


@contextlib.contextmanager
def headrace_broker(fsync: str, directory: str | None = None, *, settings: Sequence[str] = ()) -> Iterator[Contender]:
    """`fsync` as `headrace.flush.policy` has it; `settings`: others, NAME=VALUE."""
    port = free_port("127.0.0.1")
    with tempfile.TemporaryDirectory(dir=directory) as data:
        command = [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", data, "--port", str(port)]
        for setting in (f"headrace.flush.policy={fsync}", *settings):
            command += ["--override", setting]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = f"127.0.0.1:{port}"
            yield Contender(name="headrace", fsync=fsync, pid=process.pid, bootstrap_servers=address)
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def apache_kafka(fsync: str = "never") -> Iterator[Contender]:
    """`never` is Kafka's default: it leaves that to the operating system. `always`: `log.flush.interval.messages=1`."""
    properties = {"log.flush.interval.messages": 1} if fsync == "always" else {}
    with FullSizeKafka(properties=properties, jvm=()) as broker:
        assert broker._process is not None
        pid, address = broker._process.pid, broker.bootstrap_servers
        yield Contender(name="Apache Kafka 4.3.1", fsync=fsync, pid=pid, bootstrap_servers=address)


def tool(main_class: str, arguments: Sequence[str], classes: Path | None = None) -> subprocess.Popen[str]:
    """One of Kafka's own tools, or a program of ours from `classes`, started."""
    path = f"{kafka_jars(TOOLS_VERSION)}/*" + (f":{classes}" if classes is not None else "")
    command = [java(), "-Xmx512m", "-cp", path, main_class, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def outputs(processes: Sequence[subprocess.Popen[str]], timeout_s: float) -> list[str]:
    """Return what the processes printed, when all are done. End them all when one fails or takes too long."""
    try:
        found = []
        for process in processes:
            said, _ = process.communicate(timeout=timeout_s)
            if process.returncode != 0:
                raise SystemExit(f"{process.args} ended with {process.returncode}:\n{said}")
            found.append(said)
        return found
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
