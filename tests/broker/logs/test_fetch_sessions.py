"""Fetch sessions (KIP-227): their rules, their bounds, and that incremental answers add up to the full ones."""

from __future__ import annotations

import itertools
import random
import uuid
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.logs.fetch_sessions import FetchSessions
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch

f, r = m.fetch_request, m.fetch_response
ID = uuid.UUID(int=7)
SLOTS = 4
EVICTION_MS = 120_000


def asked(partition: int, offset: int = 0, epoch: int = -1) -> Any:
    return f.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )


def request(
    session_id: int, epoch: int, *parts: Any, forget: tuple[int, ...] = (), topic: str = "", **more: Any
) -> Any:
    topic_id = None if topic else ID
    forgotten = (f.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=forget),) if forget else ()
    topics = (f.FetchTopic(topic=topic, topic_id=topic_id, partitions=parts),) if parts else ()
    settings_of = {"max_wait": from_ms(0), "min_bytes": 0, **more}
    return f.FetchRequest(
        topics=topics, forgotten_topics_data=forgotten, session_id=session_id, session_epoch=epoch, **settings_of
    )


def data(
    partition: Any, high_watermark: int = 0, start: int = 0, records: bytes = b"", code: Any = ErrorCode.none
) -> Any:
    return partition, r.PartitionData(
        partition_index=partition.asked.partition,
        error_code=code,
        high_watermark=high_watermark,
        log_start_offset=start,
        aborted_transactions=None,
        records=records,
    )


def note_sent(response: Any) -> list[int]:
    return [part.partition_index for topic in response.responses for part in topic.partitions]


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(lambda: SLOTS, itertools.count(100).__next__)


def begun(sessions: FetchSessions, *partitions: int, now_ms: int = 0) -> int:
    context = sessions.context(request(0, 0, *map(asked, partitions)), by_id=True, now_ms=now_ms)
    return context.answer([data(part) for part in context.partitions]).session_id


def test_a_session_begins_with_a_full_answer_and_goes_on_by_epochs(sessions: FetchSessions) -> None:
    session = begun(sessions, 0, 1, 2)
    assert session == 100
    for epoch in (1, 2, 3):
        context = sessions.context(request(session, epoch), by_id=True, now_ms=0)
        assert context.incremental
        answer = context.answer([data(part) for part in context.partitions])
        assert (note_sent(answer), answer.session_id, answer.error_code) == ([], session, ErrorCode.none)


def test_incremental_fetch_returns_changed_partitions(sessions: FetchSessions) -> None:
    session = begun(sessions, *range(6))
    news: dict[int, dict[str, Any]] = {
        0: {},
        1: {"high_watermark": 5},
        2: {"start": 1},
        3: {"records": b"x"},
        4: {"code": ErrorCode.kafka_storage_error},
    }
    context = sessions.context(request(session, 1), by_id=True, now_ms=0)
    answer = context.answer([data(part, **news.get(part.asked.partition, {})) for part in context.partitions])
    assert note_sent(answer) == [1, 2, 3, 4]
    context = sessions.context(request(session, 2), by_id=True, now_ms=0)
    assert [part.asked.partition for part in context.partitions] == [0, 1, 2, 4, 5, 3], "who gave records waits"
    answer = context.answer([data(part) for part in context.partitions])
    assert note_sent(answer) == [1, 2, 4], "changed back, and the end of the error"


def test_partitions_come_and_go_with_requests(sessions: FetchSessions) -> None:
    session = begun(sessions, 0, 1)
    context = sessions.context(request(session, 1, asked(1, 9), asked(2), forget=(0,)), by_id=True, now_ms=0)
    assert [(p.asked.partition, p.asked.fetch_offset) for p in context.partitions] == [(1, 9), (2, 0)]
    context = sessions.context(request(session, 2, forget=(1, 2)), by_id=True, now_ms=0)
    assert (context.partitions, context.incremental, len(sessions)) == ((), False, 0), "an empty session ends"


