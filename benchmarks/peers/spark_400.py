"""Spark 4.0.0 with its Kafka connector as a process beside ours: fetched once, started, asked for reads.

4.0.0 is the newest connector that can be had whole (later ones lack their token provider), and it works with its own
Spark only: so an environment of its own, `.build/peers/spark-4.0.0-venv`, and jars listed by name in
`.build/peers/spark-4.0.0-jars`. pip and Maven ask whatever the machine is set up for; no host is named here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["BUILD", "Jar", "PeerUnavailable", "SparkConnector", "SparkPeer", "fetch_jars"]

VERSION = "4.0.0"
Jar = tuple[str, str, str]  # group, artifact, version
JARS: tuple[Jar, ...] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
    ("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
)
HERE = Path(__file__).parent
BUILD = HERE.parents[1] / ".build" / "peers"
ENVIRONMENT, JAR_DIRECTORY = BUILD / f"spark-{VERSION}-venv", BUILD / f"spark-{VERSION}-jars"
_INSTALLED = ENVIRONMENT / ".installed"


class PeerUnavailable(Exception):
    """The peer cannot be had or does not work on this machine; the message says what is missing."""


def prepare() -> None:
    """Fetch what is missing: minutes the first time, nothing after. Raises PeerUnavailable."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _INSTALLED.exists():
            print(f"setting up PySpark {VERSION} in {ENVIRONMENT} (once, 400 MB) …", file=sys.stderr)
            _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
            pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*pip, "--require-hashes", "-r", str(HERE / "requirements.txt")])
            _INSTALLED.touch()
    fetch_jars(JARS, JAR_DIRECTORY)


def fetch_jars(jars: Sequence[Jar], target: Path) -> None:
    """Exactly these, once. Raises PeerUnavailable."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            print(f"fetching the connector's jars into {target} (once) …", file=sys.stderr)
            _fetch(jars, target)


def _fetch(wanted: Sequence[Jar], target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailable("Spark's connector is fetched with Maven, and there is no mvn in PATH.")
    with tempfile.TemporaryDirectory(prefix="headrace-peer-", dir=BUILD) as scratch:
        (Path(scratch) / "pom.xml").write_text(_pom(wanted))
        jars = Path(scratch) / "jars"
        _run([maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], directory=scratch)
        jars.rename(target)


def _pom(wanted: Sequence[Jar]) -> str:
    """The jars by name and nothing that they would pull in: Spark brings the rest."""
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{nothing_else}</dependency>"
        for group, artifact, version in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>headrace.peers</groupId><artifactId>spark-connector</artifactId><version>{VERSION}</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _run(command: Sequence[str], directory: str | None = None) -> None:
    out = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if out.returncode != 0:
        raise PeerUnavailable(f"{' '.join(command)} failed:\n{(out.stdout + out.stderr)[-2000:]}")


class SparkPeer:
    """One of the peer's scripts at work: a JSON line is a question, its reply one too. Mutable: entered, then left."""

    def __init__(self, script: str, arguments: Sequence[str]) -> None:
        python, jars, self._log = self.installed()
        self._command = [python, str(HERE / script), *arguments, "--jars", ",".join(map(str, jars))]

    def installed(self) -> tuple[str, list[Path], Path]:
        """The Python with its PySpark, the connector's jars, and where the log goes. Raises PeerUnavailable."""
        prepare()
        jars = [JAR_DIRECTORY / f"{artifact}-{version}.jar" for _, artifact, version in JARS]
        return str(ENVIRONMENT / "bin" / "python"), jars, BUILD / f"spark-{VERSION}.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        # Settings of our own Spark must not reach the other one.
        ours = ("SPARK_", "PYSPARK_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        try:
            self.version = str(self._reply()["spark"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # its loop ends, then its session
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The script's answer. Raises PeerUnavailable."""
        if self._process.stdin is not None:
            # A peer that has ended says why in its reply.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(dict(question)) + "\n")
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            said = self._log.read_text(errors="replace")[-3000:]
            raise PeerUnavailable(f"Spark with its connector ended (all of it in {self._log}):\n{said}")
        reply: dict[str, Any] = json.loads(line)
        return reply


class SparkConnector(SparkPeer):
    """`read()` is one timed batch read through the connector."""

    def __init__(self, bootstrap: str, topic: str, ranges: Mapping[int, tuple[int, int]], *, master: str) -> None:
        given = ["--bootstrap-server", bootstrap, "--topic", topic, "--ranges", json.dumps(ranges), "--master", master]
        super().__init__("spark_connector.py", given)

    def read(self, options: Mapping[str, str]) -> dict[str, Any]:
        """`seconds`, `records` and `bytes` of one read of all ranges with `options`. Raises PeerUnavailable."""
        return self.ask(options)
