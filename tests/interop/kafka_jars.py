"""Apache Kafka's own jars, fetched once through Maven into `.jars/<version>/` of the repository.

Maven reads a pom that is written into a temporary directory and names no repository: which one serves the jars is
the machine's own Maven setting. Kafka 4.4.0 has no `kafka-tools` and no `kafka-tools-api` jar: its broker takes the
latter from 4.3.1, and tools always run from 4.3.1.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["TOOLS_VERSION", "VERSIONS", "KafkaUnavailable", "java", "kafka_jars"]

TOOLS_VERSION = "4.3.1"
JARS = Path(__file__).parents[2] / ".jars"

# (artifact, version, artifacts left out)
_KAFKA = "org.apache.kafka"
VERSIONS: dict[str, list[tuple[str, str, str, tuple[str, ...]]]] = {
    "4.3.1": [
        (_KAFKA, "kafka_2.13", "4.3.1", ()),
        (_KAFKA, "kafka-tools", "4.3.1", ()),
        (_KAFKA, "kafka-streams", "4.3.1", ()),
    ],
    "4.4.0": [
        (_KAFKA, "kafka_2.13", "4.4.0", ("kafka-tools-api",)),
        (_KAFKA, "kafka-tools-api", "4.3.1", ()),
    ],
}
# Without a binding Kafka's own error messages would be lost.
_LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", ())


class KafkaUnavailable(Exception):
    """This machine cannot run Apache Kafka; the message says what is missing."""


def java() -> str:
    """Path of the Java runtime. Raises KafkaUnavailable."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise KafkaUnavailable("Apache Kafka needs a Java runtime (17 or newer); no java in JAVA_HOME or PATH.")
    return found


def kafka_jars(version: str) -> Path:
    """The directory with Kafka's jars and all they need. Raises KafkaUnavailable."""
    target = JARS / version
    if target.is_dir():
        return target
    JARS.mkdir(exist_ok=True)
    with (JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once download once
        if not target.is_dir():
            _download(version, target)
    return target


def _download(version: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            f"Apache Kafka {version} is fetched with Maven, and there is no mvn in PATH. "
            f"Install Maven, or put Kafka's jars into {target}."
        )
    with tempfile.TemporaryDirectory(prefix="penstock-jars-", dir=JARS) as scratch:
        (Path(scratch) / "pom.xml").write_text(_pom(version))
        jars = Path(scratch) / "jars"
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        out = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if out.returncode != 0:
            raise KafkaUnavailable(
                f"Maven could not fetch Apache Kafka {version}:\n{(out.stdout + out.stderr)[-2000:]}"
            )
        jars.rename(target)


def _pom(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
        f"{_exclusions(left_out)}</dependency>"
        for group, artifact, number, left_out in [*VERSIONS[version], _LOGGING]
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>penstock.interop</groupId><artifactId>kafka-jars</artifactId><version>{version}</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _exclusions(artifacts: tuple[str, ...]) -> str:
    inside = "".join(
        f"<exclusion><groupId>{_KAFKA}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for artifact in artifacts
    )
    return f"<exclusions>{inside}</exclusions>" if inside else ""
