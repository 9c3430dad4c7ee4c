"""Offsets of transactions: who may commit them, what a marker does, and that a loaded shard is the live one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.coordinator.coordinator_context import CoordinatorContext

from headrace.broker.coordinators.coordinator_logs import coordinator_records
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, assign_offsets, control_batch, encode_batch

CONTEXT = RequestContext(client_id="c", client_host="/127.0.0.1", api_version=5, token=1)


class Transactions(CoordinatorContext):
    """A shard and its log as batches, with transactions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches = bytearray()
        self.end_offset = 0

    def run(self, result: Any) -> Any:
        if result.records:
            self._append(
                encode_batch(
                    [
                        PlainRecord(
                            key=serde.encode_key(each.key),
                            value=None if each.value is None else serde.encode_value(each.value),
                            timestamp_ms=self.now_ms,
                        )
                        for each in result.records
                    ],
                    base_sequence=0,
                    transactional=result.records[0].producer_id >= 0,
                    producer_id=result.records[0].producer_id,
                    producer_epoch=result.records[0].producer_epoch,
                ),
                len(result.records),
            )
        for record in result.records:
            self.shard.replay(record)
        if result.soft is not None:
            result.soft()
        self.shard.apply_timers(result.timers)
        return result.replies[0].response if result.replies else None

    def _append(self, batch: bytes, count: int) -> None:
        data = bytearray(batch)
        assign_offsets(data, self.end_offset, 0)
        self.batches += data
        self.end_offset += count

    def in_transaction(
        self,
        producer_id: int,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member: str = "",
        epoch: int = -1,
        instance: str | None = None,
        metadata: str = "",
    ) -> list[ErrorCode]:
        t = m.txn_offset_commit_request
        request: Any = t.TxnOffsetCommitRequest(
            transactional_id="x",  # type: ignore[arg-type]
            group_id=group,  # type: ignore[arg-type]
            producer_id=producer_id,  # type: ignore[arg-type]
            producer_epoch=0,  # type: ignore[arg-type]
            generation_id=epoch,  # type: ignore[arg-type]
            member_id=member,
            group_instance_id=instance,
            topics=tuple(
                t.TxnOffsetCommitRequestTopic(
                    name=topic,  # type: ignore[arg-type]
                    partitions=(
                        t.TxnOffsetCommitRequestPartition(
                            partition_index=partition,  # type: ignore[arg-type]
                            committed_offset=offset,  # type: ignore[arg-type]
                            committed_metadata=metadata,
                        ),
                    ),
                )
                for (topic, partition), offset in offsets.items()
            ),
        )
        answer = self.run(self.shard.txn_offset_commit(request, CONTEXT, now_ms=self.now_ms))
        return [part.error_code for topic in answer.topics for part in topic.partitions]

    def plainly(self, offset: int, *, topic: str = "in", partition: int = 0, group: str = "g") -> None:
        c = m.offset_commit_request
        request: Any = c.OffsetCommitRequest(
            group_id=group,  # type: ignore[arg-type]
            generation_id_or_member_epoch=-1,  # type: ignore[arg-type]
            member_id="",
            topics=(
                c.OffsetCommitRequestTopic(
                    name=topic,  # type: ignore[arg-type]
                    partitions=(
                        c.OffsetCommitRequestPartition(
                            partition_index=partition,  # type: ignore[arg-type]
                            committed_offset=offset,  # type: ignore[arg-type]
                            committed_metadata="",
                        ),
                    ),
                ),
            ),
        )
        self.run(
            self.shard.offset_commit(
                request,
                RequestContext(client_id="c", client_host="/127.0.0.1", api_version=9, token=1),
                now_ms=self.now_ms,
            )
        )

    def end(self, producer_id: int, *, commit: bool) -> None:
        kind: Any = "commit" if commit else "abort"
        self._append(
            control_batch(
                kind, producer_id=producer_id, producer_epoch=0, timestamp_ms=self.now_ms, coordinator_epoch=0
            ),
            1,
        )
        self.shard.end_transaction(producer_id, committed=commit)

    def delete_offset(self, topic: str = "in", partition: int = 0, group: str = "g") -> None:
        d = m.offset_delete_request
        part: Any = d.OffsetDeleteRequestPartition(partition_index=partition)  # type: ignore[arg-type]
        request: Any = d.OffsetDeleteRequest(
            group_id=group,  # type: ignore[arg-type]
            topics=(d.OffsetDeleteRequestTopic(name=topic, partitions=(part,)),),  # type: ignore[arg-type]
        )
        self.run(self.shard.offset_delete(request, CONTEXT, now_ms=self.now_ms))

    def delete_group(self, group: str = "g") -> ErrorCode:
        answer = self.run(self.shard.delete_groups([group], CONTEXT, now_ms=self.now_ms))
        return ErrorCode(answer.results[0].error_code)

    def fetched(self, topic: str = "in", partition: int = 0, *, group: str = "g", stable: bool = False) -> Any:
        """The offset, or the code."""
        f = m.offset_fetch_request
        asked: Any = f.OffsetFetchRequestGroup(
            group_id=group,  # type: ignore[arg-type]
            topics=(f.OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,)),),  # type: ignore[arg-type]
        )
        found = self.shard.offset_fetch(asked, CONTEXT, require_stable=stable).topics[0].partitions[0]
        return found.committed_offset if found.error_code is ErrorCode.none else found.error_code

    def loaded(self) -> GroupCoordinatorShard:
        shard = GroupCoordinatorShard(0, self.configuration, self.image)
        for record in self.read():
            shard.replay(record)
        return shard

    def read(self) -> Iterator[CoordinatorRecord]:
        return coordinator_records(lambda _position, _size: bytes(self.batches), 0, self.end_offset)


