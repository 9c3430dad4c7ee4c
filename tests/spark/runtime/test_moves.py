"""Two applications as processes of one group: they share the tasks, one is killed, the other goes on with its state."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.polling import wait_until
from tests.longer import longer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    # Sharing is in test_two_instances, kills are in test_kills: this is both in one story, without the command line.
    longer,
]
WITHIN_S = 240
APPLICATION = Path(__file__).with_name("app_process.py")


class Instance:
    """One application process and what its status file says."""

    def __init__(self, broker, directory):
        self._status = directory / "status.json"
        directory.mkdir()
        self.log = directory / "log"
        self._output = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(APPLICATION), broker.bootstrap_servers, str(directory)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.directory = directory

    def status(self):
        try:
            return json.loads(self._status.read_text())
        except FileNotFoundError:
            return {"state": "starting", "tasks": {}, "records": {}}

    @property
    def tasks(self):
        return sum(len(found) for found in self.status()["tasks"].values())

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._output.close()


@pytest.fixture
def start(broker, tmp_path):
    instances = []

    def start(name):
        instances.append(Instance(broker, tmp_path / name))
        return instances[-1]

    yield start
    for instance in instances:
        instance.end()


def at_least_counted(broker, flights, numbers):
    """At least once: after a kill a row may count twice, none may be missing. Whether all counts are exact."""
    found, wanted = flights.newest(broker, "by-origin"), flights.counted(numbers)
    assert set(found) == set(wanted)
    assert all(found[origin]["flights"] >= wanted[origin]["flights"] for origin in wanted)
    return found == wanted


def is_read(broker, count):
    offsets = broker.group("moving").offsets
    read = sum(offset for (topic, _), offset in offsets.items() if topic == "flights")
    internal = "moving-by-origin-repartition"
    ends = {}
    for record in broker.records(internal) if read == count else []:
        ends[record.partition] = record.offset + 1
    return read == count and all(offsets.get((internal, partition), 0) >= end for partition, end in ends.items())


def test_two_instances_share_and_survive(broker, flights, start):
    flights.send(broker, range(300))
    first = start("a")
    wait_until(lambda: first.tasks == 8, "tasks are assigned", first, timeout_s=WITHIN_S)
    second = start("b")
    wait_until(lambda: (first.tasks, second.tasks) == (4, 4), "tasks are assigned", first, second, timeout_s=WITHIN_S)
    flights.send(broker, range(300, 600))
    wait_until(lambda: is_read(broker, 600), "all records are read", first, second, timeout_s=WITHIN_S)
    assert at_least_counted(broker, flights, range(600))  # a graceful move repeats nothing

    os.kill(second.process.pid, signal.SIGKILL)
    flights.send(broker, range(600, 900))
    wait_until(lambda: first.tasks == 8, "tasks are assigned", first, timeout_s=WITHIN_S)
    wait_until(lambda: is_read(broker, 900), "all records are read", first, timeout_s=WITHIN_S)
    at_least_counted(broker, flights, range(900))

    third = start("c")
    wait_until(lambda: (first.tasks, third.tasks) == (4, 4), "tasks are assigned", first, third, timeout_s=WITHIN_S)
    flights.send(broker, range(900, 1000))
    wait_until(lambda: is_read(broker, 1000), "all records are read", first, third, timeout_s=WITHIN_S)
    at_least_counted(broker, flights, range(1000))
    first.process.terminate()
    assert first.process.wait(30) == 0
    wait_until(lambda: third.tasks == 8, "tasks are assigned", third, timeout_s=WITHIN_S)
