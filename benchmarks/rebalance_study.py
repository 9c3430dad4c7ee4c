"""Consumption through a rolling restart of five members: the cliff, and how each step removes it.

One broker (ours; --kafka: Apache Kafka 4.3.1) and one topic of twelve partitions, into which records flow at a steady
rate. Five members, each a process (`study_member.py`), handle a record in 2 ms, and one in 500 in 2 s: the slow answer
that every service gives now and then. Then they are restarted one after the other: SIGTERM, a pause as a new process
needs it, and on to the next when the new one has its share. Each case is a group of its own:

    eager range · cooperative sticky · static members (eager range) · the consumer protocol (KIP-848)

each with the loop that most programs have (poll, handle all of it, commit) and with our pipeline (`ParallelConsumer`).

Told of each case, from the first restart to three seconds after the last one: seconds without a single record handled
(in bins of half a second), the largest backlog beyond that before it, partition-seconds without an owner, and
partitions whose owner changed for another. Prints a table, or JSON with --json; --plot FILE writes the picture.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from load_contenders import Contender, apache_kafka, headrace_broker
from study_plot import Row, drawn

MEMBERS, PARTITIONS, BIN_S = 5, 12, 0.5
CALM_S, DOWN_S, SETTLE_S, AFTER_S, PATIENCE_S = 8.0, 1.5, 2.0, 3.0, 60.0
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 10_000}
CASES: dict[str, dict[str, object]] = {
    "eager range": {**CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative sticky": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "static members": {**CLASSIC, "partition.assignment.strategy": "range", "group.instance.id": "{name}"},
    "consumer protocol": {"group.protocol": "consumer"},
}


@dataclass(kw_only=True)
class Told:
    """Mutable: what one process of one place in the group has said."""

    place: int
    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def partitions(self) -> set[int]:
        found: set[int] = set()
        for line in list(self.lines):
            found |= set(line.get("gained", ()))
            found -= set(line.get("gone", ()))
        return found


def main() -> None:
    arguments = parse_arguments()
    broker = apache_kafka if arguments.kafka else headrace_broker
    figures = []
    with broker("never") as contender:
        for pipeline, (name, settings) in itertools.product((False, True), CASES.items()):
            if arguments.only and arguments.only not in name:
                continue
            figures.append(Case(contender, name, settings, pipeline, arguments).run())
            if not arguments.json:
                print(line(figures[-1]), flush=True)
    if arguments.plot:
        rows = [row(figure) for figure in figures]
        heading = f"Records handled per second through a rolling restart of {MEMBERS} members, {arguments.rate} come in"
        arguments.plot.write_text(drawn(rows, top_rate=2.5 * arguments.rate, heading=heading), encoding="utf-8")
    if arguments.json:
        print(json.dumps(figures))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500, help="records per second that come in (500)")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--restarts", type=int, default=MEMBERS, help="how many of the five (all)")
    parser.add_argument("--kafka", action="store_true", help="on Apache Kafka 4.3.1 instead of our broker")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Case:
    """Mutable: one group on its way through its restarts."""

    def __init__(
        self, broker: Contender, name: str, settings: dict[str, object], pipeline: bool, arguments: argparse.Namespace
    ) -> None:
        self.name = name + (", pipeline" if pipeline else "")
        self._broker, self._settings, self._pipeline, self._arguments = broker, settings, pipeline, arguments
        self._topic = f"study-{uuid.uuid4().hex[:8]}"
        self._members: list[Told] = []
        self._ended: list[Told] = []
        self._readers: list[threading.Thread] = []
        self._stop = threading.Event()
        self._sent: list[tuple[float, int]] = []

    def run(self) -> dict[str, Any]:
        self._broker.create_topic(self._topic, PARTITIONS)
        flow = threading.Thread(target=self._flow)
        try:
            for place in range(MEMBERS):
                self._members.append(self._start(place))
            self._until(self._shared, "every member has a share")
            flow.start()
            time.sleep(CALM_S)
            began, restarts = time.monotonic(), []
            for place in range(self._arguments.restarts):
                restarts.append(time.monotonic() - began)
                self._restart(place)
            time.sleep(AFTER_S)
            return self._figures(began, time.monotonic(), restarts)
        finally:
            self._stop.set()
            for told in self._members:
                told.process.kill()
                told.process.wait()
            for thread in (*self._readers, flow):
                with contextlib.suppress(RuntimeError):
                    thread.join()
            self._broker.delete_topic(self._topic)

    def _start(self, place: int) -> Told:
        config = {key: str(value).replace("{name}", f"member-{place}") for key, value in self._settings.items()}
        command = [sys.executable, str(Path(__file__).with_name("study_member.py")), self._broker.bootstrap_servers]
        command += [self._topic, self._topic, "--config", json.dumps(config)]
        process = subprocess.Popen(
            command + ["--pipeline"] * self._pipeline, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        told = Told(place=place, process=process)
        self._readers.append(threading.Thread(target=told.read))
        self._readers[-1].start()
        return told

    def _restart(self, place: int) -> None:
        told = self._members[place]
        told.process.send_signal(signal.SIGTERM)
        told.process.wait(PATIENCE_S)
        self._ended.append(told)
        time.sleep(DOWN_S)
        self._members[place] = self._start(place)
        self._until(self._shared, f"member {place} has its share again")
        time.sleep(SETTLE_S)

    def _shared(self) -> bool:
        shares = [told.partitions() for told in self._members]
        return all(shares) and sum(map(len, shares)) == PARTITIONS == len(set().union(*shares))

    def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: not after {PATIENCE_S:.0f} s: {what}")
            time.sleep(0.05)

    def _flow(self) -> None:
        """Records at a steady rate, spread evenly over the partitions."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._broker.bootstrap_servers, "linger.ms": 10})
        began, sent = time.monotonic(), 0
        while not self._stop.wait(0.02):
            due = int((time.monotonic() - began) * self._arguments.rate)
            for number in range(sent, due):
                producer.produce(self._topic, b"x" * 100, partition=number % PARTITIONS)
            producer.poll(0)
            self._sent.append((time.monotonic(), due))
            sent = due
        producer.flush(10)

    # What it comes to.

    def _figures(self, began: float, ended: float, restarts: list[float]) -> dict[str, Any]:
        lines = sorted(self._lines(), key=lambda found: found[0]["at"])
        handled = [(told["at"], told["handled"]) for told, _ in lines if "handled" in told]
        bins = [0] * int((ended - began) / BIN_S)
        for at, count in handled:
            if began <= at < began + len(bins) * BIN_S:
                bins[int((at - began) / BIN_S)] += count
        stopped, moved = self._ownership(lines, began, ended)
        backlog = self._backlog(handled)
        before = [size for at, size in backlog if began - CALM_S / 2 <= at < began]
        return {
            "case": self.name,
            "seconds": ended - began,
            "rate": self._arguments.rate,
            "seconds_at_zero": BIN_S * bins.count(0),
            "backlog": max(size for at, size in backlog if at >= began) - sum(before) / max(1, len(before)),
            "partition_seconds_without_owner": stopped,
            "partitions_moved": moved,
            "restarts": restarts,
            "rates": [count / BIN_S for count in bins],
        }

    def _lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        for told in (*self._ended, *self._members):
            for found in list(told.lines):
                yield found, told.place

    def _ownership(self, lines: list[tuple[dict[str, Any], int]], began: float, ended: float) -> tuple[float, int]:
        """(partition-seconds without an owner, partitions that went to another place than the one they had)."""
        last, free, stopped, moved = dict[int, int](), dict[int, float](), 0.0, 0
        for told, place in lines:
            for partition in told.get("gone", ()):
                free[partition] = told["at"]
            for partition in told.get("gained", ()):
                stopped += max(0.0, told["at"] - max(free.pop(partition, told["at"]), began))
                moved += told["at"] >= began and last.get(partition, place) != place
                last[partition] = place
        return stopped + sum(ended - max(at, began) for at in free.values()), moved

    def _backlog(self, handled: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """(time, sent and not handled), at each look of the sender."""
        found, done, next_one = [], 0, 0
        for at, sent in self._sent:
            while next_one < len(handled) and handled[next_one][0] <= at:
                done += handled[next_one][1]
                next_one += 1
            found.append((at, sent - done))
        return found


def row(figure: dict[str, Any]) -> Row:
    note = f"{figure['seconds_at_zero']:.1f} s at zero, {figure['partitions_moved']} partitions moved"
    return Row(title=figure["case"], note=note, rates=figure["rates"], bin_s=BIN_S, restarts=figure["restarts"])


def line(figure: dict[str, Any]) -> str:
    return (
        f"{figure['case']:<32}{figure['seconds']:>6.1f} s{figure['seconds_at_zero']:>8.1f} s at zero"
        f"{figure['backlog']:>8.0f} records behind{figure['partition_seconds_without_owner']:>8.1f} partition-seconds "
        f"without owner{figure['partitions_moved']:>5} moved"
    )


if __name__ == "__main__":
    main()
