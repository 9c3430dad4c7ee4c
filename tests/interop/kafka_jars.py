"""Apache Kafka's own jars, fetched once through Maven into `.jars/<version>/` of the repository; and a compiler.

Maven reads a pom that is written into a temporary directory and names no repository: which one serves the jars is
the machine's own Maven setting. Kafka 4.4.0 has no `kafka-tools` and no `kafka-tools-api` jar: its broker takes the
latter from 4.3.1, and tools always run from 4.3.1. Java programs of the tests are compiled by the Eclipse compiler,
which is one jar and needs no JDK.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.spark.cds_archive import SILENT

__all__ = [
    "CONNECT",
    "OLD_STREAMS",
    "STREAMS_TESTS",
    "TOOLS_VERSION",
    "VERSIONS",
    "YARN",
    "KafkaUnavailable",
    "class_archive",
    "compiled",
    "java",
    "kafka_jars",
    "skip_without_kafka",
    "spark_avro",
    "unpacked",
]

TOOLS_VERSION = "4.3.1"
STREAMS_TESTS = "kafka-streams-tests-4.3.1"
OLD_STREAMS = "kafka-streams-4.2.0"
CONNECT = "connect-runtime-4.3.1"
YARN = "hadoop-yarn-3.5.0"
JARS = Path(__file__).parents[2] / ".jars"

_KAFKA = "org.apache.kafka"
_COMPILER = "ecj-3.38.0"
_SPARK_AVRO = "spark-avro-4.0.1"


class _Jar(NamedTuple):
    """What Maven is asked for; `without` names artifacts of Kafka that are left out of what it needs."""

    group: str
    artifact: str
    version: str
    without: tuple[str, ...] = ()
    classifier: str = ""


# Without a binding Kafka's own error messages would be lost.
_LOGGING = _Jar("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")

# That of Kafka before 4.0, which uses the classes of Log4j 1 itself.
_OLD_LOGGING = _Jar("org.slf4j", "slf4j-reload4j", "1.7.36")

# Directory below .jars → what lies in it, with all that it needs
VERSIONS: dict[str, tuple[_Jar, ...]] = {
    "2.8.2": (_Jar(_KAFKA, "kafka_2.13", "2.8.2"), _OLD_LOGGING),
    "3.5.2": (_Jar(_KAFKA, "kafka_2.13", "3.5.2"), _OLD_LOGGING),
    "3.9.1": (_Jar(_KAFKA, "kafka_2.13", "3.9.1"), _OLD_LOGGING),
    "4.1.1": (_Jar(_KAFKA, "kafka_2.13", "4.1.1"), _LOGGING),
    "4.2.0": (_Jar(_KAFKA, "kafka_2.13", "4.2.0"), _LOGGING),
    "4.3.1": (
        _Jar(_KAFKA, "kafka_2.13", "4.3.1"),
        _Jar(_KAFKA, "kafka-tools", "4.3.1"),
        _Jar(_KAFKA, "kafka-streams", "4.3.1"),
        _LOGGING,
    ),
    "4.4.0": (
        _Jar(_KAFKA, "kafka_2.13", "4.4.0", without=("kafka-tools-api",)),
        _Jar(_KAFKA, "kafka-tools-api", "4.3.1"),
        _LOGGING,
    ),
    STREAMS_TESTS: tuple(
        _Jar(_KAFKA, artifact, "4.3.1", classifier="test")
        for artifact in ("kafka-streams", "kafka-clients", "kafka-server-common")
    ),
    OLD_STREAMS: (
        _Jar(_KAFKA, "kafka-streams", "4.2.0"),
        _Jar("com.fasterxml.jackson.core", "jackson-databind", "2.19.2"),
        _LOGGING,
    ),
    CONNECT: (_Jar(_KAFKA, "connect-runtime", "4.3.1"),),
    YARN: tuple(
        _Jar("org.apache.hadoop", f"hadoop-yarn-server-{name}", "3.5.0")
        for name in ("resourcemanager", "nodemanager", "timelineservice")
    ),
    _COMPILER: (_Jar("org.eclipse.jdt", "ecj", "3.38.0"),),
    _SPARK_AVRO: (_Jar("org.apache.spark", "spark-avro_2.13", "4.0.1"),),
}


class KafkaUnavailable(Exception):
    """This machine cannot run Apache Kafka; the message says what is missing."""


@contextmanager
def skip_without_kafka() -> Iterator[None]:
    """Skip a test, with what is missing, where the block raises KafkaUnavailable; in CI it fails."""
    try:
        yield
    except KafkaUnavailable as missing:
        if os.environ.get("CI"):
            raise  # a skip is not a pass
        import pytest  # the benchmarks use this module without it

        pytest.skip(str(missing))


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
    return _made_once(version, lambda target: _download(version, target))


def spark_avro() -> Path:
    """The jar of Spark's own Avro format. Raises KafkaUnavailable."""
    return next(kafka_jars(_SPARK_AVRO).glob("spark-avro_*.jar"))


