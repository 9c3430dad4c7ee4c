"""Stores of a running instance as queries see them: whose task it is, and a view that is right at one moment.

An active task is answered for by this instance while all of this holds, before the view is taken and after:

1. The group counts this member in, and the member's thread has run within the last two seconds. A process that was
   suspended may have lost its tasks without knowing it, so it is silent until it has run again for as long.
2. The task is running here: opened, and not lost. A task that moves away runs here until its last micro-batch ends, and
   no other member opens it before (KIP-1071).
3. The view is at the last micro-batch that was committed here. A store that was set aside is at none.

So a view is never older than what this instance has committed. A commit of this very moment may be in the topic first.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.client.membership.endpoints import Endpoint, EndpointMap, owner_of
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError, StateError
from headrace.spark.queries.aggregate_queries import AggregateQueries, Evaluation, refuse_query
from headrace.spark.queries.state_requests import Elsewhere, QueriedStore, View, ViewFacts
from headrace.spark.runtime.chains import source_topics
from headrace.spark.runtime.stores.store_files import path_of_store
from headrace.spark.runtime.stores.store_readers import StoreReaders
from headrace.spark.runtime.stores.store_records import BatchKey, StoreIdentity, StorePosition
from headrace.spark.topology.nodes import Aggregate, CompiledTopology, RepartitionSource

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.replicas import ReplicaProgress

__all__ = ["ApplicationState", "InstanceState", "queried_stores", "refused_stores"]

TRIES = 5  # to find the store at the last committed micro-batch, while micro-batches are committed
PAUSE_S = 0.005
COUNTS_AGE_S = 60.0
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")  # it becomes part of a header


def queried_stores(compiled: CompiledTopology, evaluate: Evaluation | None) -> dict[str, QueriedStore]:
    """Return the stores of an application that can be queried, by their names."""
    found: dict[str, QueriedStore] = {}
    for part in compiled.subtopologies:
        for branch in part.branches:
            source = part.sources[branch.source_index]
            for operator in (branch.closed, branch.operator):
                if isinstance(operator, Aggregate) and refuse_query(operator) is None:
                    found[operator.name] = QueriedStore(
                        subtopology=part.subtopology_id,
                        topic=source_topics(source)[0],
                        is_repartitioned=isinstance(source, RepartitionSource),
                        queries=AggregateQueries(operator, evaluate),
                    )
    return found


def refused_stores(compiled: CompiledTopology) -> dict[str, str]:
    """Return the stores that cannot be queried, by their names, each with the reason."""
    operators = [
        operator
        for part in compiled.subtopologies
        for branch in part.branches
        for operator in (branch.head, branch.deduplication, branch.operator)
        if operator is not None
    ]
    return {each.name: reason for each in operators if (reason := refuse_query(each)) is not None}


class InstanceState(Protocol):
    """State of a running instance that queries depend on. See `RunningInstance`."""

    @property
    def member_epoch(self) -> int | None:
        """Epoch of this member; None while it is not in the group."""

    @property
    def is_steady(self) -> bool:
        """See `MemberPulse`."""

    @property
    def endpoints(self) -> EndpointMap:
        """Partitions that each instance answers for, as last received."""

    @property
    def state_dir(self) -> Path:
        """Directory of the stores."""

    def committed(self, subtopology: str) -> Mapping[int, BatchKey | None]:
        """Return the last committed micro-batch of each task that runs here and is not lost."""

    def copies(self) -> Mapping[tuple[str, int], ReplicaProgress]:
        """Return the progress of copies that are kept current."""

    def identity_of(self, subtopology: str, changelog_topic: str, schema_hash: str) -> StoreIdentity:
        """Return the identity of a usable store of this changelog. Raises HeadraceError."""


class ApplicationState:
    """See `StateAccess`. Its methods may be called from any thread."""

    def __init__(
        self,
        instance: InstanceState,
        stores: Mapping[str, QueriedStore],
        *,
        client: NetworkClient,
        own: Endpoint,
        acceptable_lag: int,
    ) -> None:
        """Look at an instance.

        Args:
            instance: The instance.
            stores: Those that can be queried.
            client: A client of its own, which is closed with this object.
            own: The endpoint of this instance.
            acceptable_lag: Changelog records that a copy may lack at most to answer queries.
        """
        self._instance, self.stores, self._client, self._own = instance, stores, client, own
        self._acceptable_lag = acceptable_lag
        self._readers = StoreReaders()
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, float]] = {}  # by topic, with the time (monotonic) of the look-up

    def close(self) -> None:
        self._readers.close()
        self._client.end()
        self._client.close()

    def partitions(self, store: QueriedStore) -> int:
        """Return the number of the store's tasks. Raises HeadraceError."""
        with self._lock:  # a client belongs to one thread at a time
            count, looked_s = self._counts.get(store.topic, (0, 0.0))
            if not count or time.monotonic() - looked_s > COUNTS_AGE_S:
                found = self._client.known_topics([store.topic], refresh=True, timeout_ms=5_000).topics
                count = len(found[store.topic].partitions)
                self._counts[store.topic] = count, time.monotonic()
            return count

    @contextlib.contextmanager
    def view(self, store: QueriedStore, partition: int, *, allow_stale: bool) -> Iterator[View]:
        """Return a view of the committed values of one task. See `StateAccess`."""
        if allow_stale and partition not in self._instance.committed(store.subtopology):
            copy = self._instance.copies().get((store.subtopology, partition))
            if copy is not None:
                with self._view_of_copy(store, partition, copy) as found:
                    yield found
                return
        for _ in range(TRIES):
            committed = self._committed(store, partition)
            with self._readers.view(self._path(store, partition), committed) as view:
                # The transaction has begun: what is read from here on is of this moment. So is the ownership, if it
                # still holds now.
                after = self._committed(store, partition)
                position = view.position
                if position is not None and not position.restoring and position.batch in (committed, after):
                    yield view, self._facts("active", position, 0)
                    return
            time.sleep(PAUSE_S)
        raise self._moving(store, partition, "its store is being rebuilt")

    @contextlib.contextmanager
    def _view_of_copy(self, store: QueriedStore, partition: int, copy: ReplicaProgress) -> Iterator[View]:
        # Only the whole of a compacted changelog is a state: a copy that lacks much may lack keys that were never
        # deleted. Near its end it is the state of a moment ago.
        lag = max(0, copy.end - copy.position)
        if lag > self._acceptable_lag:
            raise self._moving(store, partition, f"the copy here lacks {lag} records")
        spec = store.queries.store
        with self._readers.view(self._path(store, partition), None) as view:
            identity = self._instance.identity_of(store.subtopology, spec.changelog_topic, spec.rows.hash)
            if view.position is None or view.difference(identity) is not None:
                raise self._moving(store, partition, "the copy here is being made")
            yield view, self._facts("standby", view.position, lag)

    def _committed(self, store: QueriedStore, partition: int) -> BatchKey:
        """Return the last committed micro-batch of a task that this instance answers for.

        Raises:
            Elsewhere: another instance has it.
            StateError: state-moving.
        """
        instance = self._instance
        if instance.member_epoch is not None and instance.is_steady:
            committed = instance.committed(store.subtopology).get(partition)
            if committed is not None:
                return committed
        owner = owner_of(instance.endpoints, store.topic, partition)
        if owner is not None and owner != self._own and _HOST.fullmatch(owner.host):
            raise Elsewhere(owner)
        raise self._moving(store, partition, "no instance has it at the moment, as far as this one knows")

    def _facts(self, role: str, position: StorePosition, lag: int) -> ViewFacts:
        return ViewFacts(
            role=role,
            changelog_offset=position.changelog_offset,
            lag=lag,
            input_offsets={name.rpartition("@")[0] or name: at for name, at in position.input_offsets.items()},
            member_epoch=self._instance.member_epoch or 0,
        )

    def _path(self, store: QueriedStore, partition: int) -> Path:
        return path_of_store(self._instance.state_dir, store.subtopology, partition, store.queries.store.name)

    def _moving(self, store: QueriedStore, partition: int, why: str) -> HeadraceError:
        return StateError(
            "state-moving",
            f"task {store.subtopology}_{partition} cannot answer: {why}",
            "Ask again in a second.",
        )
