"""Requests about transactions to any broker, in every right and wrong order, and its answers as plain words.

Producer ids are told by the order in which they were first seen. After each step the state of the transactional id is
described; while markers are under way it is asked again, so that a broker that needs a moment for them says the same.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from kio.schema.types import GroupId, ProducerId, TransactionalId
from kio.static.primitive import i8, i16, i64
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.led_topics import wait_until_led

from headrace.coordinator.records.codec import Cursor
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["Producer", "TransactionScript", "steps"]

PATIENCE_S = 30
INT_MAX = 2**31 - 1


class Producer(NamedTuple):
    """An identity; `epoch` moves on with what the broker answers."""

    id: int
    epoch: int


NOBODY = Producer(-1, -1)


class Described(NamedTuple):
    """A transactional id of DescribeTransactions v0. kio cannot read its start time, which may be -1."""

    code: int
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    producer_epoch: int
    topics: tuple[tuple[str, tuple[int, ...]], ...]


def _described_transactions(frame: Cursor) -> tuple[Described, ...]:
    frame.int32()  # correlation id
    frame.tags()
    frame.int32()  # throttle time
    return frame.compact_array(_described)


def _described(cursor: Cursor) -> Described:
    plain = cursor.int16(), cursor.compact_string(), cursor.compact_string(), cursor.int32(), cursor.int64()
    identity = cursor.int64(), cursor.int16()
    described = Described(*plain, *identity, cursor.compact_array(_described_topic))
    cursor.tags()
    return described


def _described_topic(cursor: Cursor) -> tuple[str, tuple[int, ...]]:
    topic = cursor.compact_string(), cursor.compact_array(Cursor.int32)
    cursor.tags()
    return topic


class TransactionScript:
    """Mutable: what one broker answered. `topic` has three partitions and exists."""

    def __init__(self, port: int) -> None:
        self.client = WireClient(port)
        self.mark = uuid.uuid4().hex[:8]
        self.topic = f"in-transactions-{self.mark}"
        self.answers: list[tuple[str, Any]] = []
        self._seen: dict[int, str] = {-1: "none"}
        self._create_topic()
        self._find_coordinator()

    def close(self) -> None:
        self.client.close()

    def name(self, short: str) -> str:
        return f"{short}-{self.mark}"

    # --- requests ---

    def init(
        self, tid: str | None, expected: Producer = NOBODY, *, timeout_ms: int = 60_000, version: int = 5
    ) -> Producer:
        request = _init_request(self.name(tid) if tid else tid, timeout_ms, expected)
        answer = self.client.call(Api.INIT_PRODUCER_ID, request, version)
        told = answer.error_code.name, self.word(answer.producer_id), answer.producer_epoch
        self._note(f"init {tid} {version}", told, tid)
        return Producer(answer.producer_id, answer.producer_epoch)

    def add(self, tid: str, producer: Producer, *parts: int, version: int = 3, topic: str | None = None) -> None:
        self.add_all([(tid, producer, parts, False)], version=version, topic=topic)

    def add_all(
        self,
        transactions: list[tuple[str, Producer, tuple[int, ...], bool]],
        *,
        version: int,
        topic: str | None = None,
    ) -> None:
        a = m.add_partitions_to_txn_request
        request = a.AddPartitionsToTxnRequest(
            transactions=tuple(
                a.AddPartitionsToTxnTransaction(
                    transactional_id=self.name(tid) if tid else "",
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    verify_only=verify_only,
                    topics=(a.AddPartitionsToTxnTopic(name=topic or self.topic, partitions=parts),),
                )
                for tid, producer, parts, verify_only in transactions
            )
        )
        answer = self.client.call(Api.ADD_PARTITIONS_TO_TXN, request, version)
        told = sorted(
            (result.transactional_id.replace(self.mark, ""), part.partition_index, part.partition_error_code.name)
            for result in answer.results_by_transaction
            for topic_result in result.topic_results
            for part in topic_result.results_by_partition
        )
        self._note(f"add {version}", (answer.error_code.name, told), *(tid for tid, _, _, _ in transactions))

    def offsets(self, tid: str, producer: Producer, group: str, *, version: int = 4) -> None:
        request = m.add_offsets_to_txn_request.AddOffsetsToTxnRequest(
            transactional_id=TransactionalId(self.name(tid) if tid else ""),
            producer_id=ProducerId(producer.id),
            producer_epoch=i16(producer.epoch),
            group_id=GroupId(group),
        )
        answer = self.client.call(Api.ADD_OFFSETS_TO_TXN, request, version)
        self._note(f"offsets {tid} {version}", answer.error_code.name, tid)

    def end(self, tid: str, producer: Producer, *, commit: bool, version: int = 5) -> Producer:
        request = m.end_txn_request.EndTxnRequest(
            transactional_id=TransactionalId(self.name(tid) if tid else ""),
            producer_id=ProducerId(producer.id),
            producer_epoch=i16(producer.epoch),
            committed=commit,
        )
        answer = self.client.call(Api.END_TXN, request, version)
        told: Any = answer.error_code.name
        if version >= 5:
            told = told, self.word(answer.producer_id), answer.producer_epoch
        self._note(f"end {tid} {version} {commit}", told, tid)
        return Producer(answer.producer_id, answer.producer_epoch) if version >= 5 else producer

    def list_transactions(self, *, version: int = 2, **filters: Any) -> None:
        request = m.list_transactions_request.ListTransactionsRequest(
            state_filters=filters.get("states", ()),
            producer_id_filters=tuple(ProducerId(each) for each in filters.get("ids", ())),
            duration_filter=i64(filters.get("longer_than_ms", -1)),
            transactional_id_pattern=filters.get("pattern"),
        )
        answer = self.client.call(Api.LIST_TRANSACTIONS, request, version)
        told = sorted(
            (each.transactional_id.replace(self.mark, ""), self.word(each.producer_id), each.transaction_state)
            for each in answer.transaction_states
            if self.mark in each.transactional_id
        )
        shown = {name: value for name, value in filters.items() if name != "ids"}
        self._note(f"list {shown}", (answer.error_code.name, answer.unknown_state_filters, told))

    def described(self, *tids: str) -> list[Any]:
        """What is comparable of them."""
        request = m.describe_transactions_request.DescribeTransactionsRequest(
            transactional_ids=tuple(TransactionalId(self.name(tid) if tid else "") for tid in tids)
        )
        self.client.send(Api.DESCRIBE_TRANSACTIONS, request, 0)
        return [self._worded(state) for state in _described_transactions(Cursor(self.client.read_frame()))]

    def _worded(self, state: Described) -> Any:
        started = "some time" if state.started_ms > 0 else state.started_ms
        parts = sorted((topic.replace(self.mark, ""), tuple(sorted(found))) for topic, found in state.topics)
        known = state.code == ErrorCode.none
        identity = self.word(state.producer_id) if known else state.producer_id, state.producer_epoch
        return ErrorCode(state.code).name, state.state, state.timeout_ms, started, *identity, parts

    # --- the script ---

    def until_aborted(self, tid: str) -> None:
        """The broker's own abort after the timeout."""
        wait_until(lambda: self.described(tid)[0][1] == "CompleteAbort")
        self._note(f"timed out {tid}", "aborted", tid)

    def _note(self, step: str, told: Any, *tids: str | None) -> None:
        states: list[Any] = []
        known = [tid for tid in dict.fromkeys(tids) if tid]
        if known:
            wait_until(lambda: not any(state[1].startswith("Prepare") for state in self.described(*known)))
            states = self.described(*known)
        self.answers.append((step, (told, states)))

    def word(self, producer_id: int) -> str:
        return self._seen.setdefault(producer_id, f"id {len(self._seen) - 1}")

    def _create_topic(self) -> None:
        c = m.create_topics_request
        topic = c.CreatableTopic(name=self.topic, num_partitions=3, replication_factor=1, assignments=(), configs=())
        request = c.CreateTopicsRequest(topics=(topic,), timeout=from_ms(20_000), validate_only=False)
        (made,) = self.client.call(Api.CREATE_TOPICS, request).topics
        assert made.error_code is ErrorCode.none
        wait_until_led(self.client, [self.topic], partitions=3)

    def _find_coordinator(self) -> None:
        """Makes `__transaction_state`, and waits until it is led and loaded."""
        f = m.find_coordinator_request
        request = f.FindCoordinatorRequest(key_type=i8(1), coordinator_keys=(self.name("first"),))
        group = f.FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",))
        wait_until(lambda: self.client.call(Api.FIND_COORDINATOR, group).coordinators[0].error_code.name == "none")
        wait_until(lambda: self.client.call(Api.FIND_COORDINATOR, request).coordinators[0].error_code.name == "none")
        names = [f"first{number}" for number in range(200)]
        idempotent = _init_request(None, 60_000, NOBODY)
        wait_until(lambda: self.client.call(Api.INIT_PRODUCER_ID, idempotent).error_code is ErrorCode.none)
        wait_until(lambda: {state[0] for state in self.described(*names)} == {"transactional_id_not_found"})


