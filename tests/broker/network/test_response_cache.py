"""Repeated answers: byte for byte what the rules would say, bounded, for their own connection only, in turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.coordinator.coordinator_context import STATEFUL, STATELESS, CoordinatorContext
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.metadata.features import FeatureUpdate
from headrace.broker.network import fast_paths
from headrace.broker.network.fast_paths import CacheGeneration, ResponseCache
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import Timer
from headrace.coordinator.streams.group_context import StreamsGroupSoftState
from headrace.coordinator.streams.heartbeat import RepeatableHeartbeat
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import decode_request, encode_request, encode_response

HEARTBEAT = ApiKey.STREAMS_GROUP_HEARTBEAT


def steady() -> RepeatableHeartbeat:
    return RepeatableHeartbeat(StreamsGroupSoftState(), Timer(0), 100)


def framed(request: Any, correlation_id: int = 7, client_id: str = "c") -> bytes:
    return encode_request(HEARTBEAT, 0, correlation_id, client_id, request)


# --- what is repeated ---


def test_a_repeated_answer_carries_its_own_correlation_id() -> None:
    answers = ResponseCache(CacheGeneration())
    frame = framed(heartbeat("m", 3))
    answers.keep(frame[4:], b"\0\0\0\x08" + b"\0\0\0\x07" + b"tail", steady())
    data = framed(heartbeat("m", 3), 1) + framed(heartbeat("m", 3), 2) + framed(heartbeat("other", 3), 3)
    pieces, position = answers.repeat(data, 5)
    assert b"".join(pieces) == b"\0\0\0\x08\0\0\0\x01tail" + b"\0\0\0\x08\0\0\0\x02tail"
    assert data[position:] == framed(heartbeat("other", 3), 3)


@pytest.mark.parametrize(
    "other",
    [
        framed(heartbeat("m", 4)),
        framed(heartbeat("m", 3), client_id="d"),
        encode_request(HEARTBEAT, 1, 7, "c", heartbeat("m", 3)),
        b"\0\0\0\x09" + b"\0" * 9,
        framed(heartbeat("m", 3))[:4] + b"\0\x59" + framed(heartbeat("m", 3))[6:],
        framed(heartbeat("m", 3))[:-1],
        b"\xff\xff\xff\xff" + b"\0" * 40,
        b"",
    ],
)
def test_another_frame_or_a_part_of_one_is_left_to_the_rules(other: bytes) -> None:
    answers = ResponseCache(CacheGeneration())
    answers.keep(framed(heartbeat("m", 3))[4:], b"12345678tail", steady())
    assert answers.repeat(other, 5) == ([], 0)


def test_a_change_at_the_door_takes_every_answer_out_of_use() -> None:
    generation = CacheGeneration()
    answers = ResponseCache(generation)
    frame = framed(heartbeat("m", 3))
    answers.keep(frame[4:], b"12345678tail", steady())
    generation.advance()
    assert answers.repeat(frame, 5) == ([], 0)


def test_no_more_is_kept_than_the_bounds_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_paths, "MOST_ANSWERS", 3)
    answers = ResponseCache(CacheGeneration())
    for number in range(10):
        answers.keep(framed(heartbeat(f"m{number}", 3))[4:], b"12345678tail", steady())
        assert len(answers.known) <= 3
    answers.keep(framed(heartbeat("x" * fast_paths.LONGEST_BYTES, 3))[4:], b"12345678tail", steady())
    assert answers.repeat(framed(heartbeat("x" * fast_paths.LONGEST_BYTES, 3)), 5) == ([], 0)


# --- the same answers with and without ---


class Side:
    """A coordinator behind the wire, with or without repeated answers."""

    def __init__(self, settings: dict[str, object], *, repeats: bool) -> None:
        self.ctx = CoordinatorContext(settings=settings)
        self.answers = ResponseCache(CacheGeneration()) if repeats else None
        self.repeated = 0

    def exchange(self, frame: bytes) -> bytes:
        if self.answers is not None:
            pieces, _ = self.answers.repeat(frame, self.ctx.now_ms)
            if pieces:
                self.repeated += 1
                return b"".join(pieces)
        header, request = decode_request(frame[4:])
        context = self.ctx.context(api_version=header.api_version)
        try:
            result = self.ctx.shard.streams_group_heartbeat(request, context, now_ms=self.ctx.now_ms)  # type: ignore[arg-type]
        except CoordinatorError as error:
            return f"{error.code.name}: {error.message}".encode()
        self.ctx.apply(result)
        encoded = encode_response(header, result.replies[0].response)
        if self.answers is not None and result.repeatable is not None:
            self.answers.keep(frame[4:], encoded, result.repeatable)
        return encoded


class TwoSides:
    """One random history on both; each step compares all that can be seen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        settings: dict[str, object] = {
            "group.streams.assignment.interval.ms": self.random.choice([0, 0, 700]),
            "group.streams.initial.rebalance.delay.ms": self.random.choice([0, 0, 3_000]),
        }
        self.sides = [Side(settings, repeats=True), Side(settings, repeats=False)]
        self.topology = self.random.choice([STATELESS, STATEFUL])
        self.epochs: dict[str, int] = {}
        self.endpoint_epoch = -1
        self.correlation_id = 0

    def step(self) -> None:
        kind = self.random.choices(
            [self.beat, self.owned, self.join, self.leave, self.sleep, self.topics, self.settings, self.restart],
            [60, 15, 5, 2, 10, 2, 2, 1],
        )[0]
        kind()
        states = [(side.ctx.shard.digest(), side.ctx.log, side.ctx.shard.next_deadline_ms()) for side in self.sides]
        assert states[0] == states[1]

    def send(self, member_id: str, epoch: int, **given: Any) -> None:
        self.correlation_id += 1
        request = self.sides[0].ctx.request(member_id, epoch, **given)
        frame = framed(request, self.correlation_id)
        with_memo, without = (side.exchange(frame) for side in self.sides)
        assert with_memo == without
        described = self.sides[1].ctx.describe()
        self.epochs = {member.member_id: int(member.member_epoch) for member in described.members}

    def beat(self) -> None:
        if self.epochs:
            member_id = self.random.choice(sorted(self.epochs))
            epoch = self.epochs[member_id] - (self.random.random() < 0.05)
            self.send(
                member_id,
                epoch,
                shutdown=self.random.random() < 0.01,
                endpoint=("host", 9) if self.random.random() < 0.03 else None,
                endpoint_information_epoch=self.random.choice([-1, 0, 1, 2]),
            )

    def owned(self) -> None:
        if self.epochs:
            member_id = self.random.choice(sorted(self.epochs))
            described = self.sides[1].ctx.describe()
            [member] = [each for each in described.members if each.member_id == member_id]
            held = {each.subtopology_id: tuple(each.partitions) for each in member.assignment.active_tasks}
            self.send(member_id, self.epochs[member_id], active=held)

    def join(self) -> None:
        member_id = f"m{self.random.randrange(4)}"
        self.send(
            member_id, 0, topology=self.topology, active={}, rebalance_timeout_ms=2_000, process_id=f"p-{member_id}"
        )

    def leave(self) -> None:
        if self.epochs:
            self.send(self.random.choice(sorted(self.epochs)), -1)

    def sleep(self) -> None:
        duration_ms = self.random.choice([1, 400, 1_000, 5_000, 30_000])
        for side in self.sides:
            side.ctx.sleep(duration_ms)
        self.epochs = {
            member.member_id: int(member.member_epoch) for member in self.sides[1].ctx.describe().members or ()
        }

    def topics(self) -> None:
        topics = self.random.choice([{"in": 4}, {"in": 4, "cl": 4}, {"in": 5}, {}, {"in": 4, "other": 1}])
        for side in self.sides:
            side.ctx.set_topics(topics)

    def settings(self) -> None:
        settings = self.random.choice(
            [{}, {"streams.num.standby.replicas": "1"}, {"streams.heartbeat.interval.ms": "6000"}]
        )
        for side in self.sides:
            side.ctx.set_group_settings(settings)

    def restart(self) -> None:
        """The connections die with the broker."""
        for side in self.sides:
            side.ctx.restart()
            if side.answers is not None:
                side.answers = ResponseCache(CacheGeneration())


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_random_histories_are_answered_the_same_with_and_without(first_seed: int) -> None:
    repeated = 0
    for seed in range(first_seed, first_seed + 10):
        sides = TwoSides(seed)
        for _ in range(120):
            sides.step()
        repeated += sides.sides[0].repeated
    assert repeated > 50, "the histories hardly ever repeat an answer, so they show nothing"


