"""The guardian as a real process: joins, notices the driver's death, kills what is left, leaves; and its own death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.guardian_link import GuardianDied, GuardianLink, GuardianSettings
from headrace.client.membership import events as e
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.process_tree import process_table
from headrace.errors import CannotConnect, MaxPollExceeded

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))
DRIVER = Path(__file__).parent / "driver_program.py"


def members(broker: EmbeddedBroker, group: str) -> dict[str, int]:
    """Each member's number of active tasks."""
    described = broker.group(group)
    return {name: sum(map(len, tasks.values())) for name, tasks in described.members.items()}


def settings(broker: EmbeddedBroker, member: str = "m-1", **changes: Any) -> GuardianSettings:
    return GuardianSettings(
        **{
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": "app",
            "topology": TOPOLOGY,
            "member_id": member,
            "process_id": f"p-{member}",
            **changes,
        }
    )


def wait_for_event(link: GuardianLink, kind: type[Any], seconds: float = 20) -> Any:
    """The first event of a kind; acknowledges assignments on the way."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = None
        for event in link.events(0.1):
            if isinstance(event, e.Assigned | e.AssignmentChanged):
                link.acknowledge(event.assignment.active)
            if found is None and isinstance(event, kind):
                found = event
        if found is not None:
            return found
    raise AssertionError(f"no {kind.__name__} came")


def wait_for_tasks(link: GuardianLink, count: int) -> None:
    until = time.monotonic() + 20
    while sum(map(len, link.assignment.active.values())) != count:
        assert time.monotonic() < until, f"not {count} tasks but {link.assignment}"
        for event in link.events(0.1):
            if isinstance(event, e.Assigned | e.AssignmentChanged):
                link.acknowledge(event.assignment.active)


class Driver:
    """`driver_program.py` as a process, and what it printed."""

    def __init__(self, broker: EmbeddedBroker, member: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), broker.bootstrap_servers, "app", member],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pids: dict[str, int] = self.line()

    def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def wait_for_tasks(self, count: int) -> None:
        while sum(map(len, self.line().get("active", {}).values())) != count:
            pass

    def end(self) -> None:
        for pid in (self.process.pid, *self.pids.values()):
            if pid in process_table():
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def driver(broker: EmbeddedBroker) -> Iterator[Driver]:
    started = Driver(broker, "doomed")
    yield started
    started.end()


def test_two_guardians_share_and_one_leaves(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker, "m-1")) as first:
        wait_for_tasks(first, 4)
        with GuardianLink.start(settings(broker, "m-2")) as second:
            wait_for_tasks(first, 2)
            wait_for_tasks(second, 2)
            assert first.assignment.member_id == "m-1"
        wait_for_tasks(first, 4)
        assert members(broker, "app") == {"m-1": 4}
    assert members(broker, "app") == {}
    assert first.pid not in process_table()


def test_killed_driver_loses_its_processes_and_others_take_its_tasks(broker: EmbeddedBroker, driver: Driver) -> None:
    driver.wait_for_tasks(4)
    with GuardianLink.start(settings(broker, "survivor")) as survivor:
        wait_for_tasks(survivor, 2)
        driver.process.kill()
        wait_for_tasks(survivor, 4)  # its patience ends long before the session of 45 s would
        assert list(members(broker, "app")) == ["survivor"]
        wait_until(lambda: not set(driver.pids.values()) & process_table().keys())


def test_a_driver_that_only_closes_leaves_its_children_alone(broker: EmbeddedBroker, driver: Driver) -> None:
    driver.wait_for_tasks(4)
    assert driver.process.stdin is not None
    driver.process.stdin.close()
    driver.process.wait(timeout=20)
    assert members(broker, "app") == {}
    assert driver.pids["child"] in process_table()
    assert driver.pids["guardian"] not in process_table()


def test_forked_child_with_the_pipe_does_not_hide_the_drivers_death(broker: EmbeddedBroker) -> None:
    """The copy of the pipe's end in the child keeps stdin open; the guardian sees that its parent changed."""
    program = f"""
import os, sys, time
sys.path.insert(0, {str(DRIVER.parent)!r})
from driver_program import TOPOLOGY
from headrace.client.guardian_link import GuardianLink, GuardianSettings
link = GuardianLink.start(GuardianSettings(bootstrap_servers={broker.bootstrap_servers!r}, group_id="app",
    topology=TOPOLOGY, member_id="doomed", process_id="p"))
child = os.fork()
if child == 0:
    time.sleep(300)
print(child, link.pid, flush=True)
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child, guardian = map(int, process.stdout.readline().split())
    try:
        wait_until(lambda: "doomed" in members(broker, "app"))
        process.kill()
        process.wait()
        wait_until(lambda: members(broker, "app") == {})
        wait_until(lambda: guardian not in process_table())
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_when_both_die_the_session_timeout_does_it() -> None:
    short = {
        "group.streams.initial.rebalance.delay.ms": 0,
        "group.streams.assignment.interval.ms": 0,
        "group.streams.min.session.timeout.ms": 1_500,
        "group.streams.session.timeout.ms": 1_500,
        "group.streams.min.heartbeat.interval.ms": 100,
        "group.streams.heartbeat.interval.ms": 500,
    }
    with EmbeddedBroker(topics={"flights": 4}, config=short) as broker:
        driver = Driver(broker, "doomed")
        try:
            driver.wait_for_tasks(4)
            with GuardianLink.start(settings(broker, "survivor")) as survivor:
                wait_for_tasks(survivor, 2)
                os.kill(driver.pids["guardian"], signal.SIGKILL)
                driver.process.kill()
                driver.process.wait()
                assert "doomed" in members(broker, "app"), "nobody said goodbye: the coordinator waits"
                wait_for_tasks(survivor, 4)
                assert list(members(broker, "app")) == ["survivor"]
        finally:
            driver.end()


def test_a_guardian_that_dies_is_told_and_can_be_restarted(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker)) as link:
        wait_for_tasks(link, 4)
        os.kill(link.pid, signal.SIGKILL)
        died = wait_for_event(link, GuardianDied)
        assert died.returncode == -signal.SIGKILL
        assert not link.alive
        link.acknowledge({})  # nobody listens; not an error
        link.restart()
        assigned = wait_for_event(link, e.Assigned)
        assert assigned.assignment.active == {"flights": (0, 1, 2, 3)}
        assert members(broker, "app") == {"m-1": 4}


def test_interrupts_are_for_the_driver(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker)) as link:
        wait_for_tasks(link, 4)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(link.pid, number)
        link.leave()
        assert wait_for_event(link, e.Left).confirmed
        assert link.alive


def test_a_driver_without_progress_loses_its_membership(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker, max_poll_interval_ms=600)) as link:
        wait_for_event(link, e.Assigned)
        fatal = wait_for_event(link, e.Fatal)
        assert isinstance(fatal.error, MaxPollExceeded)
        assert fatal.error.code == "max-poll-exceeded"
        assert "600 ms" in str(fatal.error)
        wait_until(lambda: members(broker, "app") == {})


def test_a_driver_that_ticks_keeps_it(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker, max_poll_interval_ms=1_000)) as link:
        wait_for_event(link, e.Assigned)
        until = time.monotonic() + 2.5
        seen: list[object] = []
        while time.monotonic() < until:
            link.progress()
            seen += link.events(0.05)
        assert not [event for event in seen if isinstance(event, e.Fatal | e.Lost)]


def test_guardian_suspended_beyond_the_session_reports_the_loss(broker: EmbeddedBroker) -> None:
    """As a laptop's sleep or a paused virtual machine: the lease ran out while nobody could look."""
    with GuardianLink.start(settings(broker, session_timeout_ms=500)) as link:
        wait_for_tasks(link, 4)
        os.kill(link.pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(link.pid, signal.SIGCONT)
        assert wait_for_event(link, e.Lost).reason == "session-expired"
        wait_for_tasks(link, 4)


def test_a_broker_that_comes_back_is_joined_again(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker)) as link:
        wait_for_tasks(link, 4)
        broker.kill()
        broker.restart()
        wait_until(lambda: members(broker, "app") == {"m-1": 4})
        assert not [event for event in link.events(1.0) if isinstance(event, e.Lost)]