def test_offsets_count_from_the_marker_on() -> None:
    t = Transactions()
    t.plainly(3)
    assert t.in_transaction(7, {("in", 0): 10, ("in", 1): 11}) == [ErrorCode.none] * 2
    assert t.fetched() == 3
    assert t.fetched(stable=True) is ErrorCode.unstable_offset_commit
    assert t.fetched(partition=1) == -1
    t.end(8, commit=True)
    assert t.fetched(stable=True) is ErrorCode.unstable_offset_commit
    t.end(7, commit=True)
    assert (t.fetched(stable=True), t.fetched(partition=1, stable=True)) == (10, 11)
    t.end(7, commit=False)
    assert t.fetched(stable=True) == 10
    assert t.loaded().digest() == t.shard.digest()


def test_an_aborted_transaction_leaves_nothing() -> None:
    t = Transactions()
    t.in_transaction(7, {("in", 0): 10})
    assert t.shard.has_group("g")
    t.end(7, commit=False)
    assert not t.shard.has_group("g")
    assert t.fetched(stable=True) == -1
    assert t.loaded().digest() == t.shard.digest()


def test_the_order_of_records_decides_and_not_that_of_markers() -> None:
    t = Transactions()
    t.in_transaction(7, {("in", 0): 10})
    t.in_transaction(8, {("in", 0): 20})
    t.in_transaction(9, {("in", 1): 30})
    t.plainly(31, partition=1)
    for producer_id in (8, 7, 9):
        t.end(producer_id, commit=True)
        assert t.loaded().digest() == t.shard.digest()
    assert (t.fetched(), t.fetched(partition=1)) == (20, 31)
    t.in_transaction(7, {("in", 0): 40})
    t.end(7, commit=True)
    assert t.fetched() == 40


def test_offset_deletion_removes_pending_offsets() -> None:
    for taken in ("offset", "group", "topic"):
        t = Transactions()
        t.in_transaction(7, {("in", 0): 10})
        if taken == "offset":
            t.delete_offset()
        elif taken == "group":
            assert t.delete_group() is ErrorCode.none
        else:
            for result in t.shard.on_metadata_image(MetadataImage(version=9), now_ms=t.now_ms):
                t.run(result)
        assert t.fetched(stable=True) == -1, taken
        t.end(7, commit=True)
        assert t.fetched(stable=True) == -1, taken
        assert not t.shard.has_group("g")
        assert t.loaded().digest() == t.shard.digest()


