"""kill -9 of an application with its guardian, of the broker, and of anything at random, while data flows.

Judge is the group itself (StreamsGroupDescribe), and at the end the count of each single flight, looked at here and by
`headrace verify`. Under exactly once, which is the default, each flight was counted once and told once, as readers of
committed records see it. At least once (with HEADRACE_LONG=1) repeats are allowed and counted, loss is not. How long a
move took is printed (`-s`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import pytest
from kio.static.primitive import i64
from tests.chaos.chaos import broker_of, chaos
from tests.chaos.disasters import DISASTERS
from tests.harness.polling import Logged, wait_until
from tests.harness.values import not_none
from tests.longer import longer
from tests.spark.application.crash_points import CrashFile, crashing_application
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import (
    PROGRAMS,
    Application,
    BrokerProcess,
    Feed,
    active_tasks,
    caught_up,
    descendants,
    group,
    headrace,
    newest,
    records_of,
    still_alive,
)

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "each-flight"
PROGRAM = "each_flight.py"
TASKS = 8  # 4 that read flights, 4 that read the repartition topic
SESSION_S = 45.0
SHORT_SESSION = {"group.streams.min.session.timeout.ms": 1000, "group.streams.session.timeout.ms": 6000}
LONG_TRANSACTION_MS = 800_000  # no test waits for this
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
both = pytest.mark.parametrize(
    "guarantee", [EXACTLY_ONCE, pytest.param(AT_LEAST_ONCE, marks=longer)], ids=["exactly-once", "at-least-once"]
)
SEEDS = range((first_seed := int(os.environ.get("KILLS_FIRST", "0"))), first_seed + int(os.environ.get("KILLS", "2")))
StartBroker = Callable[..., BrokerProcess]
StartApplication = Callable[..., Application]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    with contextlib.ExitStack() as stack:

        def start(**settings: object) -> BrokerProcess:
            broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings))
            with Admin(broker.bootstrap_servers) as admin:
                admin.create_topics({"flights": 4})
            return broker

        yield start


@pytest.fixture
def to_end() -> Iterator[Callable[[Application], None]]:
    """Applications of which nothing stays, whatever happened."""
    started: list[Application] = []
    yield started.append
    for application in started:
        application.end()


@pytest.fixture
def start_application(tmp_path: Path, to_end) -> StartApplication:
    def start(broker: BrokerProcess, name: str, **env: str) -> Application:
        application = Application(PROGRAM, broker.bootstrap_servers, tmp_path / name, **env).start()
        to_end(application)
        return application

    return start


def assert_right(broker: BrokerProcess, sent: int, guarantee: str = EXACTLY_ONCE) -> None:
    """Every flight was counted, once or at least once; `headrace verify` says the same, and as many repeats."""
    servers, sink = broker.bootstrap_servers, f"{GROUP}-counted"
    times = {row["id"]: row["times"] for row in newest(servers, sink).values()}
    assert set(times) == set(range(sent)), f"lost: {sorted(set(range(sent)) - set(times))[:10]}"
    repeats = sum(times.values()) - sent
    if guarantee == EXACTLY_ONCE:
        assert wrongly_counted(servers, sink, range(sent)) == []
    out = headrace(
        "verify", str(PROGRAMS / PROGRAM), "--bootstrap-server", servers, "--json", env={"GUARANTEE": guarantee}
    )
    assert out.returncode == 0, out.stdout.decode() + out.stderr.decode()
    verdict = json.loads(out.stdout)
    assert (verdict["guarantee"], verdict["records"], verdict["waiting"]) == (guarantee, sent, 0)
    assert [(sink["lost"], sink["missing"], sink["repeated"]) for sink in verdict["sinks"]] == [(0, 0, repeats)]
    print(f"verify: {verdict['status']}, {sent} records, {repeats} repeated")


def at_work(admin: Admin, *told: Logged, beyond: int = 0) -> None:
    wait_until(lambda: sum(admin.committed_offsets(GROUP).values()) > beyond + 2000, "at work", *told)


@longer  # the demo, `test_moves` and `test_standby` kill one, too
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE], ids=["exactly-once", "at-least-once"])
def test_a_killed_application_costs_no_session_timeout(start_broker, start_application, guarantee) -> None:
    broker = start_broker()
    first, second = (start_application(broker, name, GUARANTEE=guarantee) for name in "ab")
    with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:
        wait_until(
            lambda: list(active_tasks(group(admin, GROUP)).values()) == [4, 4], "4 + 4 tasks", first, second, broker
        )
        wait_until(lambda: first.open_tasks == second.open_tasks == 4, "all open", first, second, broker)
        feed.run()
        at_work(admin, first, second, broker)

        family = descendants(second.pid)
        assert len(family) >= 4, "driver, guardian, JVM, Python workers"
        survivor = first.member_id
        killed_at = time.monotonic()
        second.kill()
        wait_until(lambda: active_tasks(group(admin, GROUP)) == {survivor: TASKS}, "all at the survivor", first, broker)
        moved_s = time.monotonic() - killed_at
        wait_until(lambda: not still_alive(family), "no process left of the killed application", second)
        cleaned_s = time.monotonic() - killed_at
        wait_until(lambda: first.open_tasks == TASKS, "all open at the survivor", first, broker)
        opened_s = time.monotonic() - killed_at
        print(f"\ntasks moved {moved_s:.2f} s after the kill, {len(family)} processes gone {cleaned_s:.2f} s, "
              f"all tasks open {opened_s:.2f} s")  # fmt: skip
        assert moved_s < SESSION_S / 2, "the guardian told the group; nobody waited for the session timeout"

        sent = feed.stop()
        wait_until(lambda: caught_up(admin, GROUP), "caught up", first, broker)
    assert first.stop() == 0
    assert_right(broker, sent, guarantee)


@pytest.mark.parametrize("at_rest", [True, pytest.param(False, marks=longer)], ids=["at rest", "at work"])
def test_an_application_whose_jvm_is_killed_ends_with_an_error(start_broker, start_application, at_rest) -> None:
    """At rest there is no micro-batch that would notice."""
    broker = start_broker()
    application = start_application(broker, "a")
    with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:
        wait_until(lambda: application.open_tasks == TASKS, "all open", application, broker)
        if not at_rest:
            feed.run()
            at_work(admin, application, broker)
        family = descendants(application.pid)
        (jvm,) = (each.pid for each in family if b"java" in command_of(each.pid).split(b"\0")[0])
        os.kill(jvm, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(lambda: not active_tasks(group(admin, GROUP)), "out of the group", application, broker)
        left_s = time.monotonic() - killed_at
        assert application.process.wait(60) == 1
        print(f"\nleft {left_s:.2f} s after its JVM was killed, ended after {time.monotonic() - killed_at:.2f} s")
    assert left_s < SESSION_S / 2
    assert f"Spark's JVM, process {jvm}, was killed by signal 9" in application.log.read_text()
    wait_until(lambda: not still_alive(family), "no process left of it", application)


@longer  # a crash point of `test_commit_path_crashes`, with the guardian gone as well
def test_killed_with_its_guardian_in_the_middle_of_a_commit(start_broker, start_application, to_end, tmp_path) -> None:
    """Nobody is left to end its transactions, whose time is long: who starts in its state directory does it.

    Before that the session moves the tasks to the survivor, who waits for offsets that are neither committed nor not.
    """
    broker = start_broker(**SHORT_SESSION)
    crash = CrashFile(tmp_path / "crash")
    first = start_application(broker, "a")
    second = crashing_application(broker.bootstrap_servers, tmp_path / "b", crash,
                                  TRANSACTION_TIMEOUT_MS=str(LONG_TRANSACTION_MS))  # fmt: skip
    to_end(second.start())
    with Admin(broker.bootstrap_servers) as admin, Feed(broker.bootstrap_servers, 4) as feed:
        wait_until(
            lambda: list(active_tasks(group(admin, GROUP)).values()) == [4, 4], "4 + 4 tasks", first, second, broker
        )
        wait_until(lambda: first.open_tasks == second.open_tasks == 4, "all open", first, second, broker)
        feed.run(per_second=400)
        at_work(admin, first, second, broker)

        survivor = first.member_id
        family = descendants(second.pid)
        [guardian] = [entry.pid for entry in family if is_guardian(entry.pid)]
        os.kill(guardian, signal.SIGSTOP)  # it does not notice the driver's end
        crash.ask("after TxnOffsetCommit, before EndTxn")
        wait_until(lambda: second.has_ended, "dead in the middle of a commit", second, broker)
        os.kill(guardian, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(lambda: active_tasks(group(admin, GROUP)) == {survivor: TASKS}, "all at the survivor", first, broker)
        moved_s = time.monotonic() - killed_at
        lost = (second.directory / "state" / GROUP / "transactional.ids").read_text().splitlines()
        assert open_transactions(broker, lost), "its transaction is open, and will be for minutes"

        second.start()
        wait_until(lambda: not open_transactions(broker, lost), "ended by its successor", second, broker)
        ended_s = time.monotonic() - killed_at
        wait_until(lambda: second.status.get("pid") == second.pid, "started again", second, broker)
        wait_until(lambda: first.open_tasks + second.open_tasks == TASKS, "all open", first, second, broker)
        opened_s = time.monotonic() - killed_at
        print(f"\ntasks moved {moved_s:.2f} s after the kill (session timeout 6 s), "
              f"transactions ended {ended_s:.2f} s, all tasks open {opened_s:.2f} s")  # fmt: skip

        sent = feed.stop()
        wait_until(lambda: caught_up(admin, GROUP), "caught up", first, second, broker)
        for entry in still_alive(family):  # nobody was left to end them either
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)
    assert (first.stop(), second.stop()) == (0, 0)
    assert not (second.directory / "state" / GROUP / "transactional.ids").exists(), "nothing is left to be ended"
    assert_right(broker, sent)


def has_acknowledged(feed: Feed, more_than: int) -> bool:
    return len(feed.acknowledged) > more_than


def open_transactions(broker: BrokerProcess, transactional_ids: Collection[str]) -> list[str]:
    """Those of the ids that have a transaction which began."""
    request = m.list_transactions_request.ListTransactionsRequest(
        state_filters=("Ongoing",), producer_id_filters=(), duration_filter=i64(-1), transactional_id_pattern=None
    )
    with NetworkClient(broker.bootstrap_servers) as client:
        found = client.call(request).transaction_states
    return [each.transactional_id for each in found if each.transactional_id in transactional_ids]


def is_guardian(pid: int) -> bool:
    return b"headrace.client.guardian" in command_of(pid)


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@longer  # the short chaos run kills the broker, too
@both
def test_a_killed_broker_comes_back_with_every_acknowledged_record(start_broker, start_application, guarantee) -> None:
    broker = start_broker()
    application = start_application(broker, "a", GUARANTEE=guarantee)
    with Feed(broker.bootstrap_servers, 4) as feed:
        with Admin(broker.bootstrap_servers) as admin:
            wait_until(lambda: application.open_tasks == TASKS, "all open", application, broker)
            feed.run()
            at_work(admin, application, broker)
            before = not_none(group(admin, GROUP)).members
        for _ in range(2):
            broker.kill()
            acknowledged = len(feed.acknowledged)
            broker.start()
            wait_until(partial(has_acknowledged, feed, acknowledged + 1000), "data flows again", application, broker)
        with Admin(broker.bootstrap_servers) as admin:
            wait_until(lambda: active_tasks(group(admin, GROUP)).values(), "the group is back", application, broker)
            wait_until(
                lambda: sum(active_tasks(group(admin, GROUP)).values()) == TASKS, "all tasks", application, broker
            )
            sent = feed.stop()
            wait_until(lambda: caught_up(admin, GROUP), "caught up", application, broker)
            after = not_none(group(admin, GROUP)).members
    stored = [
        json.loads(not_none(message.value()))["id"] for message in records_of(broker.bootstrap_servers, "flights")
    ]
    assert feed.acknowledged == set(range(sent))
    assert set(stored) == feed.acknowledged, "every acknowledged record is there"
    assert len(stored) == len(set(stored)), "an idempotent producer's retries are known after the crash too"
    print(f"\n{sent} records through two crashes; member epoch {[m.member_epoch for m in before]} → "
          f"{[m.member_epoch for m in after]}, same member: {before[0].member_id == after[0].member_id}")  # fmt: skip
    assert len(after) == 1
    assert application.process.poll() is None, "the application never ended"
    assert application.stop() == 0
    assert_right(broker, sent, guarantee)


@longer
@pytest.mark.parametrize("seed", SEEDS)
def test_random_kills(tmp_path, seed) -> None:
    """Drivers, guardians, both at once, Python workers, JVMs, the broker. KILLS=10 KILLS_FIRST=0: the seeds."""
    names = [name for name in DISASTERS if "kill -9" in name]
    disasters = random.Random(seed).choices(names, k=12)
    with broker_of("headrace", tmp_path) as broker:
        outcome = chaos(broker, tmp_path, seed=seed, instances=2, goes_on=lambda number: number < len(disasters),
                        disasters=disasters, proves_state=False)  # fmt: skip
    print(f"\nseed {seed}: {outcome.disasters}, {outcome.flights} flights, {outcome.seconds:.0f} s, "
          f"at most {outcome.longest_rest_seconds:.1f} s without a commit")  # fmt: skip
    assert not outcome.failures
