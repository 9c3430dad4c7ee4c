"""The stage of a Kafka Streams application's story: a broker, the instances, the group, and when all is settled.

`Scenario.run(steps)` gives a table, step → what a user and an operator saw, with nothing in it that differs
between two runs on the same broker (no ids, no ports, no times). Two brokers are alike when their tables are. The steps
are in `streams_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.harness.polling import wait_until
from tests.interop.kafka_jars import TOOLS_VERSION
from tests.interop.streams_application import AdminShell, WordCount
from tests.interop.streams_words import GroupPoller, Words, task_names
from tests.spark.application.processes import caught_up

from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription
from headrace.errors import HeadraceError

__all__ = [
    "PARTITIONS",
    "SETTINGS",
    "Scenario",
    "Seen",
    "Table",
    "balance",
    "life",
    "moves",
    "tasks_of",
]

Seen = dict[str, Any]
Table = dict[str, Seen]

PARTITIONS = 4
WAIT_S = 90
# Both brokers run with these: everything settles within seconds, and a dead member is noticed after six.
SETTINGS: Mapping[str, object] = {
    "auto.create.topics.enable": "false",
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 500,
    "group.streams.heartbeat.interval.ms": 1000,
    "group.streams.min.session.timeout.ms": 6000,
    "group.streams.session.timeout.ms": 6000,
}


class Broker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class Scenario:
    """An application, its group and its topics, all called after it. Mutable: steps build on each other.

    Leaving it kills what still runs.
    """

    def __init__(self, broker: Broker, directory: Path, name: str = "words") -> None:
        self.broker, self.directory, self.servers = broker, directory, broker.bootstrap_servers
        self.group, self.source, self.sink = name, f"{name}-in", f"{name}-counted"
        self.repartition, self.changelog = f"{name}-by-word-repartition", f"{name}-counts-changelog"
        self.instances: dict[str, WordCount] = {}
        self.words = Words(self.servers, self.source)
        self.admin = Admin(self.servers)
        self.watch = GroupPoller(self.servers, self.group)
        self._started: list[WordCount] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.callback(self.admin.close)
        self._open.enter_context(self.watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for instance in self._started:
            instance.kill()
        self._open.close()

    @cached_property
    def shell(self) -> AdminShell:
        """Started when first used."""
        return self._open.enter_context(AdminShell(self.servers, self.directory))

    def run(self, steps: Iterable[Callable[[Scenario], Seen]]) -> Table:
        """Every step in its order. Raises AssertionError that names the step."""
        table: Table = {}
        for step in steps:
            try:
                table[step.__name__] = step(self)
            except (AssertionError, HeadraceError) as error:
                raise AssertionError(f"{step.__name__}: {error}") from error
        return table

    def create_topics(self) -> None:
        self.admin.create_topics({self.source: PARTITIONS, self.sink: PARTITIONS}, replication_factor=1)

    def start(
        self, name: str, *, group: str | None = None, libraries: str = TOOLS_VERSION, **settings: str
    ) -> WordCount:
        """An instance that nobody waits for; dots of its settings are written as double underscores."""
        given = {"application.id": group or self.group, "word.source": self.source, "word.sink": self.sink}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        instance = WordCount(self.servers, self.directory / name, given, libraries)
        self._started.append(instance)
        return instance

    def join(self, name: str, *, libraries: str = TOOLS_VERSION, **settings: Any) -> WordCount:
        """One more instance of the application that is to settle."""
        self.instances[name] = self.start(name, libraries=libraries, **settings)
        return self.instances[name]

    def settled(self, members: int, *, standby: int = 0, tasks: int = 2 * PARTITIONS) -> StreamsGroupDescription:
        """The group when every member has what it is to have, runs it, and all input is counted."""
        logs = list(self.instances.values())
        wait_until(lambda: self.as_is(members, standby, tasks), f"settled with {members}", *logs, timeout_s=WAIT_S)
        wait_until(lambda: caught_up(self.admin, self.group), "caught up", *logs, timeout_s=WAIT_S)
        return wait_until(
            lambda: self.as_is(members, standby, tasks), f"settled with {members}", *logs, timeout_s=WAIT_S
        )

    def as_is(self, members: int, standby: int, tasks: int) -> StreamsGroupDescription | None:
        """The group if it has so many members and tasks, and they run them."""
        group = self.watch.latest
        if group is None or group.state != "Stable" or len(group.members) != members:
            return None
        if any(member.assignment != member.target_assignment for member in group.members):
            return None
        if len(tasks_of(group)) != tasks or len(tasks_of(group, "standby")) != standby * PARTITIONS:
            return None
        return group if all(runs(instance, group) for instance in self.instances.values()) else None

    def counts_exactly(self) -> bool:
        return self.words.counted(self.sink) == dict(self.words.counts)

    def counts_at_least(self) -> bool:
        found = self.words.counted(self.sink)
        return all(found.get(word, 0) >= count for word, count in self.words.counts.items())


def runs(instance: WordCount, group: StreamsGroupDescription) -> bool:
    """Whether it runs the tasks that the group says its threads have, and nothing else."""
    threads = [
        member for member in group.members if "{}:{}".format(*(member.user_endpoint or ("", 0))) == instance.address
    ]
    if not instance.is_running():
        return False
    return instance.ask("tasks") == {
        role: sorted(task for thread in threads for task in task_names(thread.assignment, role))
        for role in ("active", "standby")
    }


def tasks_of(group: StreamsGroupDescription, role: str = "active") -> dict[str, str]:
    """Task → member id, of what the members have now."""
    return {task: member.member_id for member in group.members for task in task_names(member.assignment, role)}


def balance(group: StreamsGroupDescription) -> Seen:
    """Tasks per member, smallest first; where standbys lie. How standbys are spread follows from which of the active
    tasks are stateful, and that is chance."""
    active, standby = tasks_of(group), tasks_of(group, "standby")
    return {
        "active tasks per member": sorted(len(task_names(member.assignment)) for member in group.members),
        "standby tasks": len(standby),
        "a standby beside its active task": any(active[task] == member for task, member in standby.items()),
    }


def moves(before: StreamsGroupDescription, after: StreamsGroupDescription) -> Seen:
    """How many active tasks were taken from a member that is still there, and how often the group changed."""
    then, now = tasks_of(before), tasks_of(after)
    left = {member.member_id for member in after.members}
    return {
        "tasks taken from a member that stayed": sum(now[t] != m for t, m in then.items() if m in left),
        "the group epoch rose by": after.group_epoch - before.group_epoch,
    }


def life(states: list[str]) -> list[str]:
    """The states of a client, each once in the order of their first time: how often it rebalances is chance."""
    return list(dict.fromkeys(states))
