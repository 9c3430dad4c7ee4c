"""Random histories of groups through Kafka's server-side assignors (4.3.1) and ours: `range` gives the same, `uniform`
is as balanced and moves no more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from tests.coordinator.assignors.test_partition_assignors import Target, spec, topic
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars
from tests.longer import LONG

from headrace.coordinator.assignors.partition_assignors import RangeAssignor, UniformAssignor

pytestmark = pytest.mark.interop

SOURCES = Path(__file__).parent / "java_partition_assignors"
HISTORIES, ROUNDS = 120 if LONG else 40, 10
Plain = dict[str, set[tuple[int, int]]]  # member → (topic, partition)


class Peer(Protocol):
    """The previous assignment is its own last answer."""

    def assign(self, name: str, counts: Mapping[int, int], reads: Mapping[str, set[int]]) -> Plain: ...
    def reset(self) -> None: ...


@dataclass
class Ours:
    previous: Target = field(default_factory=dict)

    def reset(self) -> None:
        self.previous = {}

    def assign(self, name: str, counts: Mapping[int, int], reads: Mapping[str, set[int]]) -> Plain:
        assignor = RangeAssignor() if name == "range" else UniformAssignor()
        previous = {member: self.previous.get(member, {}) for member in reads}
        self.previous = assignor.assign(spec(reads, counts, previous))
        numbers = {topic(number): number for number in counts}
        return {
            member: {(numbers[topic_id], each) for topic_id, of_topic in partitions.items() for each in of_topic}
            for member, partitions in self.previous.items()
        }


class Kafkas:
    """A Java process."""

    def __init__(self) -> None:
        command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp"]
        command += [f"{compiled(SOURCES)}:{kafka_jars(TOOLS_VERSION)}/*", "PartitionAssignorPeer"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._known: set[str] = set()

    def reset(self) -> None:
        self._known = set()
        self._say("reset")

    def assign(self, name: str, counts: Mapping[int, int], reads: Mapping[str, set[int]]) -> Plain:
        for gone in sorted(self._known - reads.keys()):
            self._say(f"gone {gone}")
        self._known = set(reads)
        for number, count in counts.items():
            self._say(f"topic {number} {count}")
        for member in sorted(reads):
            self._say(" ".join(["member", member, *map(str, sorted(reads[member]))]))
        self._say(f"assign {name}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.flush()
        found: Plain = {}
        while (line := self._process.stdout.readline().strip()) != "done":
            assert line, "Kafka's assignor ended"
            member, *words = line.split()
            found[member] = {(int(each.partition(":")[0]), int(each.partition(":")[2])) for each in words}
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")


@dataclass
class Tally:
    moved: int = 0
    imbalance: int = 0


@pytest.fixture(scope="module")
def kafkas(kafka_tools: None) -> Iterator[Kafkas]:
    peer = Kafkas()
    yield peer
    peer.close()


def play(peer: Peer, name: str, seed: int, *, same: bool, tally: Tally) -> list[Plain]:
    random = Random(seed)
    counts = {number: random.randint(1, 12) for number in range(4)}
    reads: dict[str, set[int]] = {}
    before: Plain = {}
    answers = []
    peer.reset()
    for serial in range(ROUNDS):
        for extra in range(random.choice([1, 1, 2, 3])):
            if len(reads) > 1 and random.random() < 0.4:
                del reads[random.choice(sorted(reads))]
            else:
                reads[f"m{serial}{extra}"] = (
                    set(range(4)) if same else set(random.sample(range(4), random.randint(1, 4)))
                )
        if random.random() < 0.2:
            counts[random.randrange(4)] += 2
        after = peer.assign(name, counts, reads)
        answers.append(after)
        owner = {each: member for member, partitions in before.items() for each in partitions}
        tally.moved += sum(owner.get(each, member) != member for member, of in after.items() for each in of)
        tally.imbalance += sum(
            max(0, len(after[giver]) - min(len(after[taker]) for taker in reads if number in reads[taker]) - 1)
            for giver in reads
            for number in range(4)
            if any(each[0] == number for each in after[giver])
        )
        before = after
    return answers


@pytest.mark.parametrize("same", [True, False], ids=["same topics", "different topics"])
def test_uniform_is_as_balanced_and_moves_no_more(
    kafkas: Kafkas, same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = Tally(), Tally()
    for seed in range(HISTORIES):
        play(kafkas, "uniform", seed, same=same, tally=theirs)
        play(Ours(), "uniform", seed, same=same, tally=ours)
    with capsys.disabled():
        print(f"\n  Kafka {theirs}\n  ours  {ours}")
    assert ours.imbalance <= theirs.imbalance
    assert ours.moved <= theirs.moved * 1.02


@pytest.mark.parametrize("same", [True, False], ids=["same topics", "different topics"])
def test_range_is_the_same(kafkas: Kafkas, same: bool) -> None:
    for seed in range(HISTORIES // 3):
        theirs = play(kafkas, "range", seed, same=same, tally=Tally())
        assert play(Ours(), "range", seed, same=same, tally=Tally()) == theirs
