"""An Apache Kafka of before KRaft: one broker and its ZooKeeper, loopback ports, a temporary directory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from tests.harness.ports import find_free_ports
from tests.interop.kafka_broker import START_TIMEOUT_S
from tests.interop.kafka_jars import java, kafka_jars

from headrace.client.admin import Admin
from headrace.errors import HeadraceError

__all__ = ["ZooKeeperKafka"]


class ZooKeeperKafka:
    """Mutable: started by entering it, killed by leaving it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._jars = kafka_jars(version)
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        self._port, self._zookeeper_port = find_free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = {
            "broker.id": 1,
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": self._directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 5,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self._directory / "server.properties").write_text(lines)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            # The admin server of ZooKeeper would take port 8080.
            zookeeper = "org.apache.zookeeper.server.ZooKeeperServerMain"
            data = str(self._directory / "zookeeper")
            self._launch("-Dzookeeper.admin.enableServer=false", zookeeper, str(self._zookeeper_port), data)
            self._launch("-Xmx512m", "kafka.Kafka", str(self._directory / "server.properties"))
            self._await_serving()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _launch(self, option: str, main_class: str, *arguments: str) -> None:
        command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", option, "-cp", f"{self._jars}/*", main_class]
        with (self._directory / f"{main_class}.out").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    start_new_session=True,
                )
            )

    def _await_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with Admin(self.bootstrap_servers, bootstrap_timeout_ms=1_000) as admin:
                    admin.list_topics()
                    return
            except HeadraceError:
                if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                    written = [path.read_text()[-2000:] for path in self._directory.glob("*.out")]
                    raise AssertionError("\n".join([f"Apache Kafka {self.version} did not start:", *written])) from None
            time.sleep(0.2)
