"""How long tasks of an application on a Spark cluster stand still when an executor is killed.

Two executors of one core each (`local-cluster[2,1,1024]`, or `--master`), 4 tasks with a count each, exactly once, one
record per task and 20 ms. An executor is killed with SIGKILL. A pause of a task is the time between two of its rows, as
a consumer gets them. Printed for tasks of the lost executor, and for the others: the longest pause in the 10 s before
the kill, in the 10 s after it, and in the time after that, when another executor has started and takes its tasks back.
`--keys` puts so many keys into the stores first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import itertools
from typing import Self

import pyspark
from tests.spark.runtime import cluster_program
from tests.spark.runtime.cluster_program import Program, executors, send_signal, state_directory

from headrace import Consumer
from headrace.broker.embedded import EmbeddedBroker

EVERY_S = 0.02
BEFORE_S, AFTER_S, LATER_S = 10.0, 10.0, 25.0
CHUNK = 20_000


class Feed:
    """A record per task and `EVERY_S`, and the times at which rows of each task come."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.task_of = {json.loads(r.value)["w"]: r.partition for r in program.broker.records("words")}
        self.word_of = {task: word for word, task in self.task_of.items()}
        self.came: dict[int, list[float]] = defaultdict(list)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._send, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        number = 0
        while not self._ended.wait(EVERY_S):
            for word in self.word_of.values():
                number += 1
                self.program.broker.produce("words", [json.dumps({"w": word, "n": number})], key=lambda _, w=word: w)
                self.program.sent[word] += 1

    def _read(self) -> None:
        with Consumer(bootstrap_servers=self.program.broker.bootstrap_servers) as consumer:
            consumer.assign(consumer.partitions_for("counts"))
            consumer.seek_to_end()
            while not self._ended.is_set():
                batch = consumer.poll(0.05)
                now = time.monotonic()
                for value in batch.column("value").to_pylist():
                    self.came[self.task_of[json.loads(value)["w"]]].append(now)

    def pause_ms(self, tasks: set[int], since: float, until: float) -> int:
        """Return the longest pause of tasks that ends in a time span or is under way at its end."""
        longest = 0.0
        for task in tasks:
            times = [since, *(each for each in self.came[task] if since <= each <= until), until]
            longest = max(longest, *(b - a for a, b in itertools.pairwise(times)))
        return round(longest * 1000)


def kill(program: Program, feed: Feed) -> dict[str, int]:
    program.await_slots()
    began = time.monotonic()
    time.sleep(BEFORE_S)
    _, pid = next(iter(executors(program.application_id).items()))
    # Stores of tasks that moved away stay there, and are not written any more.
    written = [path for path in state_directory(pid).glob("*/*/*/*/data.mdb") if time.time() - path.stat().st_mtime < 3]
    lost = {int(path.parent.parent.name.rsplit("_", 1)[1]) for path in written}
    others = set(feed.word_of) - lost
    killed = time.monotonic()
    send_signal([pid], signal.SIGKILL)
    time.sleep(AFTER_S + LATER_S)
    spans = {
        "before": (began, killed),
        "after": (killed, killed + AFTER_S),
        "later": (killed + AFTER_S, killed + AFTER_S + LATER_S),
    }
    return {
        f"{whose}_{name}_ms": feed.pause_ms(tasks, *span)
        for name, span in spans.items()
        for whose, tasks in (("others", others), ("lost", lost))
    } | {"tasks_lost": len(lost)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--keys", type=int, default=0)
    options = parser.parse_args()
    config = {"group.streams.initial.rebalance.delay.ms": 0}
    with contextlib.ExitStack() as stack:
        # A Spark home of its own: working directories of executors, and so their stores, are made below it.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-home-")))
        for path in Path(pyspark.__path__[0]).iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
        os.environ["SPARK_HOME"] = str(home)
        broker = stack.enter_context(EmbeddedBroker({"words": 4}, config=config))
        program = Program(broker, stack, options.master, [])
        for first in range(0, options.keys, CHUNK):
            words = [f"k{number}" for number in range(first, min(first + CHUNK, options.keys))]
            broker.produce("words", [json.dumps({"w": w, "n": 0}) for w in words], key=lambda v: json.loads(v)["w"])
            program.sent.update(words)
        for _ in range(2):
            program.measure("plain")
        with Feed(program) as feed:
            for _ in range(options.kills):
                print(json.dumps(kill(program, feed)), flush=True)
        program.measure("end")
        print("equal", program.counted() == dict(program.sent), "repeated", len(program.repeated()))
        print("verify", program.end())
        shutil.rmtree(home / "work", ignore_errors=True)


if __name__ == "__main__":
    cluster_program.logging.basicConfig()
    main()
