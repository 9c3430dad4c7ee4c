"""The stage of a Kafka Streams application's story: a broker, the instances, the group, and when all is settled.

`Scenario(broker, …).run(steps)` gives a table, step → what a user and an operator saw, with nothing in it that differs
between two runs on the same broker (no ids, no ports, no times). Two brokers are alike when their tables are. The steps
are in `streams_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.interop.streams_application import AdminShell, WordCount
from tests.interop.streams_words import GroupWatch, Words, task_names
from tests.spark.application.processes import caught_up, until

from penstock.client.admin import Admin
from penstock.client.admin_results import StreamsGroupDescription
from penstock.errors import PenstockError

__all__ = [
    "CHANGELOG",
    "GROUP",
    "PARTITIONS",
    "REPARTITION",
    "SETTINGS",
    "SINK",
    "SOURCE",
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

GROUP, SOURCE, SINK = "words", "words", "counted"
REPARTITION, CHANGELOG = f"{GROUP}-by-word-repartition", f"{GROUP}-counts-changelog"
PARTITIONS = 4
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
    """Mutable: the steps build on each other."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker, self.directory, self.servers = broker, directory, broker.bootstrap_servers
        self.instances: dict[str, WordCount] = {}
        self.words = Words(self.servers, SOURCE)
        self.admin = Admin(self.servers)
        self.watch = GroupWatch(self.servers, GROUP)
        self.shell = AdminShell(self.servers, directory)
        self._all: list[WordCount] = []

    def run(self, steps: Iterable[Callable[[Scenario], Seen]]) -> Table:
        """Every step in its order. Raises AssertionError that names the step."""
        table: Table = {}
        try:
            with self.watch, self.shell:
                for step in steps:
                    try:
                        table[step.__name__] = step(self)
                    except (AssertionError, PenstockError) as error:
                        raise AssertionError(f"{step.__name__}: {error}") from error
        finally:
            self.admin.close()
            for instance in self._all:
                instance.kill()
        return table

    def start(self, name: str, *, group: str = GROUP, **settings: object) -> WordCount:
        """An instance that nobody waits for; dots of its settings are written as double underscores."""
        given = {"application.id": group, "word.source": SOURCE, "word.sink": SINK}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        instance = WordCount(self.servers, self.directory / name, given)
        self._all.append(instance)
        return instance

    def settled(self, members: int, *, standby: int = 0) -> StreamsGroupDescription:
        """The group when every member has what it is to have, runs it, and all input is counted."""
        logs = list(self.instances.values())
        until(lambda: self._is_settled(members, standby), f"settled with {members}", *logs, within=60)
        until(lambda: caught_up(self.admin, GROUP), "caught up", *logs, within=60)
        return until(lambda: self._is_settled(members, standby), f"settled with {members}", *logs, within=60)

    def _is_settled(self, members: int, standby: int) -> StreamsGroupDescription | None:
        group = self.watch.latest
        if group is None or group.state != "Stable" or len(group.members) != members:
            return None
        if any(member.assignment != member.target_assignment for member in group.members):
            return None
        if len(tasks_of(group)) != 2 * PARTITIONS or len(tasks_of(group, "standby")) != standby * PARTITIONS:
            return None
        return group if all(self._runs(member, group) for member in group.members) else None

    def _runs(self, member: Any, group: StreamsGroupDescription) -> bool:
        """Whether the instance of this member runs the tasks the group says it has, and nothing else."""
        instance = self.instance_of(member)
        if instance is None or not instance.is_running():
            return False
        roles = ("active", "standby")
        return instance.ask("tasks") == {role: task_names(member.assignment, role) for role in roles}

    def instance_of(self, member: Any) -> WordCount | None:
        host, port = member.user_endpoint
        return next((one for one in self.instances.values() if one.address == f"{host}:{port}"), None)

    def counts_exactly(self) -> bool:
        return self.words.counted(SINK) == dict(self.words.counts)

    def counts_at_least(self) -> bool:
        found = self.words.counted(SINK)
        return all(found.get(word, 0) >= count for word, count in self.words.counts.items())


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
    """The states of a client; how many rebalances it saw in a row is chance."""
    found: list[str] = []
    for state in states:
        found.append(state)
        if found[-4:] == ["REBALANCING", "RUNNING"] * 2:
            del found[-2:]
    return found
