"""Running command lines, and a member of a streams group: what the tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

from tests.harness.commands import CommandResult

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.membership.streams_protocol import GroupProtocol
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.streams_member import StreamsMember

GROUP = "flight-delays"


Command = Callable[..., CommandResult]


def headrace_process(*arguments: str, given: str = "", timeout: float = 60, **environment: str) -> CommandResult:
    """Runs a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        input=given, capture_output=True, text=True, timeout=timeout, check=False, env=os.environ | environment,
    )  # fmt: skip
    return CommandResult(done.returncode, done.stdout, done.stderr)


def flight_topology(source: str = "flights") -> Topology:
    return Topology(
        subtopologies=(
            Subtopology(
                subtopology_id="flights", source_topics=(source,), repartition_sink_topics=("by-origin-repartition",)
            ),
            Subtopology(
                subtopology_id="by-origin",
                repartition_source_topics=(InternalTopic(name="by-origin-repartition", partitions=2),),
                state_changelog_topics=(InternalTopic(name="by-origin-changelog"),),
            ),
        )
    )


class Worker:
    """A member that takes every task it is given and does nothing with it."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        client_id: str,
        topology: Topology,
        group_protocol: GroupProtocol = "streams",
        endpoint: str | None = None,
    ) -> None:
        self.has_tasks = threading.Event()
        self._stop = threading.Event()
        self.member = StreamsMember(
            GROUP,
            topology,
            bootstrap_servers=broker.bootstrap_servers,
            client_id=client_id,
            heartbeat_max_interval_ms=100,
            heartbeat_interval_ms=100,
            group_protocol=group_protocol,
            endpoint=endpoint,
        )
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    @property
    def member_id(self) -> str:
        return self.member.member_id

    def _work(self) -> None:
        while not self._stop.is_set():
            for change in self.member.changes(timeout=0.05):
                self.member.acknowledge(change)
                if self.member.assignment.active:
                    self.has_tasks.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.member.close()


Join = Callable[..., Worker]


def lines_of(headrace: Command, broker: EmbeddedBroker, *options: str) -> list[str]:
    outcome = headrace(
        "console-consumer", "--topic", "flights", "--from-beginning", "--timeout-ms", "1", "--bootstrap-server",
        broker.bootstrap_servers, *options,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return outcome.out.splitlines()