def _init_request(transactional_id: str | None, timeout_ms: int, expected: Producer) -> object:
    return m.init_producer_id_request.InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=from_ms(timeout_ms),
        producer_id=ProducerId(expected.id),
        producer_epoch=i16(expected.epoch),
    )


def steps(s: TransactionScript, level: int) -> None:
    """Every right and wrong order at this level of transaction.version.

    At level 0 Kafka cannot write the records of clients that speak version 2, and their ids hang: no honest client
    does it, and it is left out.
    """
    unknown_ids(s)
    identities(s)
    version_1(s)
    if level >= 2:
        version_2(s)
        brokers(s)
    fencing(s, level)
    listing(s)


def unknown_ids(s: TransactionScript) -> None:
    for version in (0, 2, 4, 5):
        s.end("nobody", Producer(7, 0), commit=True, version=version)
    s.end("", Producer(7, 0), commit=True)
    s.add("nobody", Producer(7, 0), 0)
    s.offsets("nobody", Producer(7, 0), "g")
    s.offsets("", Producer(7, 0), "g")
    s.add("", Producer(7, 0), 0)
    s.init("")


def identities(s: TransactionScript) -> None:
    for timeout_ms in (0, -1, 900_001, INT_MAX):
        s.init("a", timeout_ms=timeout_ms)
    first = s.init("a")
    second = s.init("a", timeout_ms=30_000)
    third = s.init("a", second)
    s.init("a", second)  # a retry
    s.init("a", first)
    s.init("a", first, version=3)
    s.init("a", Producer(third.id + 1000, 0))
    s.init("a", Producer(third.id, -1))
    s.init("a", Producer(-1, 4))
    s.init("a", third)
    s.init("new", Producer(4711, 3))
    for version in range(6):
        s.init("versions", version=version)


