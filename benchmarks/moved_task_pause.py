"""How long a task stands still when it moves: last record by its old owner → first record by its new one.

Two instances share 8 tasks, records flow steadily (one per partition and 20 ms); a third instance comes (scale-out) and
leaves again (graceful leave), at random moments, so that each falls into another phase of every instance's heartbeats.
Side by side in one run: our members on our broker, our members on Apache Kafka, Kafka Streams
(`group.protocol=streams`) on the same Kafka, and on our broker. Instances of one kind live in one process, warmed up.
All brokers have their defaults (heartbeat interval 5 s, assignment interval 1 s, session 45 s).

With `--state-mb` the members are whole applications that count records per key, with so much state: a Spark application
of ours (exactly once, the default) on our broker, and Kafka Streams (at least once, the default; RocksDB) on Apache
Kafka. Both read the same topic: a record for each key of the state, all of which are counted before the first phase,
then the same steady feed. Ours counts as done with a record when its micro-batch is *committed*, Kafka Streams when it
has *processed* it.

Also told: the longest time without a record of tasks that stayed, beside the longest in the rest before the move (1.5
to 6.5 s); records processed twice; records left out. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.ports import find_free_port

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.client.task_loop import TaskLoop
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord
from headrace.client.sender import Sender
from headrace.errors import HeadraceError
from headrace.protocol.record_batches import encode_batch

PARTITIONS = 8
FEED_EVERY_S = 0.02
PATIENCE_S = 180
KEYS_PER_MB = 10_000  # of 90 bytes, with a count
PREFILL_ROWS = 5_000
JAVA_PEER = Path(__file__).parent / "peers" / "moved_task_pause" / "KafkaStreamsInstances.java"
BUILD = Path(__file__).parent.parent / ".build" / "peers" / "moved_task_pause"
KAFKA_DEFAULTS = {
    "group.initial.rebalance.delay.ms": 3000,
    "group.streams.initial.rebalance.delay.ms": 3000,
    "group.streams.min.session.timeout.ms": 45000,
    "group.streams.min.heartbeat.interval.ms": 5000,
    "group.streams.heartbeat.interval.ms": 5000,
}

# What child processes do.


def prefilled(megabytes: int) -> int:
    """Records of each partition that make so much state."""
    return megabytes * KEYS_PER_MB // PARTITIONS


def prefill(bootstrap: str, topic: str, megabytes: int) -> None:
    """Records with keys of their own: so many megabytes of state, spread evenly."""
    import pyarrow as pa

    from headrace.client.producer import Producer

    each = prefilled(megabytes)
    with NetworkClient(bootstrap, client_id="prefill") as client, Producer(client) as producer:
        for start in range(0, each, PREFILL_ROWS):
            for partition in range(PARTITIONS):
                numbers = range(start, min(start + PREFILL_ROWS, each))
                keys = [b"%02d%088d" % (partition, number) for number in numbers]
                values = [b'{"k": "%s"}' % key for key in keys]
                producer.send(topic, partition, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def feed(bootstrap: str, topic: str) -> None:
    """A record for each partition every 20 ms, until standard input ends."""
    import select

    with NetworkClient(bootstrap, client_id="feed") as client:
        queue = Sender(client, enable_idempotence=False)
        due = time.monotonic()
        while True:
            due += FEED_EVERY_S
            if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
                return
            stamp = int(time.time() * 1000)
            for partition in range(PARTITIONS):
                key = f"feed-{partition}".encode()
                value = b'{"k": "%s", "x": "%080d"}' % (key, due)
                queue.add(topic, partition, encode_batch([PlainRecord(key=key, value=value, timestamp_ms=stamp)]))
            queue.flush()


def host(bootstrap: str, group: str, topic: str, file: str) -> None:
    """Our instances; the same commands and lines as the Java peer's."""
    running: dict[str, TaskLoop] = {}
    with Path(file).open("w", buffering=1) as out:
        print("ready", flush=True)
        for line in sys.stdin:
            word, name = line.split()
            if word == "start":

                def note(partition: int, offset: int, at_ns: int, name: str = name) -> None:
                    out.write(f"{name} {partition} {offset} {at_ns}\n")

                running[name] = TaskLoop(name, bootstrap, group, topic, note)
                running[name].start()
            else:
                running.pop(name).stop()
            print("done " + line.strip(), flush=True)
        for loop in running.values():
            loop.stop()


# The parent.


@dataclass
class Event:
    """A third instance came or left; times on the monotonic clock."""

    kind: str
    rested_ns: int  # since when all were at rest before
    began_ns: int
    settled_ns: int


