"""A real Apache Kafka: one process, KRaft in combined mode, loopback ports, a temporary directory.

`with KafkaBroker() as kafka: …`. It starts in about 8 s and answers before `__enter__` returns. The bounds of streams
groups are lowered so that tests may use short sessions; any property can be set on top.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.polling import TIMEOUT_S
from tests.harness.ports import find_free_ports
from tests.harness.wire import read_frame
from tests.interop.kafka_jars import TOOLS_VERSION, KafkaUnavailable, class_archive, compiled, java, kafka_jars

__all__ = ["KafkaBroker", "run_tool"]

START_TIMEOUT_S = TIMEOUT_S  # a crowded machine needs more: HEADRACE_WAIT_S
JVM_OF_SECONDS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_API_VERSIONS, _METADATA = 18, 3


def run_tool(
    main_class: str, arguments: Sequence[str], *, check: bool = True, with_errors: bool = False, timeout_s: float = 120
) -> str:
    """Run one of Kafka's own tools; its standard output, and what it wrote to standard error with `with_errors`.

    A failure shows what the tool said.
    """
    command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", *archived(TOOLS_VERSION)]
    command += ["-cp", f"{kafka_jars(TOOLS_VERSION)}/*", main_class]
    out = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=timeout_s)
    if check and out.returncode != 0:
        said = out.stdout + out.stderr
        raise AssertionError(f"{main_class} {' '.join(arguments)} ended with {out.returncode}:\n{said}")
    return out.stdout + out.stderr if with_errors else out.stdout


def archived(version: str) -> list[str]:
    """Options for a JVM with all of Kafka's jars; the first time a broker runs for them."""
    kafka_jars(version)  # before the lock that both need

    def train(options: list[str]) -> None:
        broker = KafkaBroker(version, jvm=options)
        try:
            broker.format()
            broker.start()
            broker.stop(timeout_s=300)
        finally:
            broker.kill()
            shutil.rmtree(broker.directory, ignore_errors=True)

    return class_archive(version, train)


class KafkaBroker:
    """Mutable: started by entering it, stopped by leaving it. `kill` and `start` in between simulate a crash."""

    def __init__(
        self,
        version: str = "4.3.1",
        properties: Mapping[str, object] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        scram_users: Sequence[str] = (),
        jvm: Sequence[str] | None = None,
        directory: Path | None = None,
        log_level: str = "ERROR",
        classes: Path | None = None,
    ) -> None:
        """`listeners`: further ones, name → protocol; `ports` has theirs. `scram_users` as kafka-storage takes them.

        `jvm`: what the broker's JVM is told beside; None: to take its classes from an archive, where that pays.
        `directory`: a new one, for everything it writes, which stays there. `classes`: a directory of plugins.
        """
        self.version = version
        self._stays = directory is not None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        self.directory.mkdir(exist_ok=True)
        self.log_directory = self.directory / "data"
        self.port, controller = find_free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        # Behind Kafka's jars: the class archive fits while they are the beginning of the class path.
        self._class_path = f"{kafka_jars(version)}/*" + (f":{classes}" if classes is not None else "")
        self._jvm = list(jvm) if jvm is not None else archived(version) if version == TOOLS_VERSION else []
        self._jvm.append(f"-Dorg.apache.logging.log4j.level={log_level}")
        self._properties = self.directory / "server.properties"
        self.ports = dict(zip(listeners or {}, find_free_ports(len(listeners or {})), strict=True))
        self._scram_users = tuple(scram_users)
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        settings = {**_defaults(self.port, controller, self.log_directory), **(properties or {})}
        for name, protocol in (listeners or {}).items():
            for setting in ("listeners", "advertised.listeners"):
                settings[setting] = f"{settings[setting]},{name}://127.0.0.1:{self.ports[name]}"
            settings["listener.security.protocol.map"] = (
                f"{settings['listener.security.protocol.map']},{name}:{protocol}"
            )
        self._properties.write_text("".join(f"{name}={_spelled(value)}\n" for name, value in settings.items()))
        self.output = self.directory / "kafka.out"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.output

    def __enter__(self) -> Self:
        try:
            self.format()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill() if kind is not None else self.stop()
        if not self._stays:
            shutil.rmtree(self.directory, ignore_errors=True)

    def format(self) -> None:
        """Make its directory one of the cluster."""
        command = self._command("kafka.tools.StorageTool", "-XX:TieredStopAtLevel=1")
        arguments = ["format", "--cluster-id", self.cluster_id, "--config", str(self._properties)]
        arguments += [part for user in self._scram_users for part in ("--add-scram", user)]
        out = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert out.returncode == 0, f"StorageTool format failed:\n{out.stdout}{out.stderr}"

    def _command(self, main_class: str, *options: str) -> list[str]:
        return [java(), "-Xmx512m", *options, "-cp", self._class_path, main_class]

    def start(self) -> None:
        """Start the formatted broker, and wait until it serves."""
        self.launch()
        self.await_serving()

    def launch(self) -> None:
        """Start the formatted broker."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command("kafka.Kafka", *JVM_OF_SECONDS, *self._jvm), str(self._properties)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # ctrl-c is for the tests; they stop it
                env={**os.environ, "KAFKA_OPTS": ""},
            )

    def await_serving(self) -> None:
        """Wait until it answers as a broker of its cluster."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Apache Kafka {self.version} did not start:\n{self.output.read_text()[-3000:]}")
            time.sleep(0.1)

    def _serves(self) -> bool:
        """Whether it answers ApiVersions, and Metadata with itself as a broker."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                api_versions = _call(connection, _API_VERSIONS, 0, b"")
                if struct.unpack_from(">h", api_versions)[0] != 0:
                    return False
                metadata = _call(connection, _METADATA, 1, struct.pack(">i", 0))  # of no topics
                (brokers,) = struct.unpack_from(">i", metadata)
                return bool(brokers >= 1)
        except (OSError, EOFError, struct.error):
            return False

    def stop(self, timeout_s: float = 30) -> None:
        """SIGTERM and wait: a clean shutdown."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """SIGKILL: a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run_tool(self, main_class: str, arguments: Sequence[str], *, check: bool = True) -> str:
        """One of Kafka's own tools, as `run_tool`; who wants this broker says `--bootstrap-server`."""
        return run_tool(main_class, arguments, check=check)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _defaults(port: int, controller: int, logs: Path) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": logs,
        "log.cleaner.backoff.ms": 200,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "auto.create.topics.enable": False,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "group.max.size": 5,
        "group.consumer.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.max.size": 5,
        "group.streams.initial.rebalance.delay.ms": 0,
        "group.streams.min.session.timeout.ms": 1000,
        "group.streams.min.heartbeat.interval.ms": 100,
        "group.streams.heartbeat.interval.ms": 500,
    }


def _call(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    """One request of the oldest kind, without the client we test elsewhere; the answer behind the correlation id."""
    request = struct.pack(">hhih", api_key, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    return read_frame(connection)[4:]


def _fetch_all() -> None:
    """Fetch Kafka's jars, compile the Java programs and make the class archive before several workers need them."""
    try:
        for version in (TOOLS_VERSION, "4.4.0"):
            kafka_jars(version)
        for sources in sorted(Path(__file__).parent.glob("java*/")):
            compiled(sources)
        archived(TOOLS_VERSION)
    except KafkaUnavailable as missing:  # the tests that need them are skipped with this message; in CI they fail
        print(missing, file=sys.stderr)


if __name__ == "__main__":
    _fetch_all()
