"""Input topics of a subtopology's tasks, as the driver sees them between micro-batches.

`TaskInputs` is what `CommandExecutor` asks for; `BrokerInputs` asks the brokers of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.spark.runtime.input_poller import InputPoller
from headrace.spark.runtime.operators.watermark_records import WATERMARK_KEY
from headrace.spark.runtime.repartition_purge import RepartitionPurge
from headrace.spark.runtime.tasks import RunningTask, TopicPartition

__all__ = ["BrokerInputs", "TaskInputs"]


class TaskInputs(Protocol):
    """Input topics of one subtopology. All but `wake` and `end` belong to the runner's thread."""

    @property
    def losses(self) -> int:
        """How often a broker was found away."""

    def find_ends(self, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the committed records of each partition. Raises CannotConnect, BrokerError."""

    def find_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the present id of each topic. Raises CannotConnect, BrokerError."""

    def start_batch(self, topic: str, partition: int) -> None:
        """Append a record without a row to a repartition topic. Raises CannotConnect, BrokerError."""

    def purge(self, tasks: Iterable[RunningTask]) -> None:
        """Delete rows of repartition topics that these tasks have committed, if it is time to."""

    def wait(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        """Wait until a record may exist at one of the positions, `wake` is called, or some time has passed."""

    def wake(self) -> None:
        """Wake the waiting thread. If no thread waits, the next wait returns at once."""

    def end(self) -> None:
        """Interrupt requests and waits, for good."""

    def close(self) -> None:
        """Close the connections."""


class BrokerInputs:
    """Input topics on the brokers of a cluster."""

    def __init__(self, client: NetworkClient, watching: NetworkClient, internal: frozenset[str]) -> None:
        """Take two clients, and close them in the end.

        Args:
            client: Of the runner's thread, for requests that are answered at once.
            watching: For the Fetch that stands at the positions.
            internal: Repartition topics among the inputs.
        """
        self._client, self._admin = client, Admin(client)
        self._watch = InputPoller(watching)
        self._purge = RepartitionPurge(self._admin, internal)

    @property
    def losses(self) -> int:
        return self._watch.losses

    def find_ends(self, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(dict.fromkeys(inputs, "latest"), isolation_level="read_committed")
        return {where: row.offset for where, row in found.items()}

    def find_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        found = self._client.known_topics(sorted(topics), refresh=True).topics
        return {name: str(topic.topic_id) for name, topic in found.items()}

    def start_batch(self, topic: str, partition: int) -> None:
        produce(self._client, topic, [PlainRecord(key=WATERMARK_KEY, value=None)], partition=partition)

    def purge(self, tasks: Iterable[RunningTask]) -> None:
        self._purge.purge_if_due(tasks)

    def wait(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        self._watch.wait(positions)

    def wake(self) -> None:
        self._watch.wake()

    def end(self) -> None:
        self._client.end()
        self._watch.end()

    def close(self) -> None:
        self._client.end()
        self._client.close()
        self._watch.close()