@dataclass
class Setup:
    """One kind of members on one broker."""

    name: str
    bootstrap: str
    kind: str
    directory: Path
    state_mb: int = 0
    events: list[Event] = field(default_factory=list)
    lines: list[tuple[str, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = f"pause-{self.kind}"
        self.sink = f"{self.topic}-counts"
        self.group = f"group-{self.kind}"
        self.first = prefilled(self.state_mb)  # records before it are there to make the state, and not noted
        self.file = self.directory / f"{self.name.replace(' ', '-')}.log"
        self._read = 0
        self._rest = ""
        self.owners: dict[int, str] = {}

    def begin(self, stack: ExitStack) -> None:
        self.admin = stack.enter_context(Admin(self.bootstrap))
        self.admin.create_topics({self.topic: PARTITIONS}, replication_factor=1, exist_ok=True)
        if self.state_mb:
            self.admin.create_topics({self.sink: PARTITIONS}, replication_factor=1, exist_ok=True)
            prefill(self.bootstrap, self.topic, self.state_mb)
        self.process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.directory / f"{self.file.stem}.err").open("w"),
            text=True,
        )
        stack.callback(_end, self.process)
        assert self.process.stdout is not None
        while self.process.stdout.readline().strip() != "ready":
            assert self.process.poll() is None, f"{self.name} did not start; see {self.directory}"
        script = [sys.executable, __file__, "--feed", self.bootstrap, self.topic]
        stack.callback(_end, subprocess.Popen(script, stdin=subprocess.PIPE))

    def _command(self) -> list[str]:
        if self.kind == "ours":
            return [sys.executable, __file__, "--host", self.bootstrap, self.group, self.topic, str(self.file)]
        if self.kind == "spark":
            script = str(Path(__file__).with_name("spark_instances.py"))
            where = [self.bootstrap, self.group, self.topic, str(self.file), str(self.directory / "spark-state")]
            return [sys.executable, script, *where, str(self.first)]
        return [
            java(),
            "-Xmx512m",
            "-cp",
            f"{kafka_jars(TOOLS_VERSION)}/*:{BUILD}",
            "KafkaStreamsInstances",
            self.bootstrap,
            self.group,
            self.topic,
            str(self.file),
            str(self.directory / f"{self.file.stem}-state"),
            self.sink if self.state_mb else "-",
            str(self.first),
        ]

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def shares(self, counts: list[int]) -> bool:
        """Whether the instances process so many tasks each, and the group has come to rest."""
        self.read()
        held: dict[str, int] = defaultdict(int)
        for owner in self.owners.values():
            held[owner] += 1
        if sorted(held.values()) != counts:
            return False
        return self.admin.describe_streams_groups([self.group])[self.group].state == "Stable"

    def read(self) -> None:
        """Takes the new lines of the log."""
        if not self.file.exists():
            return
        with self.file.open() as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            name, partition, offset, at_ns = line.split()
            self.lines.append((name, int(partition), int(offset), int(at_ns)))
            self.owners[int(partition)] = name


def _end(process: subprocess.Popen[Any]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)


def happen(setups: list[Setup], kind: str, command: str, counts: list[int], rest_s: float) -> None:
    """After a rest the same event in all groups at the same moment; waits until all have come to rest."""
    rested_ns = time.monotonic_ns()
    time.sleep(rest_s)
    began_ns = time.monotonic_ns()
    for setup in setups:
        setup.tell(command)
    waiting = list(setups)
    until = time.monotonic() + PATIENCE_S
    while waiting:
        time.sleep(0.05)
        for setup in list(waiting):
            if setup.shares(counts):
                setup.events.append(Event(kind, rested_ns, began_ns, time.monotonic_ns()))
                waiting.remove(setup)
        if time.monotonic() > until:
            raise TimeoutError(f"{[(setup.name, setup.owners) for setup in waiting]} after {command}")


def measure(setups: list[Setup], phases: int, seed: int) -> None:
    """Two instances each; then phase by phase a third comes and goes."""
    chance = random.Random(seed)
    for name in ("a", "b"):
        for setup in setups:
            setup.tell(f"start {name}")
    for setup in setups:
        wait(lambda setup=setup: setup.shares([4, 4]), f"{setup.name} settles: {setup.owners}")  # type: ignore[misc]
    for phase in range(phases):
        happen(setups, "scale-out", f"start c{phase}", [2, 3, 3], chance.uniform(1.5, 6.5))
        happen(setups, "leave", f"stop c{phase}", [4, 4], chance.uniform(1.5, 6.5))
        print(f"phase {phase + 1} of {phases}", file=sys.stderr)
    time.sleep(0.5)
    for setup in setups:
        setup.read()


# The figures.


def by_partition(setup: Setup) -> dict[int, list[tuple[int, str, int]]]:
    """(time, instance, offset) of each partition's records, in the order of the processing."""
    found: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for name, partition, offset, at_ns in setup.lines:
        found[partition].append((at_ns, name, offset))
    return {partition: sorted(entries) for partition, entries in sorted(found.items())}


def gaps(entries: list[tuple[int, str, int]], start_ns: int, end_ns: int) -> Iterator[tuple[int, bool]]:
    """(nanoseconds between two records, whether the owner changed) of each pair that reaches into a span."""
    for (earlier_ns, before, _), (later_ns, after, _) in itertools.pairwise(entries):
        if later_ns >= start_ns and earlier_ns <= end_ns:
            yield later_ns - earlier_ns, before != after


