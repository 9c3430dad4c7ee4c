"""Kafka's own `StreamsSmokeTest` (the test jar of kafka-streams 4.3.1) on our broker, while things die.

Its driver produces 20 keys × 1,000 values over a minute and a half and verifies what two applications of two threads
make of them: minima, maxima, sums, counts, averages, windows, suppression, a foreign-key join. Meanwhile an application
is killed, the broker is killed, an application is stopped. Long: run with HEADRACE_LONG=1.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_jars import STREAMS_TESTS, TOOLS_VERSION, java, kafka_jars
from tests.interop.streams_application import SOURCES
from tests.interop.streams_scenario import SETTINGS
from tests.longer import longer
from tests.spark.application.processes import BrokerProcess, active_tasks, group

from headrace.client.admin import Admin

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    longer,
]

TOPICS = (
    "data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "cnt", "avg", "tagg", "sws-raw",
    "sws-suppressed", "fk",
)  # fmt: skip
GROUP = "SmokeTest"
TASKS = 4 * 5  # subtopologies, partitions


class SmokeTest:
    """One JVM of it: the application ("process") or the driver ("run")."""

    def __init__(self, servers: str, directory: Path, *arguments: str, state: Path) -> None:
        directory.mkdir(parents=True)
        self.log = directory / "log"
        settings = directory / "settings.properties"
        given = {
            "bootstrap.servers": servers,
            "group.protocol": "streams",
            "processing.guarantee": "at_least_once",
            "num.stream.threads": 2,
            "client.id": directory.name,
            "state.dir": state,
        }
        settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        command = [java(), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}"]
        command += ["-cp", f"{kafka_jars(STREAMS_TESTS)}/*:{kafka_jars(TOOLS_VERSION)}/*"]
        command += ["org.apache.kafka.streams.tests.StreamsSmokeTest", str(settings), *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def said(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")


@contextmanager
def killed_at_the_end(started: list[SmokeTest]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()


def test_results_are_right_although_things_die(tmp_path: Path, kafka_tools: None) -> None:
    started: list[SmokeTest] = []

    def start(name: str, *arguments: str, state: str) -> SmokeTest:
        started.append(SmokeTest(broker.bootstrap_servers, tmp_path / name, *arguments, state=tmp_path / state))
        return started[-1]

    with BrokerProcess(tmp_path / "data", SETTINGS) as broker, killed_at_the_end(started):
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics(dict.fromkeys(TOPICS, 5), replication_factor=1)
            one, two = start("one", "process", state="first"), start("two", "process", state="second")
            wait_until(lambda: settled(admin, 4), "settled", one, two)
            driver = start("driver", "run", state="none")
            wait_until(lambda: driver.said(" 5000 records produced"), "a quarter", driver, one, two)
            one.process.kill()
            one.process.wait()
            three = start("three", "process", state="first")
            wait_until(lambda: settled(admin, 4), "settled after a kill", two, three)
            wait_until(lambda: driver.said(" 10000 records produced"), "half", driver)
        broker.kill()
        broker.start()
        with Admin(broker.bootstrap_servers) as admin:
            wait_until(lambda: driver.said(" 15000 records produced"), "three quarters", driver)
            two.process.terminate()
            two.process.wait(60)
            four = start("four", "process", state="second")
            wait_until(lambda: settled(admin, 4), "settled after a leave", three, four)
            driver.process.wait(300)
    said = driver.log.read_text()
    assert "SUCCESS" in said, said[-3000:]
    assert "ALL-RECORDS-DELIVERED" in said or "PROCESSED-MORE-THAN-GENERATED" in said, said[-3000:]


def settled(admin: Admin, members: int) -> bool:
    described = group(admin, GROUP)
    tasks = active_tasks(described)
    return (
        described is not None and described.state == "Stable" and len(tasks) == members and sum(tasks.values()) == TASKS
    )