def version_1(s: TransactionScript) -> None:
    p = s.init("v1", version=4)
    s.end("v1", p, commit=True, version=4)
    s.end("v1", p, commit=False, version=4)
    for version in range(4):
        s.add("v1", p, version % 3, version=version)
    s.add("v1", p, 0, 9)
    s.add("v1", p, 0, topic="nobody-made-this")
    old, other = Producer(p.id, p.epoch - 1), Producer(p.id + 999, p.epoch)
    new = Producer(p.id, p.epoch + 1)
    for who in (old, other, new):
        for version in (1, 2, 3):
            s.add("v1", who, 0, version=version)
            s.offsets("v1", who, "g", version=version)
            s.end("v1", who, commit=True, version=version)
    s.offsets("v1", p, "g", version=3)
    s.end("v1", p, commit=True, version=4)
    s.end("v1", p, commit=True, version=4)
    s.end("v1", p, commit=False, version=4)
    s.offsets("v1", p, "g")
    s.end("v1", p, commit=False, version=3)
    s.end("v1", p, commit=False, version=0)
    s.end("v1", p, commit=True, version=0)
    s.init("v1", p)


def version_2(s: TransactionScript) -> None:
    p = s.init("v2")
    s.end("v2", p, commit=True)
    aborted = s.end("v2", p, commit=False)
    s.end("v2", p, commit=False)
    s.end("v2", p, commit=True)
    s.end("v2", aborted, commit=True)
    again = s.end("v2", aborted, commit=False)
    s.add_all([("v2", again, (0, 1), False)], version=5)
    s.end("v2", aborted, commit=True)
    s.end("v2", Producer(again.id, again.epoch + 1), commit=True)
    s.end("v2", Producer(again.id + 999, again.epoch), commit=True)
    committed = s.end("v2", again, commit=True)
    s.end("v2", again, commit=True)
    s.end("v2", again, commit=False)
    s.end("v2", aborted, commit=True)
    s.end("v2", committed, commit=True)
    s.add_all([("v2", again, (0,), False)], version=5)
    after = s.end("v2", committed, commit=False)
    s.init("v2", committed)
    s.init("v2", after)
    mixed = s.init("v2")
    s.add("v2", mixed, 2, version=3)
    bumped = s.end("v2", mixed, commit=True, version=5)
    s.end("v2", bumped, commit=True, version=4)
    s.end("v2", bumped, commit=False, version=4)


