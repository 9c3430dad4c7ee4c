"""GroupCoordinatorShard, the interface of the rules: one method per request, timers and metadata in, results out.

A write returns a `CoordinatorResult` and changes no hard state: the runner appends the records, calls `replay` for
each, then `apply_timers`, and sends the replies. A refused request raises `CoordinatorError`; nothing was changed then.
Reads return parts of wire messages. `on_timers`, `on_metadata_image` and `on_configuration` are lazy: the runner takes
each result before it asks for the next, which is computed on the state that the last one left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import cast

from kio.schema.types import GroupId

from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import TaskAssignor
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.classic_groups import ClassicGroups, describe_group
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.consumer.group_context import MayDescribe
from headrace.coordinator.consumer_groups import ConsumerGroups
from headrace.coordinator.group_conversion import DowngradeRule
from headrace.coordinator.group_registry import Group, GroupRegistry, GroupType, ShardState, delete_group, list_groups
from headrace.coordinator.live_migration import LiveMigration
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.committed_offsets import offset_fetch
from headrace.coordinator.offsets.offset_commit import offset_commit, txn_offset_commit
from headrace.coordinator.offsets.offset_deletion import (
    OFFSET_EXPIRY,
    deleted_topic_tombstones,
    expiry_results,
    offset_delete,
)
from headrace.coordinator.records.serde import encode_key, encode_value
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
    TimerKey,
    TimerQueue,
)
from headrace.coordinator.streams_groups import StreamsGroups
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import (
    consumer_group_describe_response,
    consumer_group_heartbeat_request,
    delete_groups_response,
    describe_groups_response,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    list_groups_response,
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
    offset_fetch_response,
    streams_group_describe_response,
    streams_group_heartbeat_request,
    sync_group_request,
    txn_offset_commit_request,
)

__all__ = ["GroupCoordinatorShard"]


class GroupCoordinatorShard:
    """The groups of one partition of `__consumer_offsets`. Mutable: `replay` writes hard state, and only it does."""

    def __init__(
        self,
        partition: int,
        configuration: GroupCoordinatorConfiguration,
        image: MetadataImage,
        *,
        assignor: TaskAssignor | None = None,
    ) -> None:
        self.partition = partition
        # Not always the state's image: tombstones of deleted topics are due from this one on (`_follow_image`).
        self._followed_image = image
        # The registry is the hard state, `_state` bundles it with what rules read besides: settings, image, timers.
        self._registry = GroupRegistry()
        self._timers = TimerQueue()
        self._state = ShardState(configuration=configuration, image=image, registry=self._registry, timers=self._timers)
        self.streams = StreamsGroups(self._state, assignor or StickyTaskAssignor())
        self.classic = ClassicGroups(self._state)
        downgrades = DowngradeRule(self._state, self.classic)
        self.consumer = ConsumerGroups(self._state, downgrades)
        # One object per type of group. Order matters nowhere: `owns` is exclusive.
        self._kinds: tuple[GroupType, ...] = (self.streams, self.classic, self.consumer)
        self._migration = LiveMigration(self._state, self.classic, self.consumer, downgrades)

    # --- membership ---

    def streams_group_heartbeat(
        self,
        request: streams_group_heartbeat_request.StreamsGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process StreamsGroupHeartbeat (API 88): a member joins, heartbeats or leaves. Raises CoordinatorError."""
        return self.streams.heartbeat(request, context, now_ms=now_ms)

    def consumer_group_heartbeat(
        self,
        request: consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
        may_describe: MayDescribe | None = None,
    ) -> CoordinatorResult:
        """Process ConsumerGroupHeartbeat (API 68): a member joins, heartbeats or leaves. Raises CoordinatorError.

        `may_describe`: whether the client may describe a topic, by name; None allows every topic.
        """
        return self._migration.consumer_group_heartbeat(request, context, now_ms=now_ms, may_describe=may_describe)

    def join_group(
        self, request: join_group_request.JoinGroupRequest, context: RequestContext, *, fresh_id: str, now_ms: int
    ) -> CoordinatorResult:
        """Process JoinGroup (API 11) of a classic member of a classic or consumer group.

        `fresh_id`: a unique text, from which the id of a new member is made. Raises CoordinatorError.
        """
        return self._migration.join_group(request, context, fresh_id=fresh_id, now_ms=now_ms)

    def sync_group(
        self, request: sync_group_request.SyncGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process SyncGroup (API 14): a member requests its assignment; the leader sends all assignments."""
        return self._migration.sync_group(request, context, now_ms=now_ms)

    def heartbeat(
        self, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process Heartbeat (API 12) of a classic member. Raises CoordinatorError."""
        return self._migration.heartbeat(request, context, now_ms=now_ms)

    def leave_group(
        self, request: leave_group_request.LeaveGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process LeaveGroup (API 13), of members or an operator. Raises CoordinatorError if the group id is empty."""
        return self._migration.leave_group(request, context, now_ms=now_ms)

    # --- offsets and deletion ---

    def offset_commit(
        self, request: offset_commit_request.OffsetCommitRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process OffsetCommit (API 8). Raises CoordinatorError when the whole request is refused."""
        group = self._registry.get(request.group_id)
        result = offset_commit(
            group,
            request,
            context,
            image=self._state.image,
            metadata_max_bytes=self._state.configuration.offset_metadata_max_bytes,
            now_ms=now_ms,
        )
        if isinstance(group, ClassicGroup):
            return self.classic.on_offset_commit(group, request.member_id, result, now_ms=now_ms)
        return result

    def txn_offset_commit(
        self, request: txn_offset_commit_request.TxnOffsetCommitRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process TxnOffsetCommit (API 28) of a verified transaction. Raises CoordinatorError when it is refused."""
        return txn_offset_commit(
            self._registry.get(request.group_id),
            request,
            context,
            image=self._state.image,
            metadata_max_bytes=self._state.configuration.offset_metadata_max_bytes,
            now_ms=now_ms,
        )

    def offset_delete(
        self,
        request: offset_delete_request.OffsetDeleteRequest,
        context: RequestContext,
        *,
        now_ms: int,  # noqa: ARG002 - every write has it
    ) -> CoordinatorResult:
        """Process OffsetDelete (API 47). Raises CoordinatorError when the whole request is refused."""
        return offset_delete(
            self._registry.offsets,
            self._registry.pending_offsets,
            self._registry.get(request.group_id),
            request,
            context,
        )

    def delete_groups(
        self,
        group_ids: Iterable[str],
        context: RequestContext,
        *,
        now_ms: int,  # noqa: ARG002 - every write has it
    ) -> CoordinatorResult:
        """Process DeleteGroups (API 42) for groups of this shard, with an error code per group."""
        records: list[CoordinatorRecord] = []
        timers: list[CancelTimer] = []
        results = []
        # A group that is listed twice is answered once. No record is replayed before the whole request is decided, so a
        # second entry would write all tombstones again.
        for group_id in dict.fromkeys(group_ids):
            code = ErrorCode.none
            try:
                registry = self._registry
                group = registry.get(group_id)
                # Offsets and group in one batch: a crash in between would leave offsets without a group, which would
                # look like a simple consumer's.
                records.extend(delete_group(group, group_id, registry.offsets, registry.pending_offsets))
                for kind in self._kinds:
                    timers.extend(kind.timers_to_cancel(group_id))
            except CoordinatorError as error:
                code = error.code
            results.append(delete_groups_response.DeletableGroupResult(group_id=_group_id(group_id), error_code=code))
        response = delete_groups_response.DeleteGroupsResponse(throttle_time=from_ms(0), results=tuple(results))
        return CoordinatorResult(
            records=tuple(records),
            timers=tuple(timers),
            replies=(Reply(token=context.token, response=response),),
        )

    # --- reads ---

    def streams_group_describe(
        self, group_ids: Iterable[str], context: RequestContext, *, wants_description: bool = False
    ) -> tuple[streams_group_describe_response.DescribedGroup, ...]:
        """Describe streams groups (API 89). A group that is missing or of another type carries GROUP_ID_NOT_FOUND."""
        return self.streams.describe(group_ids, context, wants_description=wants_description)

    def consumer_group_describe(
        self, group_ids: Iterable[str], context: RequestContext
    ) -> tuple[consumer_group_describe_response.DescribedGroup, ...]:
        """Describe consumer groups (API 69). A group that is missing or of another type carries GROUP_ID_NOT_FOUND."""
        return self.consumer.describe(group_ids, context)

    def describe_groups(
        self, group_ids: Iterable[str], context: RequestContext
    ) -> tuple[describe_groups_response.DescribedGroup, ...]:
        """Describe groups of any type (API 15)."""
        return tuple(describe_group(self._registry.get(each), each, context.api_version) for each in group_ids)

    def has_group(self, group_id: str) -> bool:
        return self._registry.get(group_id) is not None

    @property
    def group_count(self) -> int:
        return len(self._registry)

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> tuple[list_groups_response.ListedGroup, ...]:
        """List the groups of this shard (API 16)."""
        return list_groups(self._registry.all(), states, types)

    def offset_fetch(
        self,
        group: offset_fetch_request.OffsetFetchRequestGroup,
        context: RequestContext,  # noqa: ARG002 - a later version of the API answers by it
        *,
        require_stable: bool = False,
    ) -> offset_fetch_response.OffsetFetchResponseGroup:
        """Return the offsets of one group (API 9). Raises CoordinatorError when the whole group is refused."""
        return offset_fetch(
            self._registry.offsets,
            self._registry.get(group.group_id),
            group,
            image=self._state.image,
            # Without `require_stable` a client reads what was committed before the open transaction (clients before
            # KIP-447).
            unstable=self._registry.pending_offsets if require_stable else None,
        )

    def group(self, group_id: str) -> Group | None:
        """Return a group, for checkers. Do not change it."""
        return self._registry.get(group_id)

    def deadline_ms(self, key: TimerKey) -> int | None:
        """Return the time at which a timer fires, for checkers; None if it is not set."""
        return self._timers.deadline_ms(key)

    # --- what happens by itself ---

    def on_timers(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        """Fire due timers, each once; results without anything to do are left out."""
        while (key := self._timers.pop_due(now_ms)) is not None:
            # The only timer of the shard itself; all others belong to a group.
            if key == OFFSET_EXPIRY:
                yield from self._expire_offsets(now_ms)
                continue
            result = self._fire(key, now_ms)
            if result is not None:
                yield result

    def on_metadata_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[CoordinatorResult]:
        """Take the new image, then move every group on that it concerns; offsets of deleted topics go.

        The image counts from the call on, also when the iterator is not drained.
        """
        self._state.image = image
        self._invalidate_all()
        return self._follow_image(now_ms)

    def on_configuration(
        self, configuration: GroupCoordinatorConfiguration, *, now_ms: int
    ) -> Iterator[CoordinatorResult]:
        """Take new settings, then move every group on whose assignment they concern; Kafka waits for a heartbeat of
        one of the group's members. Timeouts count from the next heartbeat on, as in Kafka.

        The settings count from the call on, also when the iterator is not drained.
        """
        self._state.configuration = configuration
        self._invalidate_all()
        return self._follow_changes(now_ms)

    def on_loaded(self, *, now_ms: int) -> CoordinatorResult:
        """Return, after the log was replayed, the timers that a fresh shard needs."""
        self._invalidate_all()
        timers: list[SetTimer | CancelTimer] = [self._next_expiry(now_ms)]
        for kind in self._kinds:
            timers.extend(kind.on_loaded(now_ms=now_ms))
        return CoordinatorResult(timers=tuple(timers))

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next timer; None if none is set."""
        return self._timers.next_deadline_ms()

    def apply_timers(self, timers: tuple[SetTimer | CancelTimer, ...]) -> None:
        self._timers.apply(timers)
        for timer in timers:
            # Every heartbeat sets its session timer. If that made repeatable replies invalid, none would ever be
            # repeated.
            if timer.key.kind != "session" or isinstance(timer, CancelTimer):
                self._invalidate(timer.key.group_id)

    # --- hard state ---

    def replay(self, record: CoordinatorRecord) -> None:
        """Write hard state. Raises CorruptRecord for a record that cannot follow what was replayed before."""
        self._registry.replay(record)
        for kind in self._kinds:
            kind.on_replayed(record)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Write hard state, as `replay` does: the marker of a producer's transaction is in this shard's log."""
        self._registry.end_transaction(producer_id, committed=committed)

    def digest(self) -> str:
        """Return a hash of the hard state; equal states have equal digests."""
        settled = [each for each in self._registry.hard_state() if each.producer_id < 0]
        encoded = sorted((encode_key(each.key), encode_value(each.value)) for each in settled)
        # Committed offsets and groups are compared as a set of encoded records, because two logs with the same outcome
        # may have written them in another order. Pending offsets are not: which one wins depends on their order.
        for counts in (False, True):  # of pending offsets the order matters
            for each in self._registry.pending_offsets.hard_state(counts=counts):
                encoded.append((encode_key(each.key), encode_value(each.value)))
                encoded.append((b"%d" % each.producer_id, b"counts" if counts else b"overtaken"))
        content = hashlib.sha256()
        for part in (part for pair in encoded for part in pair):
            # With lengths, so that no two lists of parts are one text.
            content.update(len(part).to_bytes(4, "big") + part)
        return content.hexdigest()

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        """Yield records that rebuild this shard, as a compacted log holds them."""
        return self._registry.hard_state()

    # --- parts ---

    def _invalidate(self, group_id: str) -> None:
        for kind in self._kinds:
            kind.invalidate(group_id)

    def _invalidate_all(self) -> None:
        for kind in self._kinds:
            kind.invalidate_all()

    def _fire(self, key: TimerKey, now_ms: int) -> CoordinatorResult | None:
        self._invalidate(key.group_id)
        group = self._registry.get(key.group_id)
        if group is None:
            return None
        # The group may have changed its type since the timer was set; its new owner does not know that kind of timer,
        # and does nothing.
        owner = next((kind for kind in self._kinds if kind.owns(group)), None)
        return None if owner is None else owner.fire(key, now_ms=now_ms)

    def _expire_offsets(self, now_ms: int) -> Iterator[CoordinatorResult]:
        retention_ms = self._state.configuration.offsets_retention_minutes * 60_000
        registry = self._registry
        yield from expiry_results(
            registry.all(), registry.offsets, registry.pending_offsets, retention_ms=retention_ms, now_ms=now_ms
        )
        yield CoordinatorResult(timers=(self._next_expiry(now_ms),))

    def _next_expiry(self, now_ms: int) -> SetTimer:
        interval_ms = self._state.configuration.offsets_retention_check_interval_ms
        return SetTimer(key=OFFSET_EXPIRY, deadline_ms=now_ms + interval_ms)

    def _follow_image(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Yield tombstones of deleted topics' offsets, then the changes of each group.

        The image counts as followed only after the tombstones are written: if the runner does not return for the next
        result, they are due with the next image.
        """
        image = self._state.image
        offsets, pending = self._registry.offsets, self._registry.pending_offsets
        tombstones = deleted_topic_tombstones(offsets, pending, self._followed_image, image)
        if tombstones:
            yield CoordinatorResult(records=tombstones)
        self._followed_image = image
        yield from self._follow_changes(now_ms)

    def _follow_changes(self, now_ms: int) -> Iterator[CoordinatorResult]:
        for kind in self._kinds:
            yield from kind.follow_changes(now_ms=now_ms)


def _group_id(group_id: str) -> GroupId:
    return cast("GroupId", group_id)
