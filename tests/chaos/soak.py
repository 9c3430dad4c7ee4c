"""50,000 micro-batches, each with next to nothing in it, while the memory of every process is watched.

`python -m tests.chaos.soak --batches 50000 --partitions 2` prints a line for every tenth of the way, and a verdict.
SIGTERM, SIGINT and `--minutes` end it early, with a verdict on what there is. One instance of an application with two
subtopologies, each with a task per partition, under exactly once; flights come singly, so that one micro-batch follows
the other. It passes when every flight was counted once and, for each process,

- memory is flat: the median of the last quarter of the samples is at most 8 % or 12 MiB above that of the second
  quarter (the first is the warm-up), whichever is more; for the JVM that is its heap and the rest of its memory after a
  collection, for all others what is theirs alone and their share of what is shared (Pss);
- open files and threads are at most 10 % or 20 above those of the second; Spark's jobs and its event log (which has a
  few lines for each job) stay as they are, since resident slots start no job for a micro-batch.

The last line is the growth for each 1,000 micro-batches, by least squares over the second half of the samples.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tests.durability.soak import verdict
from tests.harness.polling import wait_until
from tests.spark.application.processes import BrokerProcess, Feed, caught_up, descendants, newest, still_alive

from headrace.client.admin import Admin

FLIGHTS_PER_SECOND = 250
ROLES = {  # what stands in a command line, and who that is; the first that fits
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "headrace.cli.main": "broker",
    "headrace.client.guardian": "guardian",
    "headrace.spark.runtime.stores.replica_process": "replicas",
    "headrace.spark.runtime.daemon": "workers",
    "soak_app": "driver",
    "measured_application": "driver",  # benchmarks ask as well
}
LIMITS = {
    **{f"{role}_mb": (0.08, 12.0) for role in ("broker", "guardian", "replicas", "workers", "driver")},
    **dict.fromkeys(("heap_mb", "non_heap_mb"), (0.08, 12.0)),
    **dict.fromkeys(("files", "threads", "processes"), (0.1, 20.0)),
    "objects": (0.05, 5000.0),
    "jobs": (0.0, 5.0),
    "event_log_kb": (0.02, 64.0),
}


def memory_of(pids: list[int]) -> dict[str, float]:
    """By role: megabytes (Pss); and how many processes, threads and open files all of them have."""
    found: dict[str, float] = {f"{role}_mb": 0.0 for role in ROLES.values()}
    found |= {"files": 0, "threads": 0, "processes": 0}
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended while we looked
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            role = next((role for part, role in ROLES.items() if part in command), None)
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if role is not None:
                found[f"{role}_mb"] += int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024
            found["files"] += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            found["threads"] += sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
            found["processes"] += 1
    return found


class SoakedApplication:
    """`soak_app.py` as a child that answers questions."""

    def __init__(self, bootstrap_servers: str, directory: Path) -> None:
        self.log = directory / "application.log"
        environment = {
            **os.environ,
            "HEADRACE_BOOTSTRAP_SERVERS": bootstrap_servers,
            "HEADRACE_STATE_DIR": str(directory / "state"),
            "MASTER": "local[2]",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("soak_app.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def ask(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        assert answer, f"the application ended with {self.process.poll()}:\n{self.log.read_text()[-3000:]}"
        return json.loads(answer)

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(120)

    def end(self) -> None:
        left = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        for entry in still_alive(left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, 9)


def sample(application: SoakedApplication, began: float) -> dict[str, float]:
    told = application.ask()
    pids = [entry.pid for entry in descendants(os.getpid()) if entry.pid != os.getpid()]
    found = {
        "minute": (time.monotonic() - began) / 60,
        "batches": told["batches"],
        "heap_mb": told["heap"],
        "non_heap_mb": told["non_heap"],
        **{name: told[name] for name in ("objects", "jobs", "event_log_kb")},
        **memory_of(pids),
    }
    return {name: round(value, 1) for name, value in found.items()}


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return what grew per 1,000 micro-batches in the second half of the samples."""
    half = samples[len(samples) // 2 :]
    batches = np.array([one["batches"] for one in half])
    if len(half) < 3 or batches[0] == batches[-1]:
        return {}
    slopes = {name: np.polyfit(batches, [one[name] for one in half], 1)[0] * 1000 for name in LIMITS}
    return {name: round(float(slope), 3) for name, slope in slopes.items()}


def soak(
    batches: int, *, partitions: int, minutes: float, interval_seconds: float, directory: Path, over: threading.Event
) -> tuple[list[dict[str, float]], list[str]]:
    """The samples, and what was wrong."""
    taken: list[dict[str, float]] = []
    printed = 0
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(directory / "data"))
        servers = broker.bootstrap_servers
        admin = stack.enter_context(Admin(servers))
        admin.create_topics({"flights": partitions})
        application = SoakedApplication(servers, directory)
        stack.callback(application.end)
        application.ask()
        feed = stack.enter_context(Feed(servers, partitions)).run(FLIGHTS_PER_SECOND)
        began = time.monotonic()
        while not over.wait(interval_seconds) and time.monotonic() < began + minutes * 60:
            taken.append(sample(application, began))
            if taken[-1]["batches"] >= batches * printed / 10:
                print(json.dumps(taken[-1]), flush=True)
                printed = int(taken[-1]["batches"] * 10 // batches) + 1
            if taken[-1]["batches"] >= batches:
                break
        sent = feed.stop()
        wait_until(lambda: caught_up(admin, "soak"), "caught up", application, broker)
        failures = verdict(taken, LIMITS)
        if code := application.stop():
            failures.append(f"the application ended with {code}: {application.log.read_text()[-2000:]}")
        counted = newest(servers, "soak-counted")
        if sum(row["flights"] for row in counted.values()) != sent:
            failures.append(f"{sent} flights, but counted were {counted}")
    return taken, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=50_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--interval-seconds", type=float, default=20)
    arguments = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    directory = Path(tempfile.mkdtemp(prefix="headrace-soak-app-"))
    print(f"everything is in {directory}", file=sys.stderr)
    samples, failures = soak(
        arguments.batches,
        partitions=arguments.partitions,
        minutes=arguments.minutes,
        interval_seconds=arguments.interval_seconds,
        directory=directory,
        over=over,
    )
    if not samples:
        print("ended before the first sample")
        return 1
    last = samples[-1]
    print(json.dumps(last))
    print(f"per 1,000 micro-batches: {json.dumps(growth(samples))}")
    rate = last["batches"] / last["minute"] / 60
    print(f"{last['batches']:.0f} micro-batches in {last['minute']:.1f} minutes, {rate:.1f} per second; "
          + ("passed" if not failures else "FAILED:\n" + "\n".join(failures)))  # fmt: skip
    if not failures:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
