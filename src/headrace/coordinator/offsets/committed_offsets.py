"""CommittedOffsets and PendingOffsets: offsets of a shard's groups, committed or in open transactions; and OffsetFetch.

Both are hard state, changed only by replay. OffsetFetch does not return pending offsets, but they make its answer
unstable (KIP-447), and a group is not deleted while it has some. In Kafka: `OffsetMetadataManager`.

OffsetFetch (API 9): version 8 brought several groups, version 9 member epochs, version 10 topic ids. The function here
answers one group's part.
"""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator
from typing import Generic, TypeVar, cast

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.member_validation import check_consumer_fetch
from headrace.coordinator.records.schemas import (
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_record,
    pending_offset_record,
)
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import offset_fetch_request as req
from headrace.protocol.messages import offset_fetch_response as res

__all__ = ["CommittedOffsets", "OpenTransactions", "PendingOffsets", "TopicPartition", "offset_fetch"]


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OpenTransactions(Generic[Key, Value]):
    """Pending offsets by producer id and key. Mutable; updated with every record in the order of the log."""

    __slots__ = ("_by_key", "_by_producer", "_written")

    def __init__(self) -> None:
        # The number orders records of one key; `counts` is False once something later has been decided.
        self._by_producer: dict[int, dict[Key, tuple[int, Value]]] = {}
        self._by_key: dict[Key, dict[int, bool]] = {}
        self._written = 0

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def keys(self) -> Iterator[Key]:
        """Return the keys that some transaction has written to."""
        return iter(self._by_key)

    def write(self, producer_id: int, key: Key, value: Value) -> None:
        """Add a record of a transaction."""
        self._written += 1
        self._by_producer.setdefault(producer_id, {})[key] = (self._written, value)
        self._by_key.setdefault(key, {})[producer_id] = True

    def supersede(self, key: Key) -> None:
        """Apply a record outside of transactions. Pending offsets written before it never count any more."""
        # Not deleted: the transaction is still open, and its abort or commit must find the key.
        producers = self._by_key.get(key)
        if producers is not None:
            self._by_key[key] = dict.fromkeys(producers, False)

    def drop(self, key: Key) -> None:
        """Apply a tombstone."""
        # A deletion covers undecided values too. Otherwise a commit that arrives later would bring a deleted offset
        # back.
        for producer_id in self._by_key.pop(key, ()):
            written = self._by_producer[producer_id]
            del written[key]
            if not written:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, *, committed: bool) -> tuple[list[tuple[Key, Value]], list[Key]]:
        """Apply a marker: return the offsets that count now, in the order of the log, and all keys of the transaction.

        A marker of a transaction that wrote nothing, or was ended before, is nothing.
        """
        written = self._by_producer.pop(producer_id, {})
        decided = []
        # 1. A committed record counts unless a later one was decided before (`counts`).
        # 2. In turn it makes earlier undecided records of the same key irrelevant: the order of the log decides, not
        #    the order of the markers.
        for key, (number, value) in written.items():
            producers = self._by_key[key]
            counts = producers.pop(producer_id)
            if not producers:
                del self._by_key[key]
            if committed and counts:
                decided.append((number, key, value))
                for other in producers:
                    if self._by_producer[other][key][0] < number:
                        producers[other] = False
        decided.sort(key=lambda each: each[0])
        return [(key, value) for _, key, value in decided], list(written)

    def undecided(self, *, counts: bool) -> Iterator[tuple[int, Key, Value]]:
        """(producer id, key, value) in the order of the log: those that a commit would make count, or the others."""
        found = [
            (number, producer_id, key, value)
            for producer_id, written in self._by_producer.items()
            for key, (number, value) in written.items()
            if self._by_key[key][producer_id] is counts
        ]
        found.sort(key=lambda each: each[0])
        for _, producer_id, key, value in found:
            yield producer_id, key, value


TopicPartition = tuple[str, int]
_NO_OFFSETS: dict[TopicPartition, OffsetCommitValue] = {}


