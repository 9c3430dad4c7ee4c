"""The Java application of `java/`: compiled, started, asked and stopped. And Kafka's Java Admin client on a string.

An instance is a JVM of its own with Kafka Streams 4.3.1 as Maven delivers it. Events are read from its standard output,
everything else is asked over HTTP, as its interactive queries are.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.harness.polling import wait_until
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars

__all__ = ["AdminShell", "WordCount"]

SOURCES = Path(__file__).parent / "java"
ANSWER_TIMEOUT_S = 30


class WordCount:
    """One instance, started when made. Mutable: `close`, `kill` and `end` end it.

    `directory` keeps its settings, its state and its log, and can be given to the next incarnation. `libraries`: which
    of `kafka_jars` it runs with.
    """

    def __init__(
        self, servers: str, directory: Path, settings: Mapping[str, object], libraries: str = TOOLS_VERSION
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name, self.log, self._out = directory.name, directory / "log", directory / "events"
        given = {
            "bootstrap.servers": servers,
            "client.id": self.name,
            "group.protocol": "streams",
            "processing.guarantee": "at_least_once",
            "num.stream.threads": 1,
            "commit.interval.ms": 200,
            "state.dir": directory / "state",
            "repartition.purge.interval.ms": 1000,
            "word.on.disk": "false",
            "word.added": "nothing",
            "word.queries": "true",
            "word.on.error": "SHUTDOWN_CLIENT",
            "client.tag.zone": "north",
            **settings,
        }
        file = directory / "settings.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        command = _java_command("WordCount", libraries)
        with self._out.open("wb") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(file)], stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it told so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def states(self) -> list[str]:
        """The states of KafkaStreams it went through."""
        return [event["to"] for event in self.events if event["event"] == "state"]

    @property
    def error(self) -> dict[str, Any] | None:
        """The exception that ended its thread."""
        return next((event for event in self.events if event["event"] == "error"), None)

    @property
    def address(self) -> str:
        """`host:port` of its interactive queries, and its `application.server`."""
        return str(
            wait_until(lambda: next((e["address"] for e in self.events if e["event"] == "listening"), None), "up", self)
        )

    def ask(self, question: str, key: str = "") -> Any:
        """The answer to `/question?key`; {"error": …} when it could not be answered."""
        url = f"http://{self.address}/{question}?{urllib.parse.quote(key)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            return json.load(refused)

    def is_running(self) -> bool:
        return self.states[-1:] == ["RUNNING"]

    def close(self) -> int:
        """`KafkaStreams.close()`: it commits and leaves. The exit code."""
        with contextlib.suppress(http.client.RemoteDisconnected):  # it was gone before it had answered
            self.ask("close")
        return self.ended()

    def ended(self, within: float = 60) -> int:
        """The exit code of one that ends by itself."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} runs still:\n{self.log.read_text()[-3000:]}") from None

    def pause(self) -> None:
        """SIGSTOP: alive, and silent until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


class AdminShell:
    """`org.apache.kafka.clients.admin.Admin` in a JVM that stays."""

    def __init__(self, servers: str, directory: Path) -> None:
        self.log = directory / "admin-shell.log"
        self._servers = servers

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_java_command("AdminShell", TOOLS_VERSION), self._servers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in (self._stdin, self._stdout):
            stream.close()
        self._process.kill()
        self._process.wait()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def call(self, name: str, *arguments: object) -> Any:
        """The answer of one call, {"error": …, "message": …} when it failed."""
        self._stdin.write(json.dumps([name, *arguments]) + "\n")
        self._stdin.flush()
        line = self._stdout.readline()
        assert line, self.log.read_text()[-3000:]
        return json.loads(line)


def _java_command(main_class: str, libraries: str) -> list[str]:
    classpath = f"{kafka_jars(libraries)}/*:{compiled(SOURCES)}"  # an archive is for what comes first
    options = ["-Xmx256m", *JVM_OF_SECONDS, *(archived(libraries) if libraries == TOOLS_VERSION else ())]
    options += [f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}"]
    return [java(), *options, "-cp", classpath, f"headrace.interop.{main_class}"]
