"""One broker: a coordinator shard behind the real `ShardRunner`, its log as bytes, topics, a disk with moods.

A crash loses everything but the log; the next start replays it through the real serde.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from headrace.broker.coordinators.coordinator_runtime import AppendFailed, Outcome, ShardRunner
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms
from headrace.simulator.broker_answers import follow_rule, plain_answer, refusal
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import Answer

__all__ = ["BrokerUnavailable", "SimulatedBroker"]

LogEntry = tuple[bytes, bytes | None]
# As the retry of a coordinator's timer whose write failed (CoordinatorRuntime: 500 ms).
RETRY_MS = 500


class BrokerUnavailable(Exception):
    """A connection to this address is refused."""


@dataclass(slots=True, eq=False)
class _Log:
    """`__consumer_offsets`, one partition. `refusals`: how many of the next appends the disk refuses. What bytes say is
    looked up when they were read before: replays read the same log again and again."""

    entries: list[LogEntry]
    refusals: int = 0
    _read: dict[LogEntry, CoordinatorRecord | None] = field(default_factory=dict)

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:  # noqa: ARG002 - the seam has it
        # All records of one append are refused or none: a coordinator's batch is one append.
        if self.refusals:
            self.refusals -= 1
            raise AppendFailed("the simulated disk is full")
        for record in records:
            value = None if record.value is None else serde.encode_value(record.value)
            self.entries.append((serde.encode_key(record.key), value))

    def read_all(self) -> Iterator[CoordinatorRecord]:
        return self.read(self.entries)

    def read(self, entries: Sequence[LogEntry]) -> Iterator[CoordinatorRecord]:
        for entry in entries:
            if entry not in self._read:
                self._read[entry] = serde.decode(*entry)
            record = self._read[entry]
            if record is not None:
                yield record


class SimulatedBroker:
    """Mutable. `watch` is called after each outcome that took effect."""

    def __init__(
        self,
        events: EventQueue,
        random: Random,
        configuration: GroupCoordinatorConfiguration,
        *,
        note: Callable[[str], None],
        watch: Callable[[], None],
    ) -> None:
        self._events = events
        self._random = random
        self.configuration = configuration
        self._note = note
        self._watch = watch
        self.log = _Log(entries=[])
        self.topics: dict[str, TopicImage] = {}
        self._image = MetadataImage()
        self._topic_ids = 0
        self.creations_fail = False
        self._behind = False
        self._armed_ms: int | None = None
        self.shard: GroupCoordinatorShard
        self._runner: ShardRunner | None = None
        self.starts = 0
        self.client = ""  # whose request is being served
        self._tokens = 0
        self._unanswered: dict[int, Answer] = {}
        self.start()

    # --- life ---

    @property
    def is_up(self) -> bool:
        return self._runner is not None

    @property
    def is_behind(self) -> bool:
        """Handle a log that refused a timer's records: the timer is set again when the shard catches up."""
        return self._behind

    def start(self) -> None:
        if self.is_up:
            return
        self.starts += 1
        # A new shard: soft state is lost in a crash, and hard state comes back only through the log.
        self.shard = GroupCoordinatorShard(0, self.configuration, self._image)
        runner = ShardRunner(self.shard, self.log)
        self._behind, self._armed_ms = False, None
        self._note(f"the broker starts with {len(self.log.entries)} records")
        outcome = runner.load(now_ms=self._events.now_ms)
        self._runner = runner
        self._report_outcome(outcome)

    def crash(self) -> None:
        self._runner = None
        self._note("the broker crashes")
        # Parked requests end with their connections. Each client notices and tries again.
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            answer(None)

    def replayed(self, entries: Sequence[LogEntry] | None = None) -> GroupCoordinatorShard:
        """Return a new shard that has replayed the log (or `entries`)."""
        shard = GroupCoordinatorShard(0, self.configuration, self._image)
        for record in self.log.read(self.log.entries if entries is None else entries):
            shard.replay(record)
        return shard

    def compacted(self) -> list[LogEntry]:
        """Return the last record of each key, in their order, tombstones included."""
        # Tombstones stay: compaction removes them only after delete.retention.ms (a day), and a replay must give the
        # same state with or without them.
        last = {key: index for index, (key, _) in enumerate(self.log.entries)}
        return [self.log.entries[index] for index in sorted(last.values())]

    # --- requests ---

    def serve(self, request: object, client: str, answer: Answer, *, api_version: int = 1) -> None:
        """Answer at once, or later when the rule parks the request."""
        # Down: the caller learns of it as of a closed connection.
        runner = self._runner
        if runner is None:
            answer(None)
            return
        plain = plain_answer(request, self._image)
        if plain is not None:
            answer(plain)
            return
        self._tokens += 1
        token, now_ms = self._tokens, self._events.now_ms
        context = RequestContext(token=token, client_id=client, client_host="/127.0.0.1", api_version=api_version)
        # Timers that are due run before the request, whatever order the event queue has for this instant.
        self._fire_due(runner)
        self.client = client
        if isinstance(request, m.streams_group_describe_request.StreamsGroupDescribeRequest):
            groups = self.shard.streams_group_describe(request.group_ids, context)
            response = m.streams_group_describe_response
            answer(response.StreamsGroupDescribeResponse(throttle_time=from_ms(0), groups=groups))
            return
        # The answer is registered before the rule runs, since the outcome of this very request may contain its reply.
        self._unanswered[token] = answer
        try:
            outcome = runner.run(
                lambda: follow_rule(self.shard, request, context, fresh_id=str(token), now_ms=now_ms), now_ms=now_ms
            )
        except CoordinatorError as error:
            del self._unanswered[token]
            answer(refusal(request, error))
            return
        self._report_outcome(outcome)

    # Not over the simulated network: a position is read until it succeeds, and a lost OffsetFetch only repeats.
    def committed(self, group_id: str, topic: str, partition: int) -> int:
        """Return the committed offset, 0 for none. Raises BrokerUnavailable."""
        if self._runner is None:
            raise BrokerUnavailable
        r = m.offset_fetch_request
        wanted = r.OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=(i32(partition),))
        request = r.OffsetFetchRequestGroup(group_id=GroupId(group_id), topics=(wanted,))
        context = RequestContext(token=1, client_id="", client_host="/", api_version=9)
        answer = self.shard.offset_fetch(request, context)
        return max(0, int(answer.topics[0].partitions[0].committed_offset))

    def delete_group(self, group_id: str) -> None:
        if self._runner is not None:
            runner, context = self._runner, RequestContext(token=0, client_id="", client_host="/", api_version=2)
            now_ms = self._events.now_ms
            try:
                outcome = runner.run(
                    lambda: self.shard.delete_groups([group_id], context, now_ms=now_ms), now_ms=now_ms
                )
                self._report_outcome(outcome)
            except CoordinatorError as error:
                self._note(f"the group is not deleted: {error.message}")

    # --- topics ---

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic. One that exists counts as deleted and created again."""
        self._topic_ids += 1
        self.topics[name] = TopicImage(name=name, topic_id=UUID(int=self._topic_ids), partitions=partitions)

    def metadata_changed(self) -> None:
        self._image = MetadataImage(version=self._image.version + 1, topics=dict(self.topics))
        if self._runner is not None:
            self._drain(self._runner.push_image(self._image, now_ms=self._events.now_ms))

    def reconfigure(self, configuration: GroupCoordinatorConfiguration) -> None:
        self.configuration = configuration
        if self._runner is not None:
            self._drain(self._runner.push_configuration(configuration, now_ms=self._events.now_ms))

    # --- parts ---

    def _fire_due(self, runner: ShardRunner) -> None:
        deadline_ms = runner.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._events.now_ms:
            self._drain(runner.fire_timers(now_ms=self._events.now_ms))

    def _drain(self, outcomes: Iterator[Outcome]) -> None:
        try:
            for outcome in outcomes:
                self._report_outcome(outcome)
        except AppendFailed:
            # The log refused a record, as a full disk would. Timers stay due until an append succeeds; one retry is
            # enough for all of them.
            if not self._behind:
                self._behind = True
                self._events.after(RETRY_MS, self._catch_up)
        self._arm()

    def _catch_up(self) -> None:
        self._behind = False
        if self._runner is not None:
            self._drain(self._runner.catch_up(self._image, now_ms=self._events.now_ms))

    def _report_outcome(self, outcome: Outcome) -> None:
        for event in outcome.events:
            self._note(f"{event.name} {' '.join(f'{name}={value}' for name, value in event.details)}")
        # Created some time later, as by a controller: heartbeats in between carry MISSING_INTERNAL_TOPICS, and a crash
        # may come first.
        wanted = tuple(topic for topic in outcome.topics_to_create if topic.name not in self.topics)
        if wanted and not self.creations_fail:
            self._events.after(self._random.randint(1, 80), lambda: self._create(wanted))
        self._arm()
        # The rules are checked before any client receives an answer: a broken rule is reported at the step that broke
        # it.
        self._watch()
        for reply in outcome.replies:
            answer = self._unanswered.pop(reply.token, None)
            if answer is not None:
                answer(reply.response)

    def _create(self, wanted: Sequence[object]) -> None:
        missing = [topic for topic in wanted if topic.name not in self.topics]  # type: ignore[attr-defined]
        for topic in missing:
            self.create_topic(topic.name, topic.partitions)  # type: ignore[attr-defined]
        if missing and self.is_up:
            self.metadata_changed()

    def _arm(self) -> None:
        runner = self._runner
        if runner is None:
            return
        deadline_ms = runner.next_deadline_ms()
        if deadline_ms is None or (self._armed_ms is not None and self._armed_ms <= deadline_ms):
            return
        self._armed_ms = deadline_ms

        def wake() -> None:
            # Events cannot be removed from the queue. One whose deadline was replaced, or whose broker has crashed,
            # does nothing.
            if self._runner is runner and self._armed_ms == deadline_ms:
                self._armed_ms = None
                self._fire_due(runner)
                self._arm()

        self._events.at(deadline_ms, wake)