def figures(setup: Setup) -> dict[str, Any]:
    """Pauses in seconds, of each kind of event."""
    partitions = by_partition(setup)
    told: dict[str, Any] = {"setup": setup.name}
    for kind in ("scale-out", "leave"):
        moved: list[float] = []
        stayed: list[float] = []
        quiet: list[float] = []
        for event in (event for event in setup.events if event.kind == kind):
            for entries in partitions.values():
                seen = list(gaps(entries, event.began_ns, event.settled_ns))
                changes = [gap / 1e9 for gap, changed in seen if changed]
                if changes:
                    moved.append(max(changes))
                else:
                    stayed.append(max(gap for gap, _ in seen) / 1e9)
                before = [gap for gap, _ in gaps(entries, event.rested_ns, event.began_ns)]
                quiet.append(max(before) / 1e9)
        told[kind] = {
            "moves": len(moved),
            "median": round(statistics.median(moved), 3),
            "fastest": round(min(moved), 3),
            "slowest": round(max(moved), 3),
            "stayed_median": round(statistics.median(stayed), 3),
            "stayed_slowest": round(max(stayed), 3),
            "quiet_median": round(statistics.median(quiet), 3),
            "quiet_slowest": round(max(quiet), 3),
        }
    told["twice"] = sum(len(entries) - len({offset for _, _, offset in entries}) for entries in partitions.values())
    told["left_out"] = sum(
        max(offset for _, _, offset in entries) + 1 - setup.first - len({offset for _, _, offset in entries})
        for entries in partitions.values()
    )
    return told


def table(results: list[dict[str, Any]], phases: int) -> str:
    lines = [f"Pause of a moved task in seconds: median (fastest to slowest), {phases} random phases", ""]
    heads = f"{'scale-out':<24}{'graceful leave':<24}{'longest gap of tasks that stay (quiet)':<42}{'twice':<8}left out"
    lines.append(f"{'':<28}{heads}")
    for told in results:
        cells = [
            f"{told[kind]['median']:.2f} ({told[kind]['fastest']:.2f} to {told[kind]['slowest']:.2f})"
            for kind in ("scale-out", "leave")
        ]
        stayed = " / ".join(
            f"{told[kind]['stayed_median']:.2f} ({told[kind]['quiet_median']:.2f})" for kind in ("scale-out", "leave")
        )
        cells.append(f"{stayed:<42}{told['twice']:<8}{told['left_out']}")
        lines.append(f"{told['setup']:<28}{cells[0]:<24}{cells[1]:<24}{cells[2]}")
    return "\n".join(lines)


def our_broker(stack: ExitStack, directory: Path) -> str:
    port = find_free_port()
    data = directory / "headrace"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", str(data), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=(directory / "headrace.err").open("w"),
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)

    def serves() -> bool:
        try:
            with NetworkClient(f"127.0.0.1:{port}", api_timeout_ms=500) as client:
                return bool(client.metadata([]).brokers)
        except (HeadraceError, OSError):
            return False

    wait(serves, "our broker starts")
    return f"127.0.0.1:{port}"


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        directory = options.directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="moved-task-pause-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        ours = our_broker(stack, directory)
        setups = [Setup("ours on our broker", ours, "ours", directory)]
        if options.state_mb:
            setups = [Setup("Spark on our broker", ours, "spark", directory, state_mb=options.state_mb)]
        if not options.without_kafka:
            BUILD.mkdir(parents=True, exist_ok=True)
            jars = kafka_jars(TOOLS_VERSION)
            subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(BUILD), str(JAVA_PEER)], check=True)
            kafka = stack.enter_context(KafkaBroker(TOOLS_VERSION, KAFKA_DEFAULTS)).bootstrap_servers
            setups.append(Setup("Kafka Streams on Kafka", kafka, "kafka-streams", directory, state_mb=options.state_mb))
            if not options.state_mb:
                setups.append(Setup("ours on Kafka", kafka, "ours", directory))
                setups.append(Setup("Kafka Streams on our broker", ours, "kafka-streams", directory))
        for setup in setups:
            setup.begin(stack)
        measure(setups, options.phases, options.seed)
        return [figures(setup) for setup in setups]


def main() -> None:
    if sys.argv[1:2] == ["--feed"]:
        return feed(*sys.argv[2:])
    if sys.argv[1:2] == ["--host"]:
        return host(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=int, default=20, help="how often the third instance comes and goes")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--state-mb", type=int, default=0, help="whole applications with so much state")
    parser.add_argument("--without-kafka", action="store_true", help="ours on our broker only")
    parser.add_argument("--directory", type=Path, help="for logs and data, which stay there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = run(options)
    print(json.dumps(results, indent=2) if options.json else table(results, options.phases))
    return None


if __name__ == "__main__":
    main()
