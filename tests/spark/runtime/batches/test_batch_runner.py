"""What fails in the middle of a micro-batch: nothing is lost, healthy tasks go on, the record is named."""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from headrace.errors import RecordError, UserCodeError
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark


def cast_application(app, flights, **settings):
    """`cast(text as int)` fails under ANSI, Spark 4's default, for what is no number."""
    rows = app.stream("numbers", schema="text string", **settings)
    rows.selectExpr("cast(text as int) AS number").to_topic("out", partitions=1)
    return app


def send_numbers(broker, texts, partition):
    broker.produce("numbers", [json.dumps({"text": text}) for text in texts], partition=partition)


def numbers_out(broker):
    return [json.loads(record.value)["number"] for record in broker.records("out")]


@pytest.fixture
def numbers(broker):
    broker.create_topics({"numbers": 3, "numbers.bad": 1})
    for partition in range(3):
        send_numbers(broker, [str(n) for n in range(partition * 100, partition * 100 + 100)], partition)
    return broker


def test_an_sql_error_names_the_record_and_loses_nothing(numbers, make_app, running, flights):
    send_numbers(numbers, ["forty-two", "943"], 1)
    send_numbers(numbers, [str(n) for n in range(500, 520)], 2)
    app = running(cast_application(make_app("casts"), flights))
    with pytest.raises(RecordError) as raised:
        app.awaitTermination(60)
    error = raised.value
    assert error.code == "undigestible"
    assert (error.facts["topic"], error.facts["partition"], error.facts["offset"]) == ("numbers", 1, 100)
    assert "numbers-1@100" in str(error)
    assert "CAST_INVALID_INPUT" in error.facts["reason"]
    # everything before the record and every other task is done, and committed
    assert set(numbers_out(numbers)) == {*range(300), *range(500, 520)}
    assert numbers.group("casts").offsets["numbers", 1] == 100
    assert numbers.group("casts").offsets["numbers", 2] == 120


def test_records_that_sql_cannot_digest_are_skipped(numbers, make_app, running, flights):
    send_numbers(numbers, ["x", "1000", "y"], 0)
    app = running(cast_application(make_app("casts"), flights, on_error="skip"))
    app.wait_until("caught-up", timeout=60)
    assert set(numbers_out(numbers)) == {*range(300), 1000}
    assert sum(row["skippedRecords"] for row in app.recentProgress) == 2


def test_records_that_sql_cannot_digest_go_to_the_dead_letter_topic(numbers, make_app, running, flights):
    send_numbers(numbers, ["x", "1000"], 0)
    app = running(cast_application(make_app("casts"), flights, on_error=DeadLetter("numbers.bad")))
    app.wait_until("caught-up", timeout=60)
    [dead] = numbers.records("numbers.bad")
    headers = dict(dead.headers)
    assert json.loads(dead.value) == {"text": "x"}
    assert headers["headrace.topic"] == b"numbers"
    assert headers["headrace.partition"] == b"0"
    assert headers["headrace.offset"] == b"100"
    assert b"CAST_INVALID_INPUT" in headers["headrace.reason"]
    assert 1000 in numbers_out(numbers)


@pytest.mark.parametrize("policy", ["fail", "skip", "dead letter"])
def test_undecodable_records_follow_the_policy(numbers, make_app, running, flights, policy):
    numbers.produce("numbers", ["{broken", '{"text": "7000"}'], partition=2)
    on_error = DeadLetter("numbers.bad") if policy == "dead letter" else policy
    app = running(cast_application(make_app("casts"), flights, on_error=on_error))
    if policy == "fail":
        with pytest.raises(RecordError) as raised:
            app.awaitTermination(60)
        assert raised.value.code == "undecodable"
        assert "numbers-2@100" in str(raised.value)
        assert set(numbers_out(numbers)) == set(range(300))
        return
    app.wait_until("caught-up", timeout=60)
    assert set(numbers_out(numbers)) == {*range(300), 7000}
    dead = numbers.records("numbers.bad")
    assert [record.value for record in dead] == ([b"{broken"] if policy == "dead letter" else [])


def test_a_function_that_runs_its_frame_twice_buries_once(numbers, make_app, running):
    numbers.produce("numbers", ["{broken", '{"text": "7000"}'], partition=2)
    seen = []

    def take(frame, _number):
        seen.append((frame.count(), len(frame.collect())))

    app = make_app("twice")
    app.stream("numbers", schema="text string", on_error=DeadLetter("numbers.bad")).foreachBatch(take)
    with running(app) as started:
        started.wait_until("caught-up", timeout=60)
    assert {sum(counts) for counts in zip(*seen, strict=True)} == {301}
    assert [record.value for record in numbers.records("numbers.bad")] == [b"{broken"]
    assert sum(row["deadLetters"] for row in started.recentProgress) == 1


def test_an_error_of_the_users_python_names_the_record(numbers, make_app, running):
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType

    @F.udf(IntegerType())
    def picky(text):
        if text == "150":
            raise ValueError("not this one")
        return int(text)

    app = make_app("picky")
    app.stream("numbers", schema="text string").select(picky("text").alias("number")).to_topic("out", partitions=1)
    with pytest.raises(RecordError) as raised:
        running(app).awaitTermination(60)
    assert "numbers-1@50" in str(raised.value)
    assert "not this one" in raised.value.facts["reason"]
    assert set(numbers_out(numbers)) == {*range(150), *range(200, 300)}