class CommittedOffsets:
    """group id → (topic, partition) → offset."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetCommitValue]] = {}

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self._groups.setdefault(key.group, {})[key.topic, key.partition] = value
            return
        offsets = self._groups.get(key.group)
        if offsets is not None:
            offsets.pop((key.topic, key.partition), None)
            if not offsets:
                del self._groups[key.group]

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._groups.get(group_id, {}).get((topic, partition))

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """Return the offsets of a group in the order of topic and partition."""
        return sorted(self._groups.get(group_id, {}).items(), key=lambda item: item[0])

    def items_of(self, group_id: str) -> ItemsView[TopicPartition, OffsetCommitValue]:
        """Return the offsets of a group in the order of their first commits, for callers that sort."""
        return self._groups.get(group_id, _NO_OFFSETS).items()

    def count(self, group_id: str) -> int:
        return len(self._groups.get(group_id, _NO_OFFSETS))

    def group_ids(self) -> list[str]:
        return sorted(self._groups)

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        for group_id in self.group_ids():
            for (topic, partition), value in self.of_group(group_id):
                yield offset_commit_record(group_id, topic, partition, value)


class PendingOffsets:
    """producer id → (group, topic, partition) → offset."""

    __slots__ = ("_groups", "_open")

    def __init__(self) -> None:
        self._open: OpenTransactions[OffsetCommitKey, OffsetCommitValue] = OpenTransactions()
        self._groups: dict[str, dict[OffsetCommitKey, None]] = {}

    def replay(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._open.write(producer_id, key, value)
        self._groups.setdefault(key.group, {})[key] = None

    def replay_outside(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Replay a committed offset, or its tombstone, outside of transactions."""
        # Without open transactions, which is nearly always, a commit costs one comparison more.
        if not self._open:
            return
        if value is not None:
            self._open.supersede(key)
        elif key in self._open:
            self._open.drop(key)
            self._forget(key)

    def end(
        self, producer_id: int, *, committed: bool
    ) -> tuple[list[tuple[OffsetCommitKey, OffsetCommitValue]], list[str]]:
        """End a transaction. Returns the offsets committed now, and the groups that it concerned."""
        decided, keys = self._open.end(producer_id, committed=committed)
        for key in keys:
            # Another open transaction may have written the same partition; then the group still has something pending.
            if key not in self._open:
                self._forget(key)
        return decided, list(dict.fromkeys(key.group for key in keys))

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        if not self._open:
            return False
        return OffsetCommitKey(group=group_id, topic=topic, partition=partition) in self._open

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[TopicPartition]:
        """Return the offsets of a group in the order of topic and partition."""
        return sorted((key.topic, key.partition) for key in self._groups.get(group_id, ()))

    def group_ids(self) -> list[str]:
        return sorted(self._groups)

    def hard_state(self, *, counts: bool) -> Iterator[CoordinatorRecord]:
        """Those that a commit would make the group's offsets, to be replayed after the committed ones; or those that
        a later record has supersede, to be replayed before.

        In the order of keys, those of one key in the order of the log: a shard that was loaded says it in the same way
        as the one that wrote the log.
        """
        undecided = self._open.undecided(counts=counts)
        for producer_id, key, value in sorted(undecided, key=lambda each: _place(each[1])):
            yield pending_offset_record(key, value, producer_id)

    def _forget(self, key: OffsetCommitKey) -> None:
        keys = self._groups[key.group]
        del keys[key]
        if not keys:
            del self._groups[key.group]


def _place(key: OffsetCommitKey) -> tuple[str, str, int]:
    return key.group, key.topic, key.partition


_NO_OFFSET = -1


def offset_fetch(
    offsets: CommittedOffsets,
    group: object | None,
    request: req.OffsetFetchRequestGroup,
    *,
    image: MetadataImage,
    unstable: PendingOffsets | None = None,
) -> res.OffsetFetchResponseGroup:
    """Return the committed offsets of `topics`, or all of the group for null. A missing offset is -1.

    `unstable`: pending offsets, whose partitions are UNSTABLE_OFFSET_COMMIT; None when the client takes what is there.

    Raises CoordinatorError(UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH) for a member that is not current, where groups have
    such: streams and consumer groups.
    """
    # Classic groups check no member at a fetch, in Kafka neither: only commits are fenced there.
    if isinstance(group, StreamsGroup):
        _check_member(group, request)
    elif isinstance(group, ConsumerGroup):
        check_consumer_fetch(group, request.member_id, request.member_epoch)
    topics = (
        _all(offsets, request.group_id, image, unstable)
        if request.topics is None
        else tuple(_topic(offsets, request.group_id, topic, image, unstable) for topic in request.topics)
    )
    return res.OffsetFetchResponseGroup(group_id=request.group_id, topics=topics, error_code=ErrorCode.none)


