"""Factory of plans, batch limits and delivery guarantees for all subtopologies of an application.

One instance is shared by the threads of all runners. A plan holds everything a stage needs (`plan`). The runner
supplies what changes between micro-batches: the slots, the assignment they belong to, and the batch number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.network_client import NetworkClient
from headrace.spark.runtime.batches.batch_commit import AtLeastOnce, BatchCommit, ExactlyOnce
from headrace.spark.runtime.batches.batch_limits import BatchLimits
from headrace.spark.runtime.batches.commit_epochs import CommitEpochs
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.chains import output_topics, shared_topics
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions
from headrace.spark.runtime.stores.store import BatchKey, boot_id
from headrace.spark.topology.nodes import CompiledSubtopology

if TYPE_CHECKING:
    from headrace.client.cluster_metadata import ClusterMetadata
    from headrace.spark.application_settings import ApplicationSettings

__all__ = ["PlanFactory"]


class TopicLookup(Protocol):
    """Source of topic ids. See `NetworkClient`."""

    def known_topics(self, names: Iterable[str], *, refresh: bool = ...) -> ClusterMetadata:
        """Return metadata with every named topic. Raises BrokerError."""


class PlanFactory:
    """Common part of all micro-batches. Mutable: topic ids of changelogs, transactions, and number of chains."""

    def __init__(
        self,
        settings: ApplicationSettings,
        *,
        incarnation: str,
        state_dir: str,
        client: TopicLookup,
        now_ms: Callable[[], int],
    ) -> None:
        """`client` asks for the ids of changelogs, `now_ms` is the processing time."""
        self.now_ms = now_ms
        self._settings, self._config = settings, settings.config
        self._incarnation, self._state_dir, self._client = incarnation, state_dir, client
        self.exactly_once = settings.processing_guarantee == "exactly_once_v2"
        self.transaction_timeout_ms = int(settings.config["transaction.timeout.ms"])
        self.boot_id = boot_id()
        self._max_bytes = int(settings.config["headrace.batch.max.bytes"])
        self._lock = threading.Lock()
        self._topic_ids: dict[str, str] = {}
        self._transactions: dict[str, SlotTransactions] = {}
        self._chains_of: dict[str, int] = {}

    def note_chains(self, subtopology_id: str, count: int) -> None:
        """Set the number of chains before the first plan: of several chains with the same range none may end early by
        itself.
        """
        self._chains_of[subtopology_id] = count

    def plan(
        self,
        subtopology: CompiledSubtopology,
        assignment: AssignmentSnapshot,
        slots: tuple[SlotPlan, ...],
        batch: BatchKey,
    ) -> MicroBatchPlan:
        """Return a complete plan for these slots."""
        return MicroBatchPlan(
            subtopology_id=subtopology.subtopology_id,
            batch=batch,
            member_id=assignment.member_id,
            member_epoch=assignment.member_epoch,
            bootstrap_servers=self._settings.bootstrap_servers,
            state_dir=self._state_dir,
            slots=slots,
            topic_ids=self.changelog_ids(subtopology) if slots else {},
            group_id=self._settings.name,
            boot_id=self.boot_id,
            compression=str(self._config["compression.type"]),
            fetch_max_bytes=int(self._config["fetch.max.bytes"]),
            fetch_max_partition_bytes=int(self._config["max.partition.fetch.bytes"]),
            max_bytes_per_task=self._max_bytes,
            # Several chains read the same range, and one offset is committed for it: none of them may stop before the
            # others.
            ends_early=self._chains_of[subtopology.subtopology_id] == 1,
            time_ms=self.now_ms(),
            follows_traces=subtopology.follows_traces,
            **(self._of_transactions(subtopology) if self.exactly_once else {}),
        )

    def batch_limits(self, subtopology_id: str) -> BatchLimits:
        """Return the size limits of a subtopology. Exactly-once batches end within a third of their transaction
        timeout.
        """
        return BatchLimits(
            most_records=int(self._config["headrace.batch.max.records"]),
            most_bytes=self._max_bytes,
            target_ms=int(self._config["headrace.batch.target.ms"]),
            deadline_ms=self.transaction_timeout_ms / 3 if self.exactly_once else 0,
            bytes_end_fetches=self._chains_of[subtopology_id] == 1,
        )

    def batch_commit(
        self,
        subtopology: CompiledSubtopology,
        client: NetworkClient,
        *,
        announce: Callable[[list[str]], None],
        forget: Callable[[list[str]], None],
        epochs: CommitEpochs,
    ) -> BatchCommit:
        """Return the delivery guarantee for one subtopology; `SlotTransactions` explains the other arguments."""
        if not self.exactly_once:
            return AtLeastOnce(client, self._settings.name, epochs)
        transactions = SlotTransactions(
            client,
            group_id=self._settings.name,
            incarnation=self._incarnation,
            subtopology_id=subtopology.subtopology_id,
            topics=output_topics(subtopology),
            timeout_ms=self.transaction_timeout_ms,
            announce=announce,
            forget=forget,
            epochs=epochs,
        )
        self._transactions[subtopology.subtopology_id] = transactions
        return ExactlyOnce(client, self._settings.name, transactions)

    def _of_transactions(self, subtopology: CompiledSubtopology) -> dict[str, Any]:
        known = self._transactions.get(subtopology.subtopology_id)
        return {
            "exactly_once": True,
            # A sixth of the timeout for fetching, a third for the whole micro-batch (`batch_limits`): a transaction
            # that comes near its timeout is aborted by the coordinator and repeated for nothing.
            "fetch_deadline_ms": self.transaction_timeout_ms // 6,
            "transaction_timeout_ms": self.transaction_timeout_ms,
            "transaction_version": known.version if known is not None else 0,
            "shared_topics": shared_topics(subtopology),
        }

    def changelog_ids(self, subtopology: CompiledSubtopology) -> Mapping[str, str]:
        """Return the topic ids of its changelogs, which are part of the identity of stores. Raises HeadraceError."""
        with self._lock:
            missing = [topic for topic in subtopology.changelog_topics if topic not in self._topic_ids]
            if missing:
                found = self._client.known_topics(missing, refresh=True).topics
                self._topic_ids |= {name: str(topic.topic_id) for name, topic in found.items()}
        return {topic: self._topic_ids[topic] for topic in subtopology.changelog_topics}

    def forget_topic_ids(self, subtopology: CompiledSubtopology) -> None:
        """Look up changelog ids again before stores are opened: a changelog that was created anew has another id."""
        with self._lock:
            for topic in subtopology.changelog_topics:
                self._topic_ids.pop(topic, None)