def test_unfitting_session_request_is_refused_without_effect(sessions: FetchSessions) -> None:
    session = begun(sessions, 0)
    for wrong, by_id, code in (
        (request(session + 1, 1), True, ErrorCode.fetch_session_id_not_found),
        (request(0, 1), True, ErrorCode.fetch_session_id_not_found),
        (request(session, 2, asked(5)), True, ErrorCode.invalid_fetch_session_epoch),
        (request(session, -2), True, ErrorCode.invalid_fetch_session_epoch),
        (request(session, 1), False, ErrorCode.fetch_session_topic_id_error),
    ):
        answer = sessions.context(wrong, by_id=by_id, now_ms=0).answer([])
        assert (answer.error_code, answer.session_id, note_sent(answer)) == (code, 0, [])
    assert len(sessions.context(request(session, 1), by_id=True, now_ms=0).partitions) == 1


def test_a_request_that_comes_twice_is_answered_once(sessions: FetchSessions) -> None:
    session = begun(sessions, 0)
    first = sessions.context(request(session, 1), by_id=True, now_ms=0)
    sessions.context(request(session, 2), by_id=True, now_ms=0)
    late = first.answer([data(part, high_watermark=3) for part in first.partitions])
    assert (late.error_code, late.session_id) == (ErrorCode.invalid_fetch_session_epoch, session)


def test_epochs_0_and_minus_1_end_the_session_that_they_name(sessions: FetchSessions) -> None:
    session = begun(sessions, 0)
    context = sessions.context(request(session, 0, asked(0)), by_id=True, now_ms=0)
    other = context.answer([data(part) for part in context.partitions]).session_id
    assert (other, len(sessions)) == (101, 1)
    last = sessions.context(request(other, -1, asked(0)), by_id=True, now_ms=0)
    assert (last.answer([data(part) for part in last.partitions]).session_id, len(sessions)) == (0, 0)


def test_epochs_wrap_to_1(sessions: FetchSessions) -> None:
    session = begun(sessions, 0)
    sessions._sessions[session].epoch = 2**31 - 1
    assert sessions.context(request(session, 2**31 - 1), by_id=True, now_ms=0).error is ErrorCode.none
    assert sessions.context(request(session, 1), by_id=True, now_ms=0).error is ErrorCode.none


def test_the_cache_is_bounded(sessions: FetchSessions) -> None:
    small = [begun(sessions, 0, 1) for _ in range(SLOTS)]
    assert begun(sessions, *range(9)) == 0, "the others are young"
    later = EVICTION_MS + 1
    for number in small:  # used all the time, so none is stale
        sessions.context(request(number, 1), by_id=True, now_ms=later)
    assert begun(sessions, 0, 1, now_ms=later) == 0, "no larger than those that are there"
    large = begun(sessions, *range(3), now_ms=later)
    assert (large, len(sessions), sessions.evictions) == (104, SLOTS, 1)
    assert sessions.cached_partitions == 3 * 2 + 3
    assert begun(sessions, 0, now_ms=2 * later + 1) != 0, "one that nobody has used for two minutes gives way to anyone"


def test_no_slots_no_sessions() -> None:
    sessions = FetchSessions(lambda: 0)
    assert (begun(sessions, 0), len(sessions)) == (0, 0)


class Reader:
    """A client that believes what it is note_sent, by full answers or by increments."""

    def __init__(self) -> None:
        self.session, self.epoch = 0, 0
        self.seen: dict[int, tuple[int, int]] = {}

    def take(self, response: Any) -> None:
        self.session = response.session_id
        self.epoch = self.epoch + 1 if self.session else 0
        for topic in response.responses:
            for part in topic.partitions:
                self.seen[part.partition_index] = (part.high_watermark, part.log_start_offset)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_increments_add_up_to_full_answers(seed: int) -> None:
    chance = Random(seed)
    sessions = FetchSessions(lambda: 2, itertools.count(1).__next__)
    logs = {number: [0, 0] for number in range(8)}  # high watermark, log start
    reader, wanted = Reader(), set[int]()
    for now_ms in range(40):
        before = set(wanted)
        for number in chance.sample(range(8), chance.randrange(3)):
            wanted.symmetric_difference_update({number})
        for number in chance.sample(range(8), chance.randrange(3)):
            logs[number][0] += chance.randrange(3)
            logs[number][1] = max(logs[number][1], logs[number][0] - chance.randrange(4))
        if chance.random() < 0.1:
            reader.session, reader.epoch = 0, 0
        full = reader.epoch == 0
        named = wanted if full else wanted - before
        gone = () if full else tuple(sorted(before - wanted))
        ask = request(reader.session, reader.epoch, *map(asked, sorted(named)), forget=gone)
        context = sessions.context(ask, by_id=True, now_ms=now_ms)
        assert context.error is ErrorCode.none
        read = [data(part, end, start) for part in context.partitions for end, start in [logs[part.asked.partition]]]
        reader.take(context.answer(read))
        for number in gone:
            reader.seen.pop(number, None)
        assert {n: reader.seen[n] for n in wanted} == {n: tuple(logs[n]) for n in wanted}


