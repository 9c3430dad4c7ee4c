"""Processes of real clients that are members of a group, with their logs: started, stopped, suspended and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.client.running_consumers import PATIENCE_S
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

__all__ = ["CLIENTS", "IncidentMember"]

CLIENTS = ("java", "librdkafka", "aiokafka", "headrace")
TREE = Path(__file__).parents[3]


class IncidentMember:
    """One process of a client. Mutable: `assigned` follows its output."""

    def __init__(
        self, client: str, servers: str, group: str, topics: str, *, name: str, log: Path, settings: dict[str, Any]
    ) -> None:
        self.name, self.log = name, log
        self.assigned: frozenset[str] = frozenset()
        given = {"client.id": name, **settings}
        arguments = [servers, group, topics, *(f"{key}={value}" for key, value in given.items())]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*_command(client), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=TREE,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, command: str) -> None:
        """Send a command: `slow MS`, `subscribe TOPICS`, `end`."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def suspend(self) -> None:
        """SIGSTOP: as a long garbage collection or a suspended host."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """Close the consumer and wait for the end of the process."""
        if self.process.poll() is None:
            self.tell("end")
        self._reap()

    def _reap(self) -> None:
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *partitions = line.split()
            if word == "assigned":
                self.assigned = frozenset(partitions)


def _command(client: str) -> list[str]:
    if client != "java":
        return [sys.executable, "-m", "tests.interop.doctor_incidents.member_program", client]
    classpath = f"{kafka_jars(TOOLS_VERSION)}/*:{compiled(TREE / 'tests/interop/java_incidents')}"
    logging = f"-Dlog4j2.configurationFile={TREE / 'tests/interop/java_incidents/log4j2.properties'}"
    return [
        *(java(), "-Xmx128m", *JVM_OF_SECONDS, *archived(TOOLS_VERSION)),
        *(logging, "-Dorg.apache.logging.log4j.level=INFO", "-cp", classpath, "IncidentMember"),
    ]
