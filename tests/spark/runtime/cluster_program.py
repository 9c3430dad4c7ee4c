"""A count on a Spark cluster, with executors that are killed and stopped: `python cluster_program.py OUT MASTER STEP…`.

A process of its own, because a process has one Spark session. Steps:

- `kill`: kill an executor with SIGKILL while records come.
- `stop`: stop an executor with all its processes beyond the lease, and let it go on.
- `worker`: kill the Python workers of an executor.
- `replace`: kill the executors one after the other.
- `cut`: drop all packets of one executor's links, in both directions, for longer than the lease; `deaf`: those of the
  driver only. They need root, `iptables` and `ss`.

Writes a JSON document to OUT: what was counted and what should be, where the stores are, the verdict of `verify`, and
the seconds from each step until everything was counted again.
"""

import collections
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as F

from headrace.broker.embedded import EmbeddedBroker
from headrace.spark.spark_session import session
from headrace.spark.streams_app import StreamsApp

WORDS = 40
PATIENCE_S = float(os.environ.get("CLUSTER_PATIENCE_S", "180"))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def descendants(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if parent_of(int(path.name)) == pid:
                found += descendants(int(path.name))
    return found


def executors(application_id: str) -> dict[str, int]:
    """Return the process of each executor."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_text().split("\0")
            if "--executor-id" in words and application_id in words and words[0].endswith("java"):
                found[words[words.index("--executor-id") + 1]] = int(path.name)
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


class Program:
    def __init__(self, broker, running, application_id):
        self.broker, self.running, self.application_id = broker, running, application_id
        self.sent: collections.Counter[str] = collections.Counter()
        self.seconds = {}

    def send(self, number=200):
        first = sum(self.sent.values())
        values = [json.dumps({"w": f"w{n % WORDS}", "n": n}) for n in range(first, first + number)]
        self.broker.produce("words", values, key=lambda value: json.loads(value)["w"])
        self.sent.update(f"w{n % WORDS}" for n in range(first, first + number))

    def count_all(self):
        self.running.wait_until("caught-up", timeout=PATIENCE_S)

    def counted(self):
        rows = [json.loads(record.value) for record in self.broker.records("counts")]
        return {row["w"]: row["c"] for row in rows}

    def one_executor(self):
        return next(iter(executors(self.application_id).items()))

    def await_executors(self, number=2):
        deadline = time.monotonic() + PATIENCE_S
        while len(executors(self.application_id)) < number and time.monotonic() < deadline:
            time.sleep(0.2)

    def measure(self, step):
        began = time.monotonic()
        self.send()
        self.count_all()
        self.seconds.setdefault(step, []).append(round(time.monotonic() - began, 2))
        print(step, self.seconds[step], self.counted() == dict(self.sent), flush=True)

    def kill(self, step="kill"):
        self.send()
        os.kill(self.one_executor()[1], signal.SIGKILL)
        self.measure(step)

    def worker(self):
        self.send()
        for pid in descendants(self.one_executor()[1])[1:]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.measure("worker")

    def replace(self):
        for _ in range(2):
            self.kill("replace")
            self.await_executors()
            time.sleep(5)
            self.measure("replaced")

    def cut(self):
        self._cut("cut", ["--dport", "--sport"])

    def deaf(self):
        self._cut("deaf", ["--sport"])

    def _cut(self, step, ends):
        """Drop packets of the links of one executor: `--sport` those that the driver sends, `--dport` those to it."""
        (jobs,) = self.app_jobs()
        port = jobs._slots._address[1]
        pids = set(descendants(self.one_executor()[1]))
        lines = subprocess.run(["ss", "-Htnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        rules = []
        for line in lines:
            words, owners = line.split(), {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
            if words[4].endswith(f":{port}") and owners & pids:
                own = words[3].rpartition(":")[2]
                for end in ends:
                    other = "--sport" if end == "--dport" else "--dport"
                    rules.append(["INPUT", "-p", "tcp", end, str(port), other, own, "-j", "DROP"])
        assert rules, "the executor has links"
        self.send()
        for rule in rules:
            subprocess.run(["iptables", "-I", *rule], check=True)
        try:
            self.measure(step)
            time.sleep(20 if step == "deaf" else 8)
            self.measure(step)
        finally:
            for rule in rules:
                subprocess.run(["iptables", "-D", *rule], check=True)
        self.measure(f"after {step}")

    def app_jobs(self):
        # The port of the links is nobody else's business.
        return [runner._jobs for runner in self.running._runtime.runners.values()]

    def stop(self):
        self.send()
        stopped = descendants(self.one_executor()[1])
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        self.measure("stop")
        for pid in stopped:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(3)
        self.measure("continued")


def main(out, master, *steps):
    logging.basicConfig(level=logging.WARNING, format="%(relativeCreated)d %(name)s %(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)
    config = {"group.streams.initial.rebalance.delay.ms": 0}
    directory = tempfile.mkdtemp(prefix="cluster-")
    with EmbeddedBroker({"words": 4}, config=config) as broker:
        spark = session("cluster", master=master, settings=json.loads(os.environ.get("CLUSTER_SETTINGS", "{}")))
        application_id = spark.sparkContext.applicationId
        print("session", application_id, flush=True)
        app = StreamsApp(
            "words-on-cluster", spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=directory
        )
        # By another key than the records': two subtopologies, of which the first one has Spark SQL in its slots.
        key = None if "sql" in steps else "w"
        rows = app.stream("words", schema="w string, n bigint", key=key)
        if "sql" in steps:
            rows = rows.where("n >= 0").withColumn("n", F.col("n") % 1000)
        rows.groupBy("w").agg(F.count("*").alias("c"), F.max("n").alias("last")).to_topic("counts", partitions=2)
        with app.start() as running:
            program = Program(broker, running, application_id)
            for _ in range(3):
                program.measure("plain")
            homes = {}
            for executor, pid in executors(application_id).items():
                stores = Path(f"/proc/{pid}/cwd").resolve() / "headrace-state"
                homes[executor] = sorted(path.parent.name for path in stores.glob("*/*/*/*") if path.is_dir())
            for step in steps:
                if step != "sql":
                    getattr(program, step)()
        verdict = app.verify()
        result = {
            "expected": dict(program.sent),
            "counted": program.counted(),
            "homes": homes,
            "verdict": verdict.passed,
            "in_driver": sorted(path.name for path in Path(directory).glob("*_[0-9]*")),
            "seconds": program.seconds,
        }
        Path(out).write_text(json.dumps(result))
        print(program.seconds, result["homes"], verdict, flush=True)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
