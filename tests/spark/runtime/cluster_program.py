"""A count on a Spark cluster whose processes are killed and stopped: `python cluster_program.py OUT MASTER STEP…`.

The broker and the producer are in this process, and the application is in a child (`drive`), which can be killed.
Steps, each while records come:

- `kill`: kill an executor with SIGKILL.
- `worker`: kill the Python workers of an executor, and its restore processes.
- `stop`: stop an executor with all its processes beyond the lease, and let it go on. `long-stop`: beyond the session.
- `replace`: kill the executors one after the other.
- `daemon`: kill the daemon of a host (the worker of a standalone cluster, YARN's NodeManager), and start it again.
  `host`: with all processes below it.
- `master`: kill the ApplicationMaster, which asks YARN for executors.
- `driver`: kill the driver, and start it again. `freeze`: stop it beyond its session, and let it go on.
- `short`: no step: two subtopologies want two slots each, of a cluster that has fewer cores.
- `lonely`: with `short` and three cores of a standalone cluster: kill the host of the subtopology that has one slot.
- `cut`: drop all packets of one executor's links, in both directions, for longer than the lease; `deaf`: those of the
  driver only. They need root, `iptables` and `ss`.

Writes a JSON document to OUT: what was counted and what should be, counts that were repeated, where the stores are, the
verdict of `verify`, and the seconds from each step until everything was counted again.
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

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.metadata.topic_administration import TopicRefused

WORDS = 40
SESSION_S = 45  # Kafka's default
PATIENCE_S = float(os.environ.get("CLUSTER_PATIENCE_S", "240"))
AGENT = "headrace.spark.runtime.stores.restore_agent"
WORKER, NODE_MANAGER = "org.apache.spark.deploy.worker.Worker", "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
APPLICATION_MASTER = "org.apache.spark.deploy.yarn.ExecutorLauncher"


# -- the application ---------------------------------------------------------------------------------------------------


def drive(bootstrap, directory, master, *options):
    """Run the application until stdin ends, then compare its results with a batch; a line of JSON at each."""
    from pyspark.sql import functions as F

    from headrace.spark.spark_session import session
    from headrace.spark.streams_app import StreamsApp

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("headrace").setLevel(logging.INFO)
    spark = session("cluster", master=master, settings=json.loads(os.environ.get("CLUSTER_SETTINGS", "{}")))
    config = {"headrace.max.slots": 4} if "short" in options else {}
    app = StreamsApp("words-on-cluster", spark=spark, bootstrap_servers=bootstrap, state_dir=directory, config=config)
    # By another key than the records': two subtopologies, of which the first one may have Spark SQL in its slots.
    key = None if {"sql", "short"} & set(options) else "w"
    rows = app.stream("words", schema="w string, n bigint", key=key)
    if "sql" in options:
        rows = rows.where("n >= 0").withColumn("n", F.col("n") % 1000)
    rows.groupBy("w").agg(F.count("*").alias("c"), F.max("n").alias("last")).to_topic("counts", partitions=2)
    with app.start():
        print(json.dumps(spark.sparkContext.applicationId), flush=True)
        sys.stdin.read()
    print(json.dumps(app.verify().passed), flush=True)
    spark.stop()


# -- processes ---------------------------------------------------------------------------------------------------------


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


def send_signal(pids, number):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def words_of(pid: int, file: str = "cmdline") -> list[str]:
    return Path(f"/proc/{pid}/{file}").read_text().rstrip("\0").split("\0")


def daemon_of(pid: int) -> int:
    """Return the process of the host that started an executor."""
    while not {WORKER, NODE_MANAGER} & set(words_of(pid := parent_of(pid))):  # YARN has shells in between
        pass
    return pid


def processes_with(word: str) -> list[int]:
    """Return the Java processes with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = words_of(int(path.name))
            if word in words and words[0].endswith("java"):
                found.append(int(path.name))
    return found


def executors(application_id: str) -> dict[str, int]:
    """Return the process of each executor."""
    found = {}
    for pid in processes_with(application_id):
        with contextlib.suppress(OSError):
            words = words_of(pid)
            if "--executor-id" in words:
                found[words[words.index("--executor-id") + 1]] = pid
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def state_directory(pid: int) -> Path:
    """Return the state directory of an executor."""
    environment = dict(word.split("=", 1) for word in words_of(pid, "environ") if "=" in word)
    given = environment.get("HEADRACE_EXECUTOR_STATE_DIR")
    return Path(given) if given else Path(f"/proc/{pid}/cwd").resolve() / "headrace-state"