def test_offsets_with_pending_transactions_do_not_expire() -> None:
    t = Transactions(settings={"offsets.retention.minutes": 1})
    t.run(t.shard.on_loaded(now_ms=t.now_ms))
    t.plainly(1)
    t.plainly(2, partition=1)
    t.in_transaction(7, {("in", 0): 10})
    t.in_transaction(8, {("in", 2): 10}, group="new")

    def expire() -> None:
        t.now_ms += 3_600_000
        for result in t.shard.on_timers(now_ms=t.now_ms):
            t.run(result)

    expire()
    assert (t.fetched(), t.fetched(partition=1)) == (1, -1)
    assert t.shard.has_group("g")
    assert t.shard.has_group("new")
    t.end(7, commit=False)
    t.end(8, commit=False)
    expire()
    assert not t.shard.has_group("g")
    assert not t.shard.has_group("new")


def test_metadata_that_is_too_large_fails_alone() -> None:
    t = Transactions(settings={"offset.metadata.max.bytes": 3})
    assert t.in_transaction(7, {("in", 0): 1}, metadata="four") == [ErrorCode.offset_metadata_too_large]
    assert not t.shard.has_group("g")


def refused(t: Transactions, offsets: dict[tuple[str, int], int], member: str, epoch: int, **who: Any) -> str:
    before = t.shard.digest()
    with pytest.raises(CoordinatorError) as caught:
        t.in_transaction(7, offsets, member=member, epoch=epoch, **who)
    assert t.shard.digest() == before
    return caught.value.code.name


def two_members() -> Transactions:
    """m1 has 0 and 1 since epoch 2, m2 has 2 and 3 since epoch 3; both are at epoch 3."""
    t = Transactions()
    t.join("m1")
    t.join("m2")
    t.heartbeat("m1", 2)
    t.heartbeat("m1", 2, active={"0": (0, 1)})
    t.heartbeat("m2", 3)
    return t


@pytest.mark.parametrize(
    ("member", "epoch", "partitions"),
    [
        ("m1", 3, (0, 1)),
        ("m1", 2, (0, 1)),  # the epoch moved on, the tasks were kept
        ("m2", 3, (2, 3)),
        ("", -1, (0, 3)),  # nobody: unfenced, as in Kafka
    ],
)
def test_accepted_transactional_commits(member: str, epoch: int, partitions: tuple[int, ...]) -> None:
    t = two_members()
    offsets = {("in", partition): 42 for partition in partitions}
    assert t.in_transaction(7, offsets, member=member, epoch=epoch) == [ErrorCode.none] * len(partitions)
    t.end(7, commit=True)
    assert [t.fetched(partition=partition) for partition in partitions] == [42] * len(partitions)


@pytest.mark.parametrize(
    ("member", "epoch", "partitions", "code"),
    [
        ("m1", 4, (0,), "illegal_generation"),
        ("m1", 1, (0,), "illegal_generation"),
        ("m1", -1, (0,), "illegal_generation"),
        ("m1", 2, (3,), "illegal_generation"),  # the task was lost
        ("m1", 2, (0, 3), "illegal_generation"),  # one kept, one lost: neither
        ("m2", 2, (2,), "illegal_generation"),
        ("m1", 3, (2,), "illegal_generation"),  # Kafka takes this one
        ("m3", 3, (0,), "unknown_member_id"),
        ("", 3, (0,), "unknown_member_id"),
        ("m3", -1, (0,), "unknown_member_id"),
    ],
)
def test_refused_transactional_commits(member: str, epoch: int, partitions: tuple[int, ...], code: str) -> None:
    t = two_members()
    assert refused(t, {("in", partition): 42 for partition in partitions}, member, epoch) == code


def test_a_task_pending_revocation_may_still_commit() -> None:
    t = Transactions()
    t.join("m1")
    t.join("m2")
    t.heartbeat("m1", 2)
    assert t.in_transaction(7, {("in", 3): 9}, member="m1", epoch=2) == [ErrorCode.none]
    t.heartbeat("m1", 2, active={"0": (0, 1)})
    assert refused(t, {("in", 3): 9}, "m1", 2) == "illegal_generation"


def test_a_topic_outside_the_topology_needs_the_current_epoch() -> None:
    t = two_members()
    assert t.in_transaction(7, {("notes", 0): 1}, member="m1", epoch=3) == [ErrorCode.none]
    assert refused(t, {("notes", 0): 1}, "m1", 2) == "illegal_generation"