# --- on a connection ---


def settled(client: Any, member_id: str = "m1") -> int:
    epoch = int(client.call(HEARTBEAT, heartbeat(member_id, 0, topology=topology()), 0).member_epoch)
    for _ in range(3):
        epoch = int(client.call(HEARTBEAT, heartbeat(member_id, epoch), 0).member_epoch)
    return epoch


def heartbeats_in_the_coordinator(broker: EmbeddedBroker) -> Callable[[], int]:
    """How many came to the rules since."""
    assert broker._running is not None
    metrics = broker._running.server.metrics
    before = metrics._event_times.count
    return lambda: metrics._event_times.count - before


def test_steady_heartbeats_do_not_reach_the_rules_and_a_change_does(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        epoch = settled(client)
        reached = heartbeats_in_the_coordinator(broker)
        told = [client.call(HEARTBEAT, heartbeat("m1", epoch), 0) for _ in range(5)]
        assert reached() == 0
        assert all(each == told[0] for each in told)
        broker.create_topics({"elsewhere": 1})
        assert client.call(HEARTBEAT, heartbeat("m1", epoch), 0) == told[0]
        assert reached() == 1


def test_another_connection_has_to_ask_the_rules(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        epoch = settled(connect(broker))
        reached = heartbeats_in_the_coordinator(broker)
        connect(broker).call(HEARTBEAT, heartbeat("m1", epoch), 0)
        assert reached() == 1


def test_answers_keep_their_order_when_requests_of_all_kinds_come_at_once(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        epoch = settled(client)
        same = framed(heartbeat("m1", epoch), client_id="test-client")
        client.call(HEARTBEAT, heartbeat("m1", epoch), 0)
        other = framed(heartbeat("nobody", 5), client_id="test-client")
        frames = [same, same, other, same, other, other, same] * 20
        data = b"".join(
            frame[:8] + number.to_bytes(4, "big") + frame[12:] for number, frame in enumerate(frames, start=1)
        )
        for start in range(0, len(data), 333):  # reads end in the middle of frames
            client.socket.sendall(data[start : start + 333])
        answered = [int.from_bytes(client.read_frame()[:4], "big") for _ in frames]
        assert answered == list(range(1, len(frames) + 1))


def test_streams_switched_off_reaches_a_member_whose_answer_was_kept(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST) as broker:
        client = connect(broker)
        epoch = settled(client)
        assert client.call(HEARTBEAT, heartbeat("m1", epoch), 0).error_code.name == "none"

        def switch_off(services: Any) -> None:
            services.features.update(
                [FeatureUpdate(name="streams.version", level=0, upgrade_type=2)], validate_only=False
            )

        broker._call(switch_off)
        assert client.call(HEARTBEAT, heartbeat("m1", epoch), 0).error_code.name == "unsupported_version"


def test_cached_bytes_are_counted_per_connection_and_in_total() -> None:
    """Unknown tagged fields make many keys of one heartbeat: 4.2 MB of each connection, counted nowhere."""
    generation = CacheGeneration(most_bytes=700_000)
    connections = [ResponseCache(generation) for _ in range(5)]
    for number in range(1000):
        for answers in connections:
            answers.keep(number.to_bytes(4, "big") + bytes(3000), bytes(100), steady())
            assert generation.kept_bytes <= 700_000
    assert all(len(answers.known) * 3100 < fast_paths.MOST_BYTES for answers in connections)
    for answers in connections:
        answers.clear()
    assert generation.kept_bytes == 0
    one = connections[0]
    frame = framed(heartbeat("m", 3))
    one.keep(frame[4:], b"12345678tail", steady())
    one.keep(frame[4:], b"12345678tail", steady())
    kept = generation.kept_bytes
    generation.advance()
    one.keep(frame[4:], b"12345678tail", steady())
    assert generation.kept_bytes == kept
