"""Three Apache Kafka brokers on loopback, each of them a controller as well.

`with KafkaCluster() as kafka: …`; `kafka.brokers[0].kill()` crashes one, `kafka.restart(0)` starts it again. With
replication factor 3 (the default) a record is acknowledged by two brokers; with 1 a partition, a group coordinator and
a transaction coordinator are unavailable while their broker is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.ports import find_free_ports
from tests.interop.kafka_broker import KafkaBroker

__all__ = ["KafkaCluster"]

NODES = (1, 2, 3)


class KafkaCluster:
    """Mutable: started by entering it, stopped by leaving it."""

    def __init__(
        self,
        version: str = "4.3.1",
        properties: Mapping[str, object] | None = None,
        *,
        replication_factor: int = 3,
        directory: Path | None = None,
        log_level: str = "ERROR",
    ) -> None:
        """Args:
        properties: broker settings, the same for the three.
        replication_factor: of topics without one of their own, the internal ones included.
        directory: parent of the brokers' directories, which stay; None: temporary ones.
        log_level: of the brokers' logs.
        """
        controllers = dict(zip(NODES, find_free_ports(len(NODES)), strict=True))
        listening = dict(zip(NODES, find_free_ports(len(NODES)), strict=True))
        self.brokers: list[KafkaBroker] = []
        for node in NODES:
            own = {
                "node.id": node,
                "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in controllers.items()),
                "listeners": f"PLAINTEXT://127.0.0.1:{listening[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{listening[node]}",
                **dict.fromkeys(
                    (
                        "default.replication.factor",
                        "offsets.topic.replication.factor",
                        "transaction.state.log.replication.factor",
                        "share.coordinator.state.topic.replication.factor",
                    ),
                    replication_factor,
                ),
                **dict.fromkeys(
                    ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr"),
                    2 if replication_factor > 1 else 1,
                ),
                "offsets.topic.num.partitions": 6,
                "transaction.state.log.num.partitions": 6,
                # a broker that is killed is taken for dead after so long; 9 s would be Kafka's default
                "broker.session.timeout.ms": 6000,
                **(properties or {}),
            }
            place = None if directory is None else directory / f"broker-{node}"
            broker = KafkaBroker(version, own, directory=place, log_level=log_level)
            broker.port = listening[node]
            self.brokers.append(broker)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def log(self) -> Path:
        """What the first of them wrote."""
        return self.brokers[0].log

    def restart(self, index: int) -> None:
        self.brokers[index].start()

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers:
                broker.cluster_id = self.brokers[0].cluster_id
                broker.format()
            for broker in self.brokers:  # none serves before two of them vote
                broker.launch()
            for broker in self.brokers:
                broker.await_serving()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for broker in self.brokers:  # one that waits for the others to take over would wait for nobody
            broker.kill()
            broker.__exit__(kind, error, traceback)