# -- the steps ---------------------------------------------------------------------------------------------------------


class Program:
    def __init__(self, broker, stack, master, options):
        self.broker, self.stack = broker, stack
        self.directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
        self.command = [broker.bootstrap_servers, self.directory, master, *options]
        self.sent: collections.Counter[str] = collections.Counter()
        self.seconds = {}
        self.start()

    def start(self):
        self.driver = subprocess.Popen(
            [sys.executable, __file__, "--drive", *self.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.stack.callback(send_signal, [self.driver.pid], signal.SIGKILL)
        self.application_id = self.line()

    def line(self):
        """Return what the driver says next."""
        assert self.driver.stdout is not None
        text = self.driver.stdout.readline()
        assert text, "the driver ended"
        return json.loads(text)

    def end(self):
        """End the application, and return the verdict of `verify`."""
        assert self.driver.stdin is not None
        self.driver.stdin.close()
        verdict = self.line()
        self.driver.wait(60)
        return verdict

    def send(self, number=200):
        first = sum(self.sent.values())
        values = [json.dumps({"w": f"w{n % WORDS}", "n": n}) for n in range(first, first + number)]
        self.broker.produce("words", values, key=lambda value: json.loads(value)["w"])
        self.sent.update(f"w{n % WORDS}" for n in range(first, first + number))

    def rows(self):
        with contextlib.suppress(TopicRefused):
            return [json.loads(record.value) for record in self.broker.records("counts")]
        return []

    def counted(self):
        return {row["w"]: row["c"] for row in self.rows()}

    def repeated(self):
        """Return counts that do not follow a smaller one of their word: rows that were committed twice."""
        last: dict[str, int] = {}
        found = []
        for row in self.rows():
            if row["c"] <= last.get(row["w"], 0):
                found.append(row)
            last[row["w"]] = row["c"]
        return found

    def one_executor(self):
        return next(iter(executors(self.application_id).items()))

    def await_slots(self, number=2):
        """Wait until as many executors have a slot each: its restore process runs."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = [pid for executor in executors(self.application_id).values() for pid in descendants(executor)]
            with contextlib.suppress(OSError):
                if sum(AGENT in words_of(pid) for pid in found) >= number:
                    break
            time.sleep(0.5)
        time.sleep(5)  # for its hello

    def measure(self, step):
        began = time.monotonic()
        self.send()
        while (counted := self.counted()) != dict(self.sent) and time.monotonic() < began + PATIENCE_S:
            time.sleep(0.05)
        self.seconds.setdefault(step, []).append(round(time.monotonic() - began, 2))
        print(time.strftime("%H:%M:%S"), step, self.seconds[step], counted == dict(self.sent), file=sys.stderr)

    def kill(self, step="kill"):
        self.send()
        send_signal([self.one_executor()[1]], signal.SIGKILL)
        self.measure(step)

    def worker(self):
        self.send()
        send_signal(descendants(self.one_executor()[1])[1:], signal.SIGKILL)
        self.measure("worker")

    def replace(self):
        for _ in range(2):
            self.kill("replace")
            self.await_slots()
            self.measure("replaced")

    def daemon(self):
        self._worker_again("daemon", lambda pid: [pid])

    def host(self):
        self._worker_again("host", descendants)

    def master(self):
        before = executors(self.application_id)
        self.send()
        send_signal(processes_with(APPLICATION_MASTER), signal.SIGKILL)
        self.measure("master")
        deadline = time.monotonic() + PATIENCE_S
        while executors(self.application_id).keys() & before.keys() and time.monotonic() < deadline:
            time.sleep(0.1)  # YARN ends the executors of an ApplicationMaster that is lost
        self.await_slots()
        self.measure("master again")

    def _worker_again(self, step, victims):
        daemon = daemon_of(self.one_executor()[1])
        command, environment = words_of(daemon), words_of(daemon, "environ")
        directory = Path(f"/proc/{daemon}/cwd").resolve()
        self.send()
        send_signal(victims(daemon), signal.SIGKILL)
        self.measure(step)
        again = subprocess.Popen(
            command, env=dict(word.split("=", 1) for word in environment if "=" in word), cwd=directory
        )
        # A NodeManager that is asked to end waits for its ResourceManager, which may have ended by then.
        self.stack.callback(send_signal, [again.pid], signal.SIGKILL if NODE_MANAGER in command else signal.SIGTERM)
        self.await_slots()
        self.measure(f"{step} again")

    def lonely(self):
        of_slots = {pid: descendants(pid) for pid in executors(self.application_id).values()}
        assert len(of_slots) == 3
        stateful = {pid for pid, below in of_slots.items() if any(AGENT in words_of(each) for each in below)}
        # Counts have a restore process beside each of their slots, the rows in front of them have none.
        [victim] = stateful if len(stateful) == 1 else set(of_slots) - stateful
        self.send()
        send_signal(descendants(daemon_of(victim)), signal.SIGKILL)
        self.measure("lonely")

    def driver_killed(self):
        self.send()
        send_signal([self.driver.pid], signal.SIGKILL)
        self.driver.wait()
        self.start()
        self.measure("driver")

    def freeze(self):
        self.send()
        stopped = descendants(self.driver.pid)
        in_executors = {pid for each in executors(self.application_id).values() for pid in descendants(each)}
        stopped = [pid for pid in stopped if pid not in in_executors]  # of a local cluster
        send_signal(stopped, signal.SIGSTOP)
        time.sleep(SESSION_S + 10)
        send_signal(stopped, signal.SIGCONT)
        self.measure("freeze")

    def stop(self, step="stop", further_s=0):
        self.send()
        stopped = descendants(self.one_executor()[1])
        send_signal(stopped, signal.SIGSTOP)
        self.measure(step)
        time.sleep(further_s)
        self.measure(step)
        send_signal(stopped, signal.SIGCONT)
        self.await_slots()
        self.measure("continued")

    def long_stop(self):
        self.stop("long-stop", SESSION_S)

    def cut(self):
        self._cut("cut", ["--dport", "--sport"])

    def deaf(self):
        self._cut("deaf", ["--sport"])

    def _cut(self, step, ends):
        """Drop packets of the links of one executor: `--sport` those that the driver sends, `--dport` those to it."""
        pids = set(descendants(self.one_executor()[1]))
        lines = subprocess.run(["ss", "-Htnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        connections = [(line.split(), {int(pid) for pid in re.findall(r"pid=(\d+)", line)}) for line in lines]
        of_driver = {words[3] for words, owners in connections if self.driver.pid in owners}
        rules = []
        for words, owners in connections:
            if owners & pids and words[4] in of_driver:
                own, port = words[3].rpartition(":")[2], words[4].rpartition(":")[2]
                for end in ends:
                    other = "--sport" if end == "--dport" else "--dport"
                    rules.append(["INPUT", "-p", "tcp", end, port, other, own, "-j", "DROP"])
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


OPTIONS = ("sql", "short")
STEPS = {
    "kill": Program.kill,
    "worker": Program.worker,
    "stop": Program.stop,
    "long-stop": Program.long_stop,
    "replace": Program.replace,
    "daemon": Program.daemon,
    "host": Program.host,
    "master": Program.master,
    "lonely": Program.lonely,
    "driver": Program.driver_killed,
    "freeze": Program.freeze,
    "cut": Program.cut,
    "deaf": Program.deaf,
}


def main(out, master, *steps):
    config = {"group.streams.initial.rebalance.delay.ms": 0}
    with EmbeddedBroker({"words": 4}, config=config) as broker, contextlib.ExitStack() as stack:
        program = Program(broker, stack, master, [step for step in steps if step in OPTIONS])
        for _ in range(3):
            program.measure("plain")
        homes = {}
        for executor, pid in executors(program.application_id).items():
            found = state_directory(pid).glob("*/*/*/*")
            homes[executor] = sorted(path.parent.name for path in found if path.is_dir())
        for step in steps:
            if step not in OPTIONS:
                STEPS[step](program)
        result = {
            "verdict": program.end(),
            "expected": dict(program.sent),
            "counted": program.counted(),
            "repeated": program.repeated(),
            "homes": homes,
            "in_driver": sorted(path.name for path in Path(program.directory).glob("*_[0-9]*")),
            "seconds": program.seconds,
        }
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    drive(*sys.argv[2:]) if sys.argv[1] == "--drive" else main(*sys.argv[1:])