def test_a_generation_of_a_group_that_is_not_there() -> None:
    assert refused(Transactions(), {("in", 0): 1}, "m", 5) == "illegal_generation"
    assert refused(Transactions(), {("in", 0): 1}, "", 0) == "illegal_generation"


def test_simple_and_classic_groups() -> None:
    t = Transactions()
    t.plainly(1)
    assert t.in_transaction(7, {("in", 0): 2}, member="m") == [ErrorCode.none]  # no members: anybody
    assert refused(t, {("in", 0): 2}, "m", 0) == "unknown_member_id"
    member = s.GroupMember(
        member_id="c", client_id="c", client_host="/h", session_timeout_ms=1, subscription=b"", assignment=b""
    )
    value = s.GroupMetadataValue(protocol_type="consumer", generation=4, members=(member,))
    t.shard.replay(CoordinatorRecord(key=s.GroupMetadataKey(group="g"), value=value))
    assert t.in_transaction(7, {("in", 0): 3}, member="c", epoch=4) == [ErrorCode.none]
    assert t.in_transaction(7, {("in", 0): 3}) == [ErrorCode.none]
    assert refused(t, {("in", 0): 3}, "c", 3) == "illegal_generation"
    assert refused(t, {("in", 0): 3}, "d", 4) == "unknown_member_id"
    assert refused(t, {("in", 0): 3}, "", -1, instance="i") == "unknown_member_id"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3), st.integers(0, 2), st.sampled_from("gh")),
        st.tuples(st.just("commit"), st.integers(1, 3), st.just(0), st.just("")),
        st.tuples(st.just("abort"), st.integers(1, 3), st.just(0), st.just("")),
        st.tuples(st.just("plain"), st.just(0), st.integers(0, 2), st.sampled_from("gh")),
        st.tuples(st.just("delete"), st.just(0), st.integers(0, 2), st.sampled_from("gh")),
        st.tuples(st.just("delete group"), st.just(0), st.just(0), st.sampled_from("gh")),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just("")),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
@example(
    steps=[
        ("write", 1, 0, "h"),
        ("write", 1, 0, "g"),
        ("plain", 0, 0, "g"),
        ("restart", 0, 0, ""),
        ("plain", 0, 0, "h"),
    ]
)
def test_a_loaded_shard_is_the_live_one(steps: list[tuple[str, int, int, str]]) -> None:
    t = Transactions()
    model: dict[tuple[str, int], tuple[int, int]] = {}  # as Kafka says it: offset and the record's own place
    pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
    for number, (what, producer_id, partition, group) in enumerate(steps):
        key, at = (group, partition), (number, t.end_offset)
        if what == "write":
            t.in_transaction(producer_id, {("in", partition): number}, group=group)
            pending.setdefault(producer_id, {})[key] = at
        elif what in ("commit", "abort"):
            t.end(producer_id, commit=what == "commit")
            for each, written in pending.pop(producer_id, {}).items():
                if what == "commit" and written[1] > model.get(each, (0, -1))[1]:
                    model[each] = written
        elif what == "plain":
            t.plainly(number, partition=partition, group=group)
            model[key] = at
        elif what == "delete" and t.shard.has_group(group):
            t.delete_offset(partition=partition, group=group)
            _drop(model, pending, lambda each, key=key: each == key)
        elif what == "delete group" and t.shard.has_group(group):
            assert t.delete_group(group) is ErrorCode.none
            _drop(model, pending, lambda each, group=group: each[0] == group)
        elif what == "restart":
            t.shard = t.loaded()
        assert t.loaded().digest() == t.shard.digest()
        rebuilt = GroupCoordinatorShard(0, t.configuration, t.image)
        for record in t.shard.hard_state():
            rebuilt.replay(record)
        assert rebuilt.digest() == t.shard.digest()
        for each in ((group, partition) for group in "gh" for partition in range(3)):
            unstable = any(each in written for written in pending.values())
            assert t.fetched(partition=each[1], group=each[0]) == model.get(each, (-1, -1))[0]
            assert (t.fetched(partition=each[1], group=each[0], stable=True) is ErrorCode.unstable_offset_commit) == (
                unstable
            )


def _drop(model: dict[Any, Any], pending: dict[int, dict[Any, Any]], gone: Any) -> None:
    for found in (model, *pending.values()):
        for each in [each for each in found if gone(each)]:
            del found[each]
