"""Environment of the demo: the machine, a temporary directory, a log, a broker and two application instances.

The processes end and the directory is removed however the demo ends (`--keep` leaves the directory). The log survives a
failure, so that there is something to look at.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.cli.instances import BrokerProcess, Instance, free_port, stop_all
from headrace.errors import HeadraceError
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["GROUP", "PARTITIONS", "TOPIC", "Stage", "example_path", "machine_line", "spark_environment"]

GROUP = "flight-delays"
TOPIC = "flights"
PARTITIONS = 8
# The first compiler only, and a collector without threads: both pay off within seconds, the defaults after minutes.
JVM_OF_SECONDS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
HOST = "127.0.0.1"


class Stage:
    """Mutable: the processes of one demo. A context manager."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self._owned = OwnedDirectory("headrace-demo-")
        self.directory = self._owned.path
        self.log = self.directory / "demo.log"
        self.broker: BrokerProcess | None = None
        self.instances: dict[str, Instance] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None and not isinstance(error, KeyboardInterrupt))

    def close(self, *, failed: bool) -> None:
        """End all processes; remove the directory, except the log of a failure."""
        for instance in self.instances.values():
            # After a failure nothing has to be committed: processes are killed at once, and the log shows the state of
            # the failure.
            if failed and instance.alive:
                instance.kill()
        stop_all(list(self.instances.values()), timeout_s=10)
        if self.broker is not None:
            self.broker.stop()
        if self.keep:
            self._owned.keep()
            return
        if failed and self.log.exists():
            self.keep_log()
        self._owned.remove()

    def keep_log(self) -> Path:
        """Copy the log out of the directory, unless that is kept; return its path."""
        if not self.keep and self.log.is_relative_to(self.directory):
            kept = self.directory.parent / f"{self.directory.name}.log"
            with contextlib.suppress(OSError):
                shutil.copyfile(self.log, kept)
                self.log = kept
        return self.log

    @property
    def bootstrap_servers(self) -> str:
        if self.broker is None:
            raise RuntimeError("the broker was not started")
        return self.broker.address

    def start_broker(self) -> BrokerProcess:
        self.broker = BrokerProcess(self.directory / "broker", HOST, free_port(HOST), log=self.log)
        self.broker.start()
        return self.broker

    def start_instance(self, name: str) -> Instance:
        """A new instance, or the same one again."""
        instance = self.instances.get(name)
        if instance is None:
            arguments = [str(example_path()), "--bootstrap-server", self.bootstrap_servers]
            # A directory for each instance, as on two hosts: A must rebuild B's state from the changelog instead of
            # opening its files.
            arguments += ["--own-state-dir", "--state-dir", str(self.directory / "state" / name)]
            instance = self.instances[name] = Instance(
                name, arguments, directory=self.directory, log=self.log, environment=spark_environment()
            )
        instance.start()
        return instance

    def check(self) -> None:
        """Check the processes. Raises when one of the processes ended that should not have."""
        for instance in self.instances.values():
            failure = instance.failure()
            if failure is not None:
                raise failure
            if not instance.killed and instance.exit_code is not None:
                raise HeadraceError("instance-failed", f"application {instance.name} ended by itself", "see the log")
        if self.broker is not None and not self.broker.alive:
            raise HeadraceError("broker-not-started", "the broker's process ended by itself", "see the log")


def spark_environment() -> dict[str, str]:
    """Spark lives for two minutes here: the JVM's second compiler and its parallel collector would cost more than they
    give (measured: 12 instead of 20 s of CPU until an application runs). What the user has set himself stays, but for
    how his own brokers are reached: the demo's is on the loopback, in the clear."""
    from headrace.client.configuration import without_client_settings

    return {"JDK_JAVA_OPTIONS": JVM_OF_SECONDS} | without_client_settings(os.environ)


def example_path() -> Path:
    """`examples/flight_delays.py` of the repository, or its copy inside an installed package."""
    import headrace

    package = Path(headrace.__file__).resolve().parent
    for directory in (package.parents[1], package):
        path = directory / "examples" / "flight_delays.py"
        if path.is_file():
            return path
    raise HeadraceError(
        "app-missing", "the demo's program examples/flight_delays.py is not there", "install headrace anew"
    )


def machine_line() -> str:
    """`Python 3.11.7 · Java 17.0.15 · 2 cores · 24 GiB`. Raises ConfigError `java-missing`."""
    from headrace.spark.spark_session import check_java

    parts = [f"Python {platform.python_version()}", f"Java {_java_version(check_java())}", f"{_cores()} cores"]
    memory = _memory_gib()
    if memory:
        parts.append(f"{memory} GiB")
    return " · ".join(parts)


def _java_version(java: str) -> str:
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "([^"]+)"', printed.stderr + printed.stdout)
    return match.group(1) if match else "of unknown version"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0
