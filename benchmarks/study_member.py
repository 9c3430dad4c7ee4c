"""One member of the group that `rebalance_study.py` watches: a loop of polls, or our three-stage pipeline.

Each line on stdout is a JSON object with the time (seconds, monotonic, one clock for all processes of a machine) and
what happened: records handled since the last line, partitions gained or let go. Ends on SIGTERM as a good member does:
what is running is finished and committed, then it leaves (a static one keeps its place).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from headrace import Consumer, ParallelConsumer
from headrace.client.consumer.consumer_types import RebalanceListener
from headrace.errors import BrokerError

REPORT_S = 0.1


class Story:
    """Mutable: events to report, in order. Handlers of several threads count in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = 0
        self._next = 0.0

    def handled(self) -> None:
        with self._lock:
            self._handled += 1
            if time.monotonic() >= self._next:
                self._flush()

    def tell(self, what: str, partitions: Sequence[Any]) -> None:
        with self._lock:
            self._flush()
            self._line({what: sorted(each.partition for each in partitions)})

    def end(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._handled:
            self._line({"handled": self._handled})
        self._handled = 0
        self._next = time.monotonic() + REPORT_S

    def _line(self, happened: dict[str, object]) -> None:
        sys.stdout.write(json.dumps({"at": time.monotonic(), **happened}) + "\n")
        sys.stdout.flush()


class Told(RebalanceListener):
    def __init__(self, story: Story) -> None:
        self._story = story

    def on_assigned(self, partitions: Sequence[Any]) -> None:
        self._story.tell("gained", partitions)

    def on_revoked(self, partitions: Sequence[Any]) -> None:
        self._story.tell("gone", partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--config", type=json.loads, default={}, help="of the consumer, as JSON")
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--work-ms", type=float, default=2.0, help="of a record (2)")
    parser.add_argument("--slow-every", type=int, default=500, help="one record in so many (500) …")
    parser.add_argument("--slow-ms", type=float, default=2000.0, help="… takes so long (2000)")
    arguments = parser.parse_args()
    story = Story()

    def handle(record: Any) -> None:
        # Each partition at its own time: all are filled alike, and would be slow in the same moment.
        slow = (record.offset + 41 * record.partition) % arguments.slow_every == arguments.slow_every - 1
        time.sleep((arguments.slow_ms if slow else arguments.work_ms) / 1000)
        story.handled()

    consumer = Consumer(
        arguments.topic,
        group_id=arguments.group,
        bootstrap_servers=arguments.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        listener=Told(story),
        config=arguments.config,
    )
    if arguments.pipeline:
        ParallelConsumer(consumer, handle, workers=12, order="partition", buffer_records=1000).run()
    else:
        loop(consumer, handle)
    story.end()


def loop(consumer: Consumer, handle: Any) -> None:
    """As most consumers are written: poll, handle all of it, commit, poll."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with consumer:
        while not stopping.is_set():
            for record in consumer.poll_records(0.2, 100):
                handle(record)
            with contextlib.suppress(BrokerError):  # in the middle of a rebalance; the next one covers it
                consumer.commit()


if __name__ == "__main__":
    main()
