"""Offsets in transactions: the same requests to Apache Kafka 4.3.1 and to us, and every answer the same, but for one.

Experiment x1 of the plan and what surrounds it: who may commit for a streams group, the order of records against that
of markers, what deletes pending offsets, older versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.interop.heartbeat_script import ALL, Script
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_heartbeats_like_kafka import BROKER_SETTINGS
from tests.interop.transaction_script import Producer, TransactionScript

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api

pytestmark = [pytest.mark.interop, pytest.mark.slow]

AT_ONCE = {"streams.initial.rebalance.delay.ms": 0, "streams.assignment.interval.ms": 0}
INTENDED = {
    "the current epoch, another's partition",  # Kafka looks at the owner only when the epoch is an old one
    "a group that an aborted transaction made",  # Kafka lists it, empty, until it looks for expired offsets
    "is deleted",
}
PASSING = ("concurrent_transactions", "coordinator_load_in_progress", "coordinator_not_available")


class Offsets:
    """Members of one group and some producers, on one broker."""

    def __init__(self, port: int) -> None:
        self.members = Script(port, "txn-offsets", uuid.uuid4().hex[:8])
        self.members.prepare({"in": 4, "other": 1}, AT_ONCE)
        self.transactions = TransactionScript(port)
        self.group = self.members.group_id
        self.answers: dict[str, Any] = {}

    def close(self) -> None:
        self.members.close()
        self.transactions.close()

    def note(self, step: str, told: Any) -> None:
        assert step not in self.answers
        self.answers[step] = told

    def commit(
        self,
        step: str,
        producer: Producer,
        offsets: dict[tuple[str, int], int],
        *,
        tid: str = "x",
        member: str = "",
        epoch: int = -1,
        version: int = 5,
        metadata: str = "",
        group: str | None = None,
    ) -> None:
        t = m.txn_offset_commit_request
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            fields: Any = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
            topics.setdefault(topic, []).append(t.TxnOffsetCommitRequestPartition(**fields))
        request: Any = t.TxnOffsetCommitRequest(
            transactional_id=self.transactions.name(tid),  # type: ignore[arg-type]
            group_id=group or self.group,  # type: ignore[arg-type]
            producer_id=producer.id,  # type: ignore[arg-type]
            producer_epoch=producer.epoch,  # type: ignore[arg-type]
            generation_id=epoch,  # type: ignore[arg-type]
            member_id=member,
            topics=tuple(
                t.TxnOffsetCommitRequestTopic(name=self.members.name(topic), partitions=tuple(parts))  # type: ignore[arg-type]
                for topic, parts in topics.items()
            ),
        )

        def ask() -> Any:
            answer = self.transactions.client.call(Api.TXN_OFFSET_COMMIT, request, version)
            return {
                (topic.name.rpartition(".")[2], part.partition_index): part.error_code.name
                for topic in answer.topics
                for part in topic.partitions
            }

        wait_until(lambda: not set(ask().values()) & set(PASSING))
        self.note(step, ask())

    def fetch(self, step: str, *, stable: bool = True, topics: dict[str, tuple[int, ...]] | None = None) -> None:
        f = m.offset_fetch_request
        wanted: Any = None
        if topics is not None:
            wanted = tuple(
                f.OffsetFetchRequestTopics(name=self.members.name(topic), partition_indexes=partitions)  # type: ignore[arg-type]
                for topic, partitions in topics.items()
            )
        asked: Any = f.OffsetFetchRequestGroup(group_id=self.group, topics=wanted)  # type: ignore[arg-type]
        request = f.OffsetFetchRequest(groups=(asked,), require_stable=stable)
        (answer,) = self.transactions.client.call(Api.OFFSET_FETCH, request, 9).groups
        told = {
            (topic.name.rpartition(".")[2], part.partition_index): (
                part.committed_offset,
                part.metadata,
                part.error_code.name,
            )
            for topic in answer.topics
            for part in topic.partitions
        }
        self.note(step, (answer.error_code.name, told))

    def end(self, producer: Producer, *, commit: bool, tid: str = "x") -> Producer:
        return self.transactions.end(tid, producer, commit=commit)  # returns when the markers are written


def steps(o: Offsets) -> None:
    aborted_group(o)
    simple_group(o)
    versions(o)
    order(o)
    deletions(o)
    streams_group(o)


def aborted_group(o: Offsets) -> None:
    p = o.transactions.init("x")
    o.commit("nobody, in no group", p, {("in", 0): 1})
    o.members.list_groups("a group that an open transaction made")
    o.end(p, commit=False)
    o.members.list_groups("a group that an aborted transaction made")
    o.members.delete_group("is deleted")


def simple_group(o: Offsets) -> None:
    p = o.transactions.init("x")
    o.commit("a generation of no group", p, {("in", 0): 1}, member="a", epoch=2)
    o.commit("nobody, no group", p, {("in", 0): 1, ("other", 0): 2, ("in", 9): 3, ("nowhere", 0): 4}, metadata="note")
    o.fetch("pending", topics={"in": (0, 1), "other": (0,)})
    o.fetch("pending, all")
    o.fetch("pending, not stable", stable=False, topics={"in": (0,)})
    q = o.end(p, commit=True)
    o.fetch("committed")
    o.commit("of the transaction before", p, {("in", 0): 9})
    o.commit("a wrong epoch", Producer(q.id, q.epoch + 1), {("in", 0): 9})
    o.commit("a wrong id", Producer(q.id + 999, q.epoch), {("in", 0): 9})
    o.commit("an unknown transactional id", q, {("in", 0): 9}, tid="nobody")
    o.commit("too much metadata", q, {("in", 0): 9}, metadata="x" * 4_097)
    o.commit("a member of a simple group", q, {("in", 1): 9}, member="m")
    o.commit("a member with a generation", q, {("in", 1): 9}, member="m", epoch=0)
    o.fetch("committed and pending, all")
    o.end(q, commit=False)
    o.fetch("aborted")


def versions(o: Offsets) -> None:
    p = o.transactions.init("old", version=4)
    for version in range(5):
        o.commit(f"version {version}, not added", p, {("in", 2): version}, tid="old", version=version)
    o.transactions.offsets("old", p, o.group, version=3)
    for version in range(5):
        o.commit(f"version {version}, added", p, {("in", 2): version}, tid="old", version=version)
    o.transactions.end("old", p, commit=True, version=4)
    o.fetch("older versions")


def order(o: Offsets) -> None:
    first, second = o.transactions.init("first"), o.transactions.init("second")
    o.commit("first", first, {("in", 0): 100, ("in", 1): 100, ("in", 2): 100}, tid="first")
    o.commit("second", second, {("in", 0): 200, ("in", 1): 200}, tid="second")
    o.members.commit("between", "", {("in", 1): 300, ("in", 2): 300}, epoch=-1)
    o.commit("first once more", first, {("in", 2): 400}, tid="first")
    o.fetch("two transactions")
    o.end(second, commit=True, tid="second")
    o.fetch("the second ended")
    o.end(first, commit=True, tid="first")
    o.fetch("both ended")


def deletions(o: Offsets) -> None:
    p = o.transactions.init("x")
    o.commit("to be deleted", p, {("in", 0): 1, ("in", 3): 1})
    o.members.delete_offsets("offsets with pending ones", {"in": (0, 3)})
    o.fetch("deleted", topics={"in": (0, 3)})
    p = o.end(p, commit=True)
    o.fetch("deleted, then committed", topics={"in": (0, 3)})
    o.commit("to be deleted with the group", p, {("in", 0): 1, ("in", 3): 1})
    o.members.delete_group("the group with pending offsets")
    o.fetch("the group is gone")
    o.end(p, commit=True)
    o.fetch("the group is gone, then committed", topics={"in": (0, 3)})
    o.members.delete_group("the group again")


def streams_group(o: Offsets) -> None:
    p = o.transactions.init("x")
    topology = o.members.source("in")
    o.members.join("a joins", "a", topology)
    early = o.members.epochs["a"]
    o.commit("the current epoch", p, {("in", 0): 1, ("in", 3): 1}, member="a", epoch=early)
    o.commit("a newer epoch", p, {("in", 0): 2}, member="a", epoch=early + 1)
    o.commit("an older epoch", p, {("in", 0): 2}, member="a", epoch=early - 1)
    o.commit("a member with epoch -1", p, {("in", 0): 2}, member="a")
    o.commit("an unknown member", p, {("in", 0): 2}, member="b", epoch=early)
    o.commit("nobody, with an epoch", p, {("in", 0): 2}, epoch=early)
    o.commit("nobody", p, {("in", 1): 5})
    o.commit("outside the topology", p, {("other", 0): 7}, member="a", epoch=early)
    p = o.end(p, commit=True)
    o.fetch("of a")
    o.members.join("b joins", "b", topology)
    o.members.beat("a is told", "a")
    kept = o.members.tasks["a"]["active"]["0"]
    lost = tuple(each for each in range(4) if each not in kept)
    assert len(kept) == len(lost) == 2
    o.commit("pending revocation", p, {("in", 0 if 0 in lost else lost[0]): 9}, member="a", epoch=early)
    o.members.beat("a lets go", "a", owned=ALL)
    o.members.beat_until("b has its own", "b", lambda _: o.members.owns("b") == 2)
    late = o.members.epochs["a"]
    assert late > early
    mine, others = ("in", kept[0]), ("in", lost[0])
    o.commit("an old epoch, kept", p, {mine: 11}, member="a", epoch=early)
    o.commit("an old epoch, lost", p, {others: 12}, member="a", epoch=early)
    o.commit("an old epoch, kept and lost", p, {mine: 12, others: 12}, member="a", epoch=early)
    o.commit("an old epoch, outside the topology", p, {("other", 0): 12}, member="a", epoch=early)
    o.commit("the current epoch, kept", p, {mine: 13}, member="a", epoch=late)
    p = o.end(p, commit=True)
    o.fetch("of a and b", topics={"in": kept})
    o.commit("the current epoch, another's partition", p, {others: 14}, member="a", epoch=late)
    o.end(p, commit=False)


def played(port: int, play: Callable[[Offsets], None]) -> dict[str, Any]:
    o = Offsets(port)
    try:
        play(o)
        return {**o.answers, **{name: o.members.recording[name] for name in RECORDED}}
    finally:
        o.close()


RECORDED = (
    "a group that an open transaction made",
    "a group that an aborted transaction made",
    "is deleted",
    "offsets with pending ones",
    "the group with pending offsets",
    "the group again",
)


def test_every_answer_is_kafkas(kafka: KafkaBroker) -> None:
    theirs = played(kafka.port, steps)
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        ours = played(int(broker.bootstrap_servers.rpartition(":")[2]), steps)
    assert len(theirs) > 50
    assert theirs.keys() == ours.keys()
    different = {step: (theirs[step], ours[step]) for step in theirs if theirs[step] != ours[step]}
    for step, pair in different.items():
        print(step, *pair, sep="\n    ")
    assert different.keys() == INTENDED
