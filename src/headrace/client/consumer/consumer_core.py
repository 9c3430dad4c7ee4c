"""Common core of both consumers: subscriptions, positions, fetching, commits, and one turn of `poll`.

It uses three clients, and so three connections per broker, so that nothing waits behind a parked Fetch or JoinGroup:
one fetches, one looks up and commits, one belongs to the membership's thread. Used from one thread; only `wakeup` may
come from another.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from headrace.assignors.assignor import Assignor
from headrace.assignors.registry import parse_assignors
from headrace.client.consumer.commits import OffsetCommits, Offsets
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.client.consumer.consumer_types import OffsetReset, RebalanceListener, TopicPartition
from headrace.client.consumer.fetch_stream import FetchStream
from headrace.client.consumer.group_runner import GroupRunner
from headrace.client.consumer.rebalances import Rebalances
from headrace.client.consumer.start_positions import StartPositions
from headrace.client.consumer.subscription_state import SubscriptionState
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import GroupIdentity, SubscribedTopics, Topics, parse_topics
from headrace.client.membership.group_member import GroupMemberState
from headrace.client.network_client import NetworkClient
from headrace.client.security import ClientSecurity
from headrace.client.selector import WakeupSignal
from headrace.errors import BrokerError, ConfigError, Fenced, HeadraceError
from headrace.protocol.api_keys import ApiKey

__all__ = ["ConsumerCore", "DrivenConsumer", "Topics"]

log = logging.getLogger("headrace.client")

Rows = TypeVar("Rows")
# A waiting poll looks at least once a second at rebalances and due commits.
LONGEST_WAIT_S = 1.0
REBALANCE_LOOK_S = 0.01
REJOINING = frozenset({GroupMemberState.JOINING, GroupMemberState.ASSIGNING, GroupMemberState.SYNCING})


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenConsumer:
    """Access for a driver of a consumer: settings, further clients of the cluster, and topic ids of positions."""

    configuration: ConsumerConfiguration
    new_client: Callable[[], NetworkClient]
    topic_ids: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, uuid.UUID | None]]


class ConsumerCore:
    """Core of a consumer. Mutable. `headrace.client.consumer.consumer.Consumer` documents the public contract."""

    def __init__(
        self,
        configuration: ConsumerConfiguration,
        *,
        listener: RebalanceListener,
        listener_timeout_ms: int | None,
        strategy: Assignor | str | Sequence[Assignor | str] | None,
        security: ClientSecurity,
    ) -> None:
        self._configuration = configuration
        self._security = security
        self._strategy = configuration["partition.assignment.strategy"] if strategy is None else strategy
        parse_assignors(self._strategy)  # refused here rather than by the first poll
        self._reset = OffsetReset.parsed(configuration["auto.offset.reset"])
        self.group_id: str = configuration["group.id"]
        self._auto_commit = configuration["enable.auto.commit"] and bool(self.group_id)
        self.positions = SubscriptionState()
        self._wake = WakeupSignal()
        self._woken = False
        # Reentrant: a listener that runs within `poll` may call `commit` and `seek` of the same consumer.
        self._in_use = threading.RLock()
        self._closed = False
        self._wanted: SubscribedTopics | None = None
        self._subscription_due = False
        self._runner: GroupRunner | None = None
        # Three clients, so three connections per broker (see above); the third is the membership's
        # (`_start_membership`).
        self.control = self._client()
        self._fetching = FetchStream(self._client(), self.control, self.positions, configuration)
        self.metrics = ConsumerMetrics(configuration["client.id"])
        self.commits = OffsetCommits(
            self.control, self.group_id, self._committing_identity, self.metrics, topic_ids=self.positions.topic_ids
        )
        self._starts = StartPositions(
            self.control,
            self.positions,
            self.commits if self.group_id else None,
            reset=self._reset,
            isolation_level=configuration["isolation.level"],
            group_id=self.group_id,
        )
        interval_ms = configuration["max.poll.interval.ms"]
        self.rebalances = Rebalances(
            self.positions,
            self.commits,
            group_id=self.group_id,
            listener=listener,
            listener_timeout_ms=interval_ms if listener_timeout_ms is None else listener_timeout_ms,
            auto_commit=self._auto_commit,
            max_poll_interval_ms=interval_ms,
            metrics=self.metrics,
        )
        self._commit_due = time.monotonic() + configuration["auto.commit.interval.ms"] / 1000
        self._last_commit: dict[TopicPartition, int] = {}
        self.polls = 0

    @property
    def identity(self) -> GroupIdentity:
        """The member's identity now; the empty one without a group."""
        return GroupIdentity() if self._runner is None else self._runner.identity

    def _committing_identity(self) -> GroupIdentity:
        """Return the identity to commit with.

        A subscribed consumer commits only as a member. The coordinator would accept a commit without a member while the
        group is empty, and a consumer that lost its membership could then move the offset back behind other members'
        commits.
        """
        identity = self.identity
        if self._runner is not None and not identity.is_member:
            raise Fenced(
                "member-fenced",
                f"the consumer is not a member of {self.group_id} now, so it cannot commit",
                "Call poll, which joins the group again; uncommitted records are read again.",
                group=self.group_id,
            )
        return identity

    @property
    def subscription(self) -> SubscribedTopics | None:
        """The subscription, None without one."""
        return self._wanted

    # Subscribing and assigning.

    def subscribe(self, topics: Topics) -> None:
        """Subscribe; the next poll joins the group.

        Raises:
            ConfigError: There is no `group.id`, or the consumer has assigned partitions.
        """
        self._open("subscribe")
        self._need_group("subscribe")
        if self._wanted is None and len(self.positions):
            raise ConfigError("wrong-usage", "a consumer either subscribes or assigns", "call unsubscribe first")
        wanted = parse_topics(topics)
        # KIP-848 moved patterns to the coordinator; a classic coordinator knows no subscriptions at all.
        if wanted.broker_regex is not None and self._configuration["group.protocol"] == "classic":
            raise ConfigError(
                "wrong-usage",
                "a SubscriptionPattern is resolved by the coordinator of a consumer group, not of a classic one",
                "take group.protocol=consumer, or re.compile(…), which the client resolves",
            )
        self._wanted = wanted
        self._subscription_due = True
        self.rebalances.ended = None

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Assign exactly these partitions, without a group; those that stay keep their positions."""
        self._open("assign")
        if self._wanted is not None:
            raise ConfigError("wrong-usage", "a consumer either subscribes or assigns", "call unsubscribe first")
        self.positions.replace(TopicPartition(*each) for each in partitions)

    def unsubscribe(self, *, for_good: bool | None = None, timeout_s: float = 5.0) -> None:
        """Commit if automatic commits are on, revoke everything, and leave the group."""
        self._open("unsubscribe")
        with self._alone():
            self._leave(for_good=for_good, timeout_s=timeout_s)

    def _leave(self, *, for_good: bool | None, timeout_s: float) -> None:
        self.rebalances.ended = None
        runner, self._runner, self._wanted = self._runner, None, None
        if runner is None:
            if self._auto_commit:
                self._commit_consumed()
            self.positions.replace(())
            return
        try:
            # 1. The join in flight ends, 2. what was processed is committed and revoked, 3. the member leaves: a commit
            #    behind the leave would be refused.
            self._runner = runner  # commits still need the member's identity
            self._end_rebalance(runner, timeout_s)
            self.rebalances.give_back_all()
        finally:
            runner.leave(for_good=for_good, timeout_s=timeout_s)
            self._runner = None
            runner.stop()
            self.positions.replace(())

    def _end_rebalance(self, runner: GroupRunner, timeout_s: float) -> None:
        """Wait for a join in flight to end before everything is committed and revoked.

        A cooperative member keeps its partitions while it joins, and the coordinator refuses a commit of the previous
        generation then.
        """
        deadline = time.monotonic() + timeout_s
        while len(self.positions) and runner.state in REJOINING and time.monotonic() < deadline:
            time.sleep(REBALANCE_LOOK_S)
            self.rebalances.run_callbacks(runner)

    # Polling.

    def poll(self, timeout_s: float, take: Callable[[int], Rows], is_empty: Callable[[Rows], bool]) -> Rows:
        """Run one turn: rebalance events, positions, fetches, and rows as soon as there are some.

        Args:
            timeout_s: How long to wait for rows.
            take: Takes at most so many rows of what was fetched.
            is_empty: Whether rows hold none.
        """
        self._open("poll")
        with self._alone():
            if self._wanted is None and not len(self.positions):
                raise ConfigError("wrong-usage", "the consumer reads nothing yet", "subscribe or assign first")
            self.polls += 1
            self.metrics.poll_begins()
            deadline = time.monotonic() + timeout_s
            max_rows = self._configuration["max.poll.records"]
            wait_s = 0.0
            self._send_subscription()
            try:
                while True:
                    # 1. Rebalance events first: what is revoked must not be fetched, returned or committed afterwards.
                    if self._runner is not None:
                        self._runner.note_poll()
                        self._run_group_callbacks()
                    # 2. Automatic commits cover what earlier polls returned, hence before new rows are taken (Kafka's
                    #    at-least-once rule of ConsumerCoordinator.maybeAutoCommitOffsetsAsync).
                    self._auto_commit_if_due()
                    # 3. Find missing positions, then keep one Fetch per leader in flight.
                    self._starts.find()
                    self._fetching.send()
                    if self._fetching.recreated:
                        gone, self._fetching.recreated = self._fetching.recreated, set()
                        self.rebalances.begin_anew(sorted(each for each in gone if each in self.positions))
                        continue
                    # 4. The first turn waits 0 s: rows that are there are returned without a wait.
                    self._fetching.wait(wait_s, self._wake)
                    if self._fetching.out_of_range:
                        lost, self._fetching.out_of_range = self._fetching.out_of_range, []
                        self._starts.out_of_range(lost)
                        continue
                    # 5. The next Fetch is sent before the last one is decoded, so that network and CPU work together.
                    self._fetching.send()
                    rows = take(max_rows)
                    left_s = deadline - time.monotonic()
                    if not is_empty(rows) or left_s <= 0 or self._woken:
                        return rows
                    wait_s = min(left_s, LONGEST_WAIT_S)
            finally:
                self.metrics.poll_ended()
                self._woken = False
                if self._runner is not None:
                    self._runner.note_poll()

    def wakeup(self) -> None:
        """Make the waiting `poll`, or the next one, return at once. From any thread."""
        self._woken = True
        self._wake.set()

    def drive(self, around: Callable[[RebalanceListener], RebalanceListener]) -> DrivenConsumer:
        """Hand the consumer to a driver; see `Consumer.drive`.

        Raises:
            ConfigError: There is no `group.id`.
        """
        self.need_group("to be driven by another")
        # The driver commits what it has finished, not what polls returned.
        self._auto_commit = False
        self.rebalances.drive(around)
        return DrivenConsumer(
            configuration=self._configuration, new_client=self._client, topic_ids=self._bound_topic_ids
        )

    def _bound_topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, uuid.UUID | None]:
        """Return the topic ids of these positions, looked up where unknown. Raises CannotConnect."""
        wanted = [each for each in partitions if each in self.positions]
        self._starts.bind(wanted)
        return {each: self.positions[each].topic_id for each in wanted}

    def need_positions(self, partitions: Iterable[TopicPartition]) -> None:
        """Find the positions of these partitions."""
        self.need_assigned(partitions)
        self._starts.find()

    def need_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise ConfigError for a partition that is not assigned."""
        for each in partitions:
            if each not in self.positions:
                raise ConfigError(
                    "wrong-usage",
                    f"{each.topic}-{each.partition} is not assigned to this consumer",
                    "assignment() lists what is; a rebalance may have taken it",
                )

    def close(self, *, for_good: bool | None, timeout_s: float) -> None:
        """Leave as `unsubscribe` does, and end threads and connections. Calling it again has no effect."""
        if self._closed:
            return
        with self._alone():
            self._close(for_good=for_good, timeout_s=timeout_s)

    def _close(self, *, for_good: bool | None, timeout_s: float) -> None:
        try:
            self._leave(for_good=for_good, timeout_s=timeout_s)
        finally:
            self._closed = True
            with suppress(HeadraceError):
                self.commits.close()
            self._fetching.close()
            self.control.close()
            self._wake.close()

    # The parts.

    def _client(self) -> NetworkClient:
        settings = self._configuration
        return NetworkClient(
            settings.bootstrap_servers,
            client_id=settings["client.id"],
            request_timeout_ms=settings["request.timeout.ms"],
            api_timeout_ms=settings["default.api.timeout.ms"],
            security=self._security,
        )

    def _send_subscription(self) -> None:
        """Join with a new subscription, from the first poll on.

        A consumer that is never polled must not join: no thread could revoke its partitions, and every rebalance would
        wait for it.
        """
        if not self._subscription_due or self._wanted is None:
            return
        if self._runner is None:
            self._runner = self._start_membership(classic=self._configuration["group.protocol"] == "classic")
        self._runner.subscribe(self._wanted)
        self._subscription_due = False

    def _start_membership(self, *, classic: bool) -> GroupRunner:
        # A broker may offer the API and still refuse it (group.version=0); `_run_group_callbacks` handles that later.
        offered = None if classic else self.control.supported_range(ApiKey.CONSUMER_GROUP_HEARTBEAT)
        if not classic and offered is None:
            log.info("The brokers do not support KIP-848; joining %s as a classic group", self.group_id)
        membership = self._classic() if classic or offered is None else self._consumer()
        runner = GroupRunner(
            self._client(),
            membership,
            group_id=self.group_id,
            max_poll_interval_ms=self._configuration["max.poll.interval.ms"],
            wake=self._wake,
            metrics=self.metrics,
        )
        runner.start()
        return runner

    def _classic(self) -> ClassicMembership:
        settings = self._configuration
        return ClassicMembership(
            self.group_id,
            parse_assignors(self._strategy),
            chance=random.random,
            session_timeout_ms=settings["session.timeout.ms"],
            heartbeat_interval_ms=settings["heartbeat.interval.ms"],
            rebalance_timeout_ms=settings["max.poll.interval.ms"],
            metadata_max_age_ms=settings["metadata.max.age.ms"],
            instance_id=settings["group.instance.id"] or None,
            rack_id=settings["client.rack"] or None,
        )

    def _consumer(self) -> ConsumerMembership:
        settings = self._configuration
        return ConsumerMembership(
            self.group_id,
            # Kafka's `Uuid.toString`: 22 characters of URL-safe Base64. The member makes its id itself (KIP-1082).
            base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
            chance=random.random,
            rebalance_timeout_ms=settings["max.poll.interval.ms"],
            heartbeat_max_interval_ms=settings["headrace.heartbeat.max.interval.ms"],
            metadata_max_age_ms=settings["metadata.max.age.ms"],
            instance_id=settings["group.instance.id"] or None,
            rack_id=settings["client.rack"] or None,
            server_assignor=settings["group.remote.assignor"] or None,
        )

    def _run_group_callbacks(self) -> None:
        assert self._runner is not None
        try:
            self.rebalances.run_callbacks(self._runner)
        except BrokerError as error:
            # Only a refusal of the API itself. A pattern that the coordinator should resolve cannot be joined with as a
            # classic member.
            if not self._may_fall_back(error):
                raise
            log.info("The coordinator does not support KIP-848; joining %s as a classic group", self.group_id)
            self._runner.stop()
            self.rebalances.ended = None
            self._runner = self._start_membership(classic=True)
            assert self._wanted is not None
            self._runner.subscribe(self._wanted)

    def _may_fall_back(self, error: BrokerError) -> bool:
        return (
            error.code == "unsupported-api"
            and error.facts.get("api") == ConsumerMembership.api
            and self._wanted is not None
            and self._wanted.broker_regex is None
        )

    def _auto_commit_if_due(self) -> None:
        if not self._auto_commit or time.monotonic() < self._commit_due:
            return
        # Counted from the attempt, not from the answer: a slow coordinator does not stretch the interval.
        self._commit_due = time.monotonic() + self._configuration["auto.commit.interval.ms"] / 1000
        consumed = self.positions.consumed()
        # Only what moved: an idle consumer would otherwise write a record per partition every five seconds, for ever.
        moved = {each: at for each, at in consumed.items() if self._last_commit.get(each) != at}
        # Not while the member is out of its group: the commit would be refused, and the next one has everything.
        if moved and (self._wanted is None or self.identity.is_member):
            self._last_commit = consumed
            self.commits.commit_later(moved, self._auto_commit_done)

    def _auto_commit_done(self, _: Offsets, error: HeadraceError | None) -> None:
        if error is not None:
            self._last_commit = {}  # the next one commits all positions again
            log.warning("Automatic commit of %s failed; retrying with the next one: %s", self.group_id, error)

    def _commit_consumed(self) -> None:
        consumed = self.positions.consumed()
        if consumed:
            try:
                self.commits.commit(consumed)
            except HeadraceError as error:
                log.warning("The last commit of %s failed; records may be read again: %s", self.group_id, error)

    def _need_group(self, what: str) -> None:
        if not self.group_id:
            raise ConfigError("wrong-usage", f"{what} needs a group", "give group_id (group.id)", key="group.id")

    def need_group(self, what: str) -> None:
        """Raise ConfigError if there is no `group.id`, or the consumer was closed."""
        self._open(what)
        self._need_group(what)

    def _open(self, what: str) -> None:
        if self._closed:
            raise ConfigError("wrong-usage", f"{what} of a consumer that was closed", "make a new one")

    def _alone(self) -> _OneThread:
        return _OneThread(self._in_use)


class _OneThread:
    """Guard that lets one thread at a time use a consumer and raises ConfigError in a second one."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConfigError(
                "wrong-usage",
                "two threads use one consumer at the same time",
                "give each thread a consumer of its own; only wakeup may come from another thread",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