def test_a_wrong_address_is_told_after_the_api_timeout() -> None:
    wrong = GuardianSettings(
        bootstrap_servers="127.0.0.1:1",
        group_id="app",
        topology=TOPOLOGY,
        member_id="m",
        process_id="p",
        api_timeout_ms=300,
    )
    with GuardianLink.start(wrong) as link:
        fatal = wait_for_event(link, e.Fatal)
        assert isinstance(fatal.error, CannotConnect)
        assert "127.0.0.1:1" in str(fatal.error)


def test_another_topology_is_refused_with_a_remedy(broker: EmbeddedBroker) -> None:
    other = Topology(subtopologies=(Subtopology(subtopology_id="other", source_topics=("flights",)),))
    with GuardianLink.start(settings(broker, "m-1")) as first:
        wait_for_tasks(first, 4)
        with GuardianLink.start(settings(broker, "m-2", topology=other)) as second:
            fatal = wait_for_event(second, e.Fatal)
            assert fatal.error.code == "topology-differs"
            assert fatal.error.fix


def test_missing_topics_are_told_and_their_coming_too(broker: EmbeddedBroker) -> None:
    later = Topology(subtopologies=(Subtopology(subtopology_id="later", source_topics=("later",)),))
    with GuardianLink.start(settings(broker, topology=later)) as link:
        not_ready = wait_for_event(link, e.NotReady)
        assert not_ready.status[0][0] == 1
        broker.create_topics({"later": 2})
        wait_for_tasks(link, 2)


def test_an_instance_that_leaves_for_a_while_finds_its_tasks_again(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker, "other", instance_id="pod-2")) as other:
        wait_for_tasks(other, 4)
        with GuardianLink.start(settings(broker, "before", instance_id="pod-1", process_id="p")) as link:
            wait_until(lambda: (take(other), take(link)) and len(link.assignment.active.get("flights", ())) == 2)
            had = link.assignment.active
            link.leave(for_a_while=True)
            assert wait_for_event(link, e.Left).will_return
        with GuardianLink.start(settings(broker, "after", instance_id="pod-1", process_id="p")) as link:
            assert wait_for_event(link, e.Assigned).assignment.active == had
        assert not [event for event in other.events() if isinstance(event, e.AssignmentChanged) and event.revoked]


def take(link: GuardianLink) -> bool:
    """Acknowledges what has come."""
    for event in link.events():
        if isinstance(event, e.Assigned | e.AssignmentChanged):
            link.acknowledge(event.assignment.active)
    return True


def test_a_guardian_tells_of_targets_endpoints_and_a_shutdown(broker: EmbeddedBroker) -> None:
    with GuardianLink.start(settings(broker, "first", endpoint=Endpoint("here", 8081))) as first:
        wait_for_tasks(first, 4)
        with GuardianLink.start(settings(broker, "second", early_look=True)) as second:
            seen = wait_for_event(second, e.TargetSeen)
            assert sum(map(len, seen.to_come.values())) == 2
            first.report_offsets({("flights", 0): 3}, {("flights", 0): 5})
            first.request_shutdown()
            wait_for_event(first, e.ShutdownRequested)
            wait_for_event(second, e.ShutdownRequested)