def test_the_users_foreach_batch_function_may_fail(numbers, make_app, running):
    def fail(frame, number):
        raise LookupError("no table")

    app = make_app("tables")
    app.stream("numbers", schema="text string").foreachBatch(fail)
    with pytest.raises(UserCodeError) as raised:
        running(app).awaitTermination(60)
    assert "LookupError: no table" in str(raised.value)
    assert isinstance(raised.value.__cause__, LookupError)
    assert not numbers.group("tables").offsets


def workers_of(spark):
    """The forked Python workers of the session's JVM."""
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    daemons = children.get(jvm, [])
    return [worker for daemon in daemons for worker in children.get(daemon, [])]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers in /proc")
def test_a_killed_worker_loses_nothing(broker, make_app, running, spark, flights):
    app = running(flights.count_slowly(make_app("slow")))
    app.wait_until("running", timeout=60)
    for start in range(0, 600, 200):
        flights.send_keyed(broker, range(start, start + 200))
        [runner] = app._runtime.runners.values()
        app._wait(lambda runner=runner: runner.batch_since is not None, None, "in a batch")
        for worker in workers_of(spark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(600))


class Factories:
    """Spark's factories of Python workers (one for each environment), by the fields that Spark does not show."""

    FACTORY = "api.python.PythonWorkerFactory"

    def __init__(self, spark):
        self._class = spark.sparkContext._jvm.java.lang.Class
        env = self._field("SparkEnv$", "env").get(self._field("SparkEnv$", "MODULE$").get(None))
        found = self._field("SparkEnv", "pythonWorkers").get(env).valuesIterator()
        self._factories = []
        while found.hasNext():
            self._factories.append(found.next())

    def _field(self, class_name, name):
        found = self._class.forName(f"org.apache.spark.{class_name}").getDeclaredField(name)
        found.setAccessible(True)
        return found

    def daemons(self):
        """The daemon of each factory that has one."""
        found = [(factory, self._field(self.FACTORY, "daemon").get(factory)) for factory in self._factories]
        return [(factory, daemon) for factory, daemon in found if daemon is not None]

    def lose_the_daemons(self):
        """As after a death in their first second, with the task that waited for it cancelled."""
        for factory, daemon in self.daemons():
            daemon.destroyForcibly().waitFor()
            declared = {
                field.getName() for field in self._class.forName(f"org.apache.spark.{self.FACTORY}").getDeclaredFields()
            }
            for name, nowhere in (("daemonSockPath", None), ("daemonPort", 0)):
                if name in declared:  # Spark 4.0 knows only ports
                    self._field(self.FACTORY, name).set(factory, nowhere)
            self._field(self.FACTORY, "idleWorkers").get(factory).clear()


def test_a_daemon_that_died_while_it_started_is_replaced(broker, make_app, running, spark, flights):
    """Spark keeps it for the rest of the JVM's life, and each task ends with a NullPointerException."""
    app = running(flights.count_slowly(make_app("slow")))
    app.wait_until("running", timeout=60)
    flights.send_keyed(broker, range(200))
    app.wait_until("caught-up", timeout=60)
    factories = Factories(spark)
    before = {daemon.pid() for _, daemon in factories.daemons()}
    factories.lose_the_daemons()
    flights.send_keyed(broker, range(200, 400))
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(400))
    assert not before & {daemon.pid() for _, daemon in factories.daemons()}


def test_a_cancelled_job_loses_nothing(broker, make_app, running, flights):
    app = running(flights.count_slowly(make_app("slow")))
    app.wait_until("running", timeout=60)
    [runner] = app._runtime.runners.values()
    for start in range(0, 600, 200):
        flights.send_keyed(broker, range(start, start + 200))
        app._wait(lambda: runner.batch_since is not None, None, "in a batch")
        runner.cancel()
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(600))


def test_an_sql_error_rolls_state_back(broker, make_app, running, flights):
    """Rows before the bad one were merged in the failed attempt; they must not count twice."""
    app = make_app("state")
    rows = app.stream("flights", schema="origin string, n string", key="origin", on_error="skip")
    rows.selectExpr("origin", "cast(n as bigint) as n").groupBy("origin").sum("n").to_topic("by-origin", partitions=1)
    broker.produce("flights", [json.dumps({"origin": "EWR", "n": str(n)}) for n in range(100)], partition=0)
    started = running(app)
    started.wait_until("caught-up", timeout=60)
    values = [str(n) if n != 150 else "bad" for n in range(100, 200)]
    broker.produce("flights", [json.dumps({"origin": "EWR", "n": value}) for value in values], partition=0)
    started.wait_until("caught-up", timeout=60)
    [row] = flights.newest(broker, "by-origin").values()
    assert row["sum(n)"] == sum(range(200)) - 150


def test_a_broker_that_restarts(broker, make_app, running, flights):
    flights.send(broker, range(100))
    app = running(flights.count_by_origin(make_app()))
    app.wait_until("caught-up", timeout=60)
    broker.kill()
    restarted = threading.Timer(0.5, broker.restart)
    restarted.start()
    restarted.join()
    flights.send(broker, range(100, 250))
    app.wait_until("caught-up", timeout=90)
    assert flights.newest(broker, "by-origin") == flights.counted(range(250))
