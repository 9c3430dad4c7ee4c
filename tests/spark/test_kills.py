"""kill -9 of an application, of an application with its guardian, and of the broker, while data flows.

Judge is the group itself (StreamsGroupDescribe), and at the end the count of each single flight, looked at here and by
`penstock verify`: repeats are allowed and counted, loss is not. How long a move took is printed (`-s`); what is
asserted is that it did, or did not, wait for the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.application.processes import (
    PROGRAMS,
    Application,
    BrokerProcess,
    Feed,
    active_tasks,
    caught_up,
    descendants,
    group,
    newest,
    penstock,
    records_of,
    still_alive,
    until,
)

from penstock.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]
longer = pytest.mark.skipif(not os.environ.get("PENSTOCK_LONG"), reason="the longer version: PENSTOCK_LONG=1")

GROUP = "each-flight"
PROGRAM = "each_flight.py"
TASKS = 8  # 4 that read flights, 4 that read the repartition topic
SESSION_S = 45.0
SHORT_SESSION = {"group.streams.min.session.timeout.ms": 1000, "group.streams.session.timeout.ms": 6000}


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    with contextlib.ExitStack() as stack:

        def start(**settings: object) -> BrokerProcess:
            broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings))
            with Admin(broker.bootstrap_servers) as admin:
                admin.create_topics({"flights": 4})
            return broker

        yield start


@pytest.fixture
def start_application(tmp_path: Path) -> Iterator[Callable[[BrokerProcess, str], Application]]:
    started: list[Application] = []

    def start(broker: BrokerProcess, name: str) -> Application:
        started.append(Application(PROGRAM, broker.bootstrap_servers, tmp_path / name).start())
        return started[-1]

    yield start
    for application in started:
        application.end()


def nothing_is_lost(broker: BrokerProcess, sent: int) -> None:
    """Every flight was counted at least once; `penstock verify` says the same, and the same number of repeats."""
    rows = newest(broker.bootstrap_servers, f"{GROUP}-counted")
    times = {row["id"]: row["times"] for row in rows.values()}
    assert set(times) == set(range(sent))
    repeats = sum(times.values()) - sent
    out = penstock("verify", str(PROGRAMS / PROGRAM), "--bootstrap-server", broker.bootstrap_servers, "--json")
    assert out.returncode == 0, out.stdout.decode() + out.stderr.decode()
    verdict = json.loads(out.stdout)
    assert (verdict["records"], verdict["waiting"]) == (sent, 0)
    assert [(sink["lost"], sink["missing"], sink["repeated"]) for sink in verdict["sinks"]] == [(0, 0, repeats)]
    print(f"verify: {verdict['status']}, {sent} records, {repeats} repeated")


@longer  # the demo, `test_moves` and `test_standby` kill one, too
def test_a_killed_application_costs_no_session_timeout(start_broker, start_application) -> None:
    broker = start_broker()
    first, second = start_application(broker, "a"), start_application(broker, "b")
    with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:
        until(lambda: list(active_tasks(group(admin, GROUP)).values()) == [4, 4], "4 + 4 tasks", first, second, broker)
        until(lambda: first.open_tasks == second.open_tasks == 4, "all open", first, second, broker)
        feed.run()
        until(lambda: sum(admin.committed_offsets(GROUP).values()) > 2000, "at work", first, second, broker)

        family = descendants(second.pid)
        assert len(family) >= 4, "driver, guardian, JVM, Python workers"
        survivor = first.member_id
        killed_at = time.monotonic()
        second.kill()
        until(lambda: active_tasks(group(admin, GROUP)) == {survivor: TASKS}, "all at the survivor", first, broker)
        moved_s = time.monotonic() - killed_at
        until(lambda: not still_alive(family), "no process left of the killed application", second)
        cleaned_s = time.monotonic() - killed_at
        until(lambda: first.open_tasks == TASKS, "all open at the survivor", first, broker)
        opened_s = time.monotonic() - killed_at
        print(f"\ntasks moved {moved_s:.2f} s after the kill, {len(family)} processes gone {cleaned_s:.2f} s, "
              f"all tasks open {opened_s:.2f} s")  # fmt: skip
        assert moved_s < SESSION_S / 2, "the guardian told the group; nobody waited for the session timeout"

        sent = feed.stop()
        until(lambda: caught_up(admin, GROUP), "caught up", first, broker)
    assert first.stop() == 0
    nothing_is_lost(broker, sent)


def test_killed_with_its_guardian_the_session_timeout_moves_the_tasks(start_broker, start_application) -> None:
    broker = start_broker(**SHORT_SESSION)
    first, second = start_application(broker, "a"), start_application(broker, "b")
    with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:
        until(lambda: list(active_tasks(group(admin, GROUP)).values()) == [4, 4], "4 + 4 tasks", first, second, broker)
        until(lambda: first.open_tasks == second.open_tasks == 4, "all open", first, second, broker)
        feed.run()
        until(lambda: sum(admin.committed_offsets(GROUP).values()) > 2000, "at work", first, second, broker)

        [guardian] = [entry.pid for entry in descendants(second.pid) if is_guardian(entry.pid)]
        survivor = first.member_id
        family = descendants(second.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, or one would notice the other's end
            os.kill(guardian, number)
            os.kill(second.pid, number)
        killed_at = time.monotonic()
        second.process.wait()
        until(lambda: active_tasks(group(admin, GROUP)) == {survivor: TASKS}, "all at the survivor", first, broker)
        moved_s = time.monotonic() - killed_at
        left = len(still_alive(family))
        print(f"\ntasks moved {moved_s:.2f} s after the kill, session timeout 6 s; {left} processes still alive")
        assert moved_s > 3, "nobody was left to tell the group: the session had to end first"

        sent = feed.stop()
        until(lambda: caught_up(admin, GROUP), "caught up", first, broker)
        for entry in still_alive(family):  # nobody was left to end them either
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)
    assert first.stop() == 0
    nothing_is_lost(broker, sent)


def is_guardian(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"penstock.client.guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_killed_broker_comes_back_with_every_acknowledged_record(start_broker, start_application) -> None:
    broker = start_broker()
    application = start_application(broker, "a")
    with Feed(broker.bootstrap_servers, 4) as feed:
        with Admin(broker.bootstrap_servers) as admin:
            until(lambda: application.open_tasks == TASKS, "all open", application, broker)
            feed.run()
            until(lambda: sum(admin.committed_offsets(GROUP).values()) > 2000, "at work", application, broker)
            before = group(admin, GROUP).members
        for _ in range(2):
            broker.kill()
            acknowledged = len(feed.acknowledged)
            broker.start()
            until(lambda n=acknowledged: len(feed.acknowledged) > n + 1000, "data flows again", application, broker)
        with Admin(broker.bootstrap_servers) as admin:
            until(lambda: active_tasks(group(admin, GROUP)).values(), "the group is back", application, broker)
            until(lambda: sum(active_tasks(group(admin, GROUP)).values()) == TASKS, "all tasks", application, broker)
            sent = feed.stop()
            until(lambda: caught_up(admin, GROUP), "caught up", application, broker)
            after = group(admin, GROUP).members
    stored = [json.loads(message.value())["id"] for message in records_of(broker.bootstrap_servers, "flights")]
    assert feed.acknowledged == set(range(sent))
    assert set(stored) == feed.acknowledged, "every acknowledged record is there"
    assert len(stored) == len(set(stored)), "an idempotent producer's retries are known after the crash too"
    print(f"\n{sent} records through two crashes; member epoch {[m.member_epoch for m in before]} → "
          f"{[m.member_epoch for m in after]}, same member: {before[0].member_id == after[0].member_id}")  # fmt: skip
    assert len(after) == 1
    assert application.process.poll() is None, "the application never ended"
    assert application.stop() == 0
    nothing_is_lost(broker, sent)
