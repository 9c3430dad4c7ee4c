"""Our client-side assignors beside Kafka's own (4.3.1): range and roundrobin equal, sticky as balanced and as sticky;
the bytes of subscriptions, assignments and user data are Kafka's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Self

import pytest
from tests.assignors.group_play import Given, Tally, our_divide, play
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

from headrace.assignors.assignor import Assignment, Subscription, TopicPartition
from headrace.assignors.consumer_protocol import decode_subscription, encode_assignment, encode_subscription
from headrace.assignors.kafka_assignors import (
    CooperativeStickyAssignor,
    StickyAssignor,
    decode_sticky_user_data,
    encode_sticky_user_data,
)

pytestmark = pytest.mark.interop

HISTORIES = 60


class KafkasClientAssignors:
    """Kafka's assignors as a process; a context manager. `divide` fits `group_play.play`."""

    def __init__(self) -> None:
        classpath = f"{compiled(Path(__file__).parent / 'java_client_assignors')}:{kafka_jars(TOOLS_VERSION)}/*"
        command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
        self._process = subprocess.Popen(
            [*command, "ClientAssignorPeer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def divide(self, name: str, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Given:
        self.describe(topics, members)
        self.say(f"assign {name}")
        given: dict[str, tuple[TopicPartition, ...]] = {}
        while (line := self.heard()) != "done":
            member_id, partitions, encoded = line.split(" ")
            given[member_id] = listed(partitions)
            assert bytes.fromhex(encoded) == encode_assignment(Assignment(partitions=given[member_id]))
        return given

    def describe(self, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> None:
        lines = ["reset", *(f"topic {topic} {count}" for topic, count in topics.items())]
        for member_id, each in members.items():
            data = "-" if each.user_data is None else each.user_data.hex()
            words = ["member", member_id, each.instance_id or "-", ",".join(each.topics) or "-", data or "-"]
            lines.append(" ".join([*words, said(each.owned_partitions), str(each.generation_id), each.rack_id or "-"]))
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(lines) + "\n")

    def ask(self, line: str) -> str:
        self.say(line)
        return self.heard()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "Kafka's assignors ended"
        return line.rstrip("\n")


def said(partitions: tuple[TopicPartition, ...]) -> str:
    return ",".join(f"{topic}:{partition}" for topic, partition in partitions) or "-"


def listed(text: str) -> tuple[TopicPartition, ...]:
    pairs = [] if text == "-" else [each.rpartition(":") for each in text.split(",")]
    return tuple((topic, int(partition)) for topic, _, partition in pairs)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkasClientAssignors]:
    with KafkasClientAssignors() as peer:
        yield peer


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_the_same_assignments(kafka: KafkasClientAssignors, name: str) -> None:
    compared = 0

    def both(name: str, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Given:
        nonlocal compared
        ours, theirs = our_divide(name, topics, members), kafka.divide(name, topics, members)
        assert {m: sorted(p) for m, p in ours.items()} == {m: sorted(p) for m, p in theirs.items()}
        compared += 1
        return ours

    for seed in range(HISTORIES):
        play(name, seed, both)
    assert compared == HISTORIES * 8


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_as_balanced_and_as_sticky(kafka: KafkasClientAssignors, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kafkas, ours = Tally(), Tally()
    for seed in range(HISTORIES):
        play(name, seed, kafka.divide, tally=kafkas)
        play(name, seed, our_divide, tally=ours)
    with capsys.disabled():
        print(f"\n  {name}: Kafka {kafkas}, ours {ours}")
    assert ours.excess == 0
    assert ours.moved <= kafkas.moved


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_leaders_of_both_kinds_take_turns(kafka: KafkasClientAssignors, name: str) -> None:
    """In a mixed group the next leader may be the other client: each reads what the other's members had."""
    tally = Tally()
    for seed in range(HISTORIES // 3):
        turn = Random(seed)

        def either(
            name: str, topics: Mapping[str, int], members: Mapping[str, Subscription], turn: Random = turn
        ) -> Given:
            return (kafka.divide if turn.random() < 0.5 else our_divide)(name, topics, members)

        play(name, seed, either, tally=tally)
    assert tally.rounds == HISTORIES // 3 * 8


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_have_kafkas_bytes(kafka: KafkasClientAssignors, version: int) -> None:
    random = Random(version)
    for _ in range(60):
        topics = tuple(random.sample(["a", "bb", "x.y", "t-1", "zz"], random.randint(1, 5)))
        subscription = Subscription(
            topics=topics,
            user_data=random.choice([None, b"\x00\x01"]),
            owned_partitions=tuple((random.choice(topics), number) for number in random.sample(range(9), 4)),
            generation_id=random.randint(-1, 9),
            rack_id=random.choice([None, "r1"]),
        )
        kafka.describe({}, {"m": subscription})
        encoded = encode_subscription(subscription, version)
        assert kafka.ask(f"encode m {version}") == encoded.hex()
        read = decode_subscription(encoded)
        words = [",".join(read.topics), "-" if read.user_data is None else read.user_data.hex()]
        words += [said(read.owned_partitions), str(read.generation_id), read.rack_id or "-"]
        assert kafka.ask(f"decode {encoded[2:].hex()} {version}") == " ".join(words)


def test_user_data_has_kafkas_bytes(kafka: KafkasClientAssignors) -> None:
    for partitions, generation_id in [((), 1), ((("a", 0), ("a", 3)), 7), ((("t", 2),), 1 << 30)]:
        ours = StickyAssignor()
        ours.on_assignment(Assignment(partitions=partitions), generation_id)
        encoded = ours.subscription_user_data(("a",))
        assert encoded == encode_sticky_user_data(partitions, generation_id)
        assert kafka.ask(f"sticky {said(partitions)} {generation_id}") == encoded.hex()
        cooperative = CooperativeStickyAssignor()
        cooperative.on_assignment(Assignment(partitions=partitions), generation_id)
        assert kafka.ask(f"cooperative {generation_id}") == (cooperative.subscription_user_data(("a",)) or b"").hex()
    # Of several topics Java writes the order of a hash map, which no reader looks at.
    several = (("b", 1), ("a", 0), ("c", 2))
    read, generation_id = decode_sticky_user_data(bytes.fromhex(kafka.ask(f"sticky {said(several)} 4")))
    assert (sorted(read), generation_id) == (sorted(several), 4)
    assert CooperativeStickyAssignor().subscription_user_data(()) == b"\xff" * 4