def _check_member(group: StreamsGroup, request: req.OffsetFetchRequestGroup) -> None:
    # An administrator's tool, or a client before OffsetFetch v9: neither names a member.
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.members.get(request.member_id or "")
    if member is None:
        raise CoordinatorError(
            ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of group {group.group_id}."
        )
    # Equal, not "at most": a member that is behind must learn of its new epoch before it continues from an offset.
    if request.member_epoch != member.member_epoch:
        raise CoordinatorError(
            ErrorCode.stale_member_epoch,
            f"The received member epoch {request.member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}.",
        )


def _all(
    offsets: CommittedOffsets, group_id: str, image: MetadataImage, unstable: PendingOffsets | None
) -> tuple[res.OffsetFetchResponseTopics, ...]:
    by_topic: dict[str, list[int]] = {}
    for (topic, partition), _ in offsets.of_group(group_id):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        _partitions(offsets, group_id, topic, tuple(partitions), image, unstable)
        for topic, partitions in by_topic.items()
    )


def _topic(
    offsets: CommittedOffsets,
    group_id: str,
    topic: req.OffsetFetchRequestTopics,
    image: MetadataImage,
    unstable: PendingOffsets | None,
) -> res.OffsetFetchResponseTopics:
    name = topic.name
    if not name and topic.topic_id is not None:
        # v10 names topics by id (KIP-848). An unknown id is an error of its partitions alone.
        known = next((each.name for each in image.topics.values() if each.topic_id == topic.topic_id), None)
        if known is None:
            return res.OffsetFetchResponseTopics(
                name=cast("TopicName", ""),
                topic_id=topic.topic_id,
                partitions=tuple(_no_offset(int(i), ErrorCode.unknown_topic_id) for i in topic.partition_indexes),
            )
        name = cast("TopicName", known)
    return _partitions(offsets, group_id, name, tuple(int(i) for i in topic.partition_indexes), image, unstable)


def _partitions(
    offsets: CommittedOffsets,
    group_id: str,
    topic: str,
    partitions: tuple[int, ...],
    image: MetadataImage,
    unstable: PendingOffsets | None,
) -> res.OffsetFetchResponseTopics:
    known = image.topics.get(topic)
    return res.OffsetFetchResponseTopics(
        name=cast("TopicName", topic),
        topic_id=None if known is None else known.topic_id,
        partitions=tuple(_partition(offsets, group_id, topic, partition, unstable) for partition in partitions),
    )


def _partition(
    offsets: CommittedOffsets, group_id: str, topic: str, partition: int, unstable: PendingOffsets | None
) -> res.OffsetFetchResponsePartitions:
    # KIP-447: the open transaction decides which offset is the committed one, so the client is to ask again.
    if unstable is not None and unstable.has(group_id, topic, partition):
        return _no_offset(partition, ErrorCode.unstable_offset_commit)
    value = offsets.get(group_id, topic, partition)
    if value is None:
        return _no_offset(partition, ErrorCode.none)
    return res.OffsetFetchResponsePartitions(
        partition_index=cast("i32", partition),
        committed_offset=cast("i64", value.offset),
        committed_leader_epoch=cast("i32", value.leader_epoch),
        metadata=value.metadata,
        error_code=ErrorCode.none,
    )


def _no_offset(partition: int, code: ErrorCode) -> res.OffsetFetchResponsePartitions:
    return res.OffsetFetchResponsePartitions(
        partition_index=cast("i32", partition),
        committed_offset=cast("i64", _NO_OFFSET),
        committed_leader_epoch=cast("i32", -1),
        metadata="",
        error_code=code,
    )