def compiled(sources: Path, version: str = TOOLS_VERSION) -> Path:
    """Class files of the Java sources below `sources`, for Java 17, against the jars of `version`.

    They are kept for as long as the sources are the same. Raises KafkaUnavailable.
    """
    files = sorted(sources.rglob("*.java"))
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
    libraries, compiler = kafka_jars(version), kafka_jars(_COMPILER)
    return _made_once(f"classes-{digest}", lambda target: _compile(files, libraries, compiler, target))


def class_archive(version: str, train: Callable[[list[str]], None]) -> list[str]:
    """What a JVM with these jars as its class path is told, so that it has less to do at its start.

    `train` runs one to its end with the options it gets, once: its classes are kept (as `headrace prepare` does).
    """

    def make(target: Path) -> None:
        aside = target.with_suffix(".new")
        aside.unlink(missing_ok=True)
        train([f"-XX:ArchiveClassesAtExit={aside}", SILENT])
        aside.rename(target)

    return [f"-XX:SharedArchiveFile={_made_once(f'{version}.jsa', make)}", SILENT]


def unpacked(group: str, artifact: str, version: str, classifier: str) -> Path:
    """The directory with what an archive (.tar.gz) on Maven's repositories holds. Raises KafkaUnavailable."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=JARS) as scratch:
            named = f"-Dartifact={group}:{artifact}:{version}:tar.gz:{classifier}"
            _run_maven(["dependency:copy", named, f"-DoutputDirectory={scratch}"], scratch, artifact, target)
            contents = Path(scratch) / "contents"
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
                archive.extractall(contents, filter="data")
            contents.rename(target)

    return _made_once(f"{artifact}-{version}", make)


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    target = JARS / name
    if target.exists():
        return target
    JARS.mkdir(exist_ok=True)
    with (JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once download once
        if not target.exists():
            make(target)
    return target


def _compile(files: list[Path], libraries: Path, compiler: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-classes-", dir=JARS) as scratch:
        classes = Path(scratch) / "classes"
        command = [java(), "-cp", f"{compiler}/*", "org.eclipse.jdt.internal.compiler.batch.Main"]
        command += ["-17", "-proc:none", "-failOnWarning", "-classpath", ":".join(map(str, libraries.glob("*.jar")))]
        command += ["-d", str(classes), *map(str, files)]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        if out.returncode != 0:
            raise AssertionError(f"The Java sources of the tests do not compile:\n{out.stdout}{out.stderr}")
        classes.rename(target)


def _download(version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-jars-", dir=JARS) as scratch:
        (Path(scratch) / "pom.xml").write_text(_pom(version))
        jars = Path(scratch) / "jars"
        _run_maven(["dependency:copy-dependencies", f"-DoutputDirectory={jars}"], scratch, _named(version), target)
        jars.rename(target)


def _run_maven(arguments: list[str], directory: str, what: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            f"{what} is fetched with Maven, and there is no mvn in PATH. Install Maven, or put its files into {target}."
        )
    out = subprocess.run([maven, "-q", "-B", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if out.returncode != 0:
        raise KafkaUnavailable(f"Maven could not fetch {what}:\n{(out.stdout + out.stderr)[-2000:]}")


def _named(version: str) -> str:
    return f"Apache Kafka {version}" if version[0].isdigit() else version


def _pom(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><classifier>{jar.classifier}</classifier>{_exclusions(jar.without)}"
        "</dependency>"
        for jar in VERSIONS[version]
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>headrace.interop</groupId><artifactId>kafka-jars</artifactId><version>{version}</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _exclusions(artifacts: tuple[str, ...]) -> str:
    inside = "".join(
        f"<exclusion><groupId>{_KAFKA}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for artifact in artifacts
    )
    return f"<exclusions>{inside}</exclusions>" if inside else ""
