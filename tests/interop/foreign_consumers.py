"""Other people's consumers as members of a group: confluent-kafka, kafka-python, aiokafka, Kafka's Java client.

Each is a context manager on a thread or a process of its own, with `assigned` and `read` as `RunningConsumer` has them.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from tests.client.running_consumers import PATIENCE_S
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

__all__ = ["FOREIGN", "ForeignConsumer", "kafka_python_consumer"]

SESSION_MS = 10_000


class ForeignConsumer:
    """Base: a thread that joins `group`, reads `topic`, and says what it has."""

    protocols: tuple[str, ...] = ("classic",)

    def __init__(
        self,
        servers: str,
        group: str,
        topic: str,
        *,
        protocol: str,
        strategy: str,
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        """A `topic` that begins with ^ is a regular expression. `instance_id`: of a static member."""
        self.servers, self.group, self.topic = servers, group, topic
        self.protocol, self.strategy, self.instance_id = protocol, strategy, instance_id
        self.session_ms = session_ms
        self.assigned: set[tuple[str, int]] = set()
        self.read: list[tuple[str, int, int]] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            self.errors.append(error)
            raise

    def consume(self) -> None:
        raise NotImplementedError


class ConfluentConsumer(ForeignConsumer):
    protocols = ("classic", "consumer")

    def consume(self) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "group.protocol": self.protocol,
            "topic.metadata.refresh.interval.ms": 500,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        if self.protocol == "classic":
            settings |= {
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": self.strategy,
            }
        consumer = Consumer(settings)
        consumer.subscribe([self.topic])
        while not self._stop.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    place = not_none(message.topic()), not_none(message.partition()), not_none(message.offset())
                    self.read.append(place)
            self.assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        consumer.close()


class KafkaPythonConsumer(ForeignConsumer):
    def consume(self) -> None:
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        consumer = kafka_python_consumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[assignors[self.strategy]],
            group_instance_id=self.instance_id,
        )
        while not self._stop.is_set():
            for each, records in consumer.poll(100).items():
                self.read.extend((each.topic, each.partition, record.offset) for record in records)
            self.assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        consumer.close()


def kafka_python_consumer(topic: str, **settings: Any) -> Any:
    """A KafkaConsumer that knows the topic before it joins.

    kafka-python 3.0.12 would join without, assign nothing as leader, and join again when the metadata came. If that
    second join outlives one poll, its answer is never applied: the next `need_rejoin` compares only snapshots, which
    are equal by then. The member has no partitions and no heartbeats, and is removed when its session is over.
    """
    from kafka import KafkaConsumer

    if topic.startswith("^"):
        consumer = KafkaConsumer(**settings)
        consumer.subscribe(pattern=topic)  # it looks at all topics before it joins
        return consumer
    consumer = KafkaConsumer(topic, **settings)
    wait_until(lambda: consumer.partitions_for_topic(topic), f"metadata of {topic}")
    return consumer


class AiokafkaConsumer(ForeignConsumer):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        consumer = AIOKafkaConsumer(
            *([] if self.topic.startswith("^") else [self.topic]),
            bootstrap_servers=self.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[assignors[self.strategy]],
            group_instance_id=self.instance_id,
        )
        if self.topic.startswith("^"):
            consumer.subscribe(pattern=self.topic)
        await consumer.start()
        while not self._stop.is_set():
            for each, records in (await consumer.getmany(timeout_ms=100)).items():
                self.read.extend((each.topic, each.partition, record.offset) for record in records)
            self.assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        await consumer.stop()


class JavaConsumer(ForeignConsumer):
    protocols = ("classic", "consumer")

    def consume(self) -> None:
        classpath = f"{kafka_jars(TOOLS_VERSION)}/*:{compiled(Path(__file__).parent / 'java_consumer')}"
        command = [java(), "-Xmx128m", *JVM_OF_SECONDS, *archived(TOOLS_VERSION), "-cp", classpath, "GroupMember"]
        command += [self.servers, self.group, self.topic, f"group.protocol={self.protocol}"]
        if self.protocol == "classic":
            names = {"range": "Range", "roundrobin": "RoundRobin", "sticky": "Sticky"}
            assignor = f"{names.get(self.strategy, 'CooperativeSticky')}Assignor"
            command += [f"session.timeout.ms={self.session_ms}", "heartbeat.interval.ms=300"]
            command.append(f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        self._stop.wait()
        process.stdin.write("end\n")
        process.stdin.close()
        process.wait(PATIENCE_S)
        listener.join(PATIENCE_S)
        process.stdout.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            word, *numbers = line.split()
            if word == "read":
                self.read.append((self.topic, int(numbers[0]), int(numbers[1])))
            else:
                self.assigned = {(self.topic, int(number)) for number in numbers}


FOREIGN: dict[str, type[ForeignConsumer]] = {
    "confluent-kafka": ConfluentConsumer,
    "kafka-python": KafkaPythonConsumer,
    "aiokafka": AiokafkaConsumer,
    "java": JavaConsumer,
}