def brokers(s: TransactionScript) -> None:
    p, q = s.init("b"), s.init("c")
    s.add_all([("b", p, (0,), True)], version=4)
    s.add_all([("b", p, (0, 1), False), ("c", q, (2,), False)], version=4)
    s.add_all([("b", p, (0, 2), True), ("c", q, (2,), True)], version=5)
    s.add_all([("b", p, (0, 9), False), ("c", q, (1,), False)], version=5)
    s.add_all([("b", Producer(p.id, p.epoch + 1), (0,), True)], version=4)
    s.add_all([("b", Producer(p.id + 999, p.epoch), (0,), True)], version=4)
    s.add_all([("nobody", p, (0,), True), ("c", p, (0,), False)], version=4)
    s.end("b", p, commit=False)
    s.end("c", q, commit=False, version=4)


def fencing(s: TransactionScript, level: int) -> None:
    for version in (4, 5) if level >= 2 else (4,):
        tid = f"fenced{version}"
        p = s.init(tid)
        s.add(tid, p, 0, 1)
        s.init(tid)
        s.add(tid, p, 2)
        s.end(tid, p, commit=True, version=version)
        s.end(tid, p, commit=False, version=version)
        q = s.init(tid)
        s.end(tid, p, commit=False, version=version)
        s.add(tid, q, 0)
        s.init(tid, q)
        s.init(tid, q)
        s.init(tid)
    p = s.init("late", timeout_ms=300)
    s.add("late", p, 0, version=3)
    s.until_aborted("late")
    if level >= 2:
        s.end("late", p, commit=True)
        s.end("late", p, commit=False)
    s.end("late", p, commit=False, version=4)
    s.init("late", p)
    s.init("late")


def listing(s: TransactionScript) -> None:
    p = s.init("open")
    s.add("open", p, 0)
    s.list_transactions(version=0)
    s.list_transactions()
    s.list_transactions(states=("Ongoing",))
    s.list_transactions(states=("Ongoing", "Empty", "nonsense", ""))
    s.list_transactions(states=("nonsense",))
    s.list_transactions(states=("ongoing",))
    s.list_transactions(states=("PrepareEpochFence", "Dead"))
    s.list_transactions(ids=(p.id,))
    s.list_transactions(ids=(p.id + 999,))
    s.list_transactions(longer_than_ms=0)
    s.list_transactions(longer_than_ms=3_600_000)
    s.list_transactions(version=1, longer_than_ms=0, states=("Ongoing",))
    for pattern in (
        "",
        "v\\d-.*",
        "v",
        "(",
        "(open|late)-[0-9a-f]+",
        "^open.*$",
        "[a",
        "a**",
        "open-.{8}",
        "\\q",
        "x*?.+",
    ):
        s.list_transactions(pattern=pattern)