# -- over the wire -------------------------------------------------------------------------------------------
@pytest.fixture
def client(broker: EmbeddedBroker, connect: Connect) -> Any:
    broker.create_topics({"t": 20})
    return connect(broker)


def fetched(client: Any, ask: Any, version: int = 12) -> dict[int, Any]:
    """By name, in the last version that has names."""
    response = client.call(ApiKey.FETCH, ask, version)
    assert response.error_code is ErrorCode.none
    return {0: response.session_id, **{p.partition_index + 1: p for t in response.responses for p in t.partitions}}


def produce(client: Any, partition: int) -> None:
    p = m.produce_request
    part = p.PartitionProduceData(index=partition, records=encode_batch([PlainRecord(value=b"v", timestamp_ms=1)]))
    topic = p.TopicProduceData(name="t", topic_id=None, partition_data=(part,))
    answer = client.call(ApiKey.PRODUCE, p.ProduceRequest(acks=1, timeout=from_ms(1000), topic_data=(topic,)), 12)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def test_a_session_over_the_wire(client: Any, broker: EmbeddedBroker, connect: Connect) -> None:
    full = fetched(client, request(0, 0, *map(asked, range(20)), topic="t"))
    session = full.pop(0)
    assert session > 0
    assert len(full) == 20
    assert fetched(client, request(session, 1)) == {0: session}
    produce(client, 3)
    news = fetched(client, request(session, 2))
    assert (sorted(news), news[4].high_watermark) == ([0, 4], 1)
    assert len(news[4].records) > 61
    again = fetched(client, request(session, 3))
    assert sorted(again) == [0, 4], "the client has not moved on: the same records"
    assert fetched(client, request(session, 4, asked(3, 1), topic="t")) == {0: session}
    waiting = client.send(ApiKey.FETCH, request(session, 5, max_wait=from_ms(20_000), min_bytes=1), 12)
    produce(connect(broker), 7)
    woken = client.receive(waiting)
    assert note_sent(woken) == [7]
    stale = client.call(ApiKey.FETCH, request(session, 5), 12)
    assert (stale.error_code, stale.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
    other = client.call(ApiKey.FETCH, request(session, 6), 13)
    assert other.error_code is ErrorCode.fetch_session_topic_id_error


def test_a_deleted_topic_is_told_in_a_session(client: Any, broker: EmbeddedBroker) -> None:
    session = fetched(client, request(0, 0, *map(asked, range(3)), topic="t"))[0]
    assert fetched(client, request(session, 1)) == {0: session}
    d = m.delete_topics_request
    delete = d.DeleteTopicsRequest(topics=(d.DeleteTopicState(name="t", topic_id=None),), timeout=from_ms(1000))
    client.call(ApiKey.DELETE_TOPICS, delete)
    gone = fetched(client, request(session, 2))
    assert {part.error_code for number, part in gone.items() if number} == {ErrorCode.unknown_topic_or_partition}
    broker.create_topics({"t": 3})
    back = fetched(client, request(session, 3))
    assert {part.error_code for number, part in back.items() if number} == {ErrorCode.none}
    assert len(back) == 4


def test_a_session_belongs_to_its_principal(sessions: FetchSessions) -> None:
    context = sessions.context(request(0, 0, asked(0)), by_id=True, owner="User:alice", now_ms=0)
    session = context.answer([data(part) for part in context.partitions]).session_id
    for epoch in (1, 0, -1):
        other = sessions.context(request(session, epoch), by_id=True, owner="User:bob", now_ms=0)
        assert not other.incremental
    assert len(sessions) == 1, "nobody else ends it"
    assert sessions.context(request(session, 1), by_id=True, owner="User:alice", now_ms=0).incremental


def test_session_ids_cannot_be_foretold() -> None:
    random.seed(1)
    first = begun(FetchSessions(lambda: SLOTS), 0)
    random.seed(1)
    assert begun(FetchSessions(lambda: SLOTS), 0) != first
