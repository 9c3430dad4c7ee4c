"""The Spark session an application runs in: built with what the runtime needs, or judged when it was handed in.

`SETTINGS` is the measured list (docs of the project, "tried on Spark" 2 and 12): workers reached over a unix domain
socket answer ten times faster than over loopback TCP, a daemon that imports before it forks brings a killed worker
back in 0.3 s, and a UI that keeps every job of an endless application grows for ever. The session's time zone is UTC
unless the caller sets one: timestamps in records and in results then mean the same on every machine.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark.application_log import announce_spark
from headrace.spark.cds_archive import archive_options
from headrace.spark.cluster_masters import (
    YARN,
    is_cluster,
    refuse_environment,
    refuse_settings,
    settings_for_cluster,
    settings_of,
)
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAEMON_MODULE = "headrace.spark.runtime.daemon"
JAVA_WANTED = 17
SETTINGS: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Python workers allocate and free megabytes for every Fetch: fresh pages cost more than the bytes in them.
    "spark.executorEnv.GLIBC_TUNABLES": (
        "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=67108864:glibc.malloc.trim_threshold=134217728"
    ),
}
# A chain of a resident slot holds a thread of the executor as long as the application runs. So a master of N cores gets
# threads for eight chains with a slot on every core, and for jobs beside them; `spark.default.parallelism` stays N. A
# thread is started with its first task, so those that are not needed cost nothing.
_THREADS_PER_CORE = 8
_MORE_THREADS = 2
_CORES = "spark.headrace.cores"  # N of the master that was asked for, or *
_PARTS_OF_MASTER = re.compile(r"local(?:\[(\d+|\*)(,\s*\d+)?\])?")
_LOG4J = Path(__file__).with_name("log4j2.properties")
_LONGEST_SOCKET_DIRECTORY = 60  # a socket's path has at most 103 characters on macOS, its name 42
_LOCAL_MASTER = re.compile(r"local(\[.*\])?")
_SILENCED = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# What a session that was handed in may lack: setting → (wanted, refused or costly, why)
JUDGED_SETTINGS: Mapping[str, tuple[str, bool, str]] = {
    "spark.python.unix.domain.socket.enabled": ("true", False, "each micro-batch waits about 40 ms per Python stage"),
    "spark.scheduler.mode": ("FAIR", False, "micro-batches of different subtopologies wait for each other"),
    "spark.speculation": ("false", True, "a second attempt of a running slot would write its rows twice"),
    "spark.dynamicAllocation.enabled": ("false", True, "state lies on the executors' hosts"),
    "spark.python.udf.pipelined.enabled": ("false", True, "two-stage micro-batches were seen to die with it"),
    "spark.sql.retainGroupColumns": ("true", True, "grouping columns would be missing in results"),
    "spark.eventLog.enabled": ("false", False, "the event log grows with every micro-batch, as long as it runs"),
}
_DEFAULTS = {
    "spark.scheduler.mode": "FIFO",
    "spark.python.unix.domain.socket.enabled": "false",
    "spark.sql.retainGroupColumns": "true",
}


def session(app_name: str, *, preload_workers: bool = True, **settings: Any) -> SparkSession:
    """A classic Spark session for `app_name`: the active one, else a new local one.

    `settings` are Spark's, with underscores for dots (`spark_driver_memory="2g"`) or as a mapping
    `settings={"spark.driver.memory": "2g"}`; `master="local[*]"` by default. They win over `SETTINGS`. The master names
    cores: `spark.default.parallelism` is N of `local[N]`, and the executor has more threads, for resident slots.
    `preload_workers=False` leaves PySpark's own worker daemon in place.

    Raises:
        ConfigError: `spark-master` for an unknown kind of cluster, `cluster-setting` for YARN without the configuration
            of a cluster, `spark-connect` if PySpark is set to Spark Connect, and `java-missing` before PySpark prints a
            long message of its own.
    """
    given = {str(k): str(v) for k, v in settings.pop("settings", {}).items()}
    named = settings.pop("master", given.pop("spark.master", None))
    if named is not None:
        check_master(str(named))
    given.update({name.replace("_", "."): str(value) for name, value in settings.items()})
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    master = str(named) if named is not None else os.environ.get("MASTER", "local[*]")
    # Before Spark starts, which would wait for the cluster, or refuse a master beside SPARK_REMOTE with its own words.
    check_master(master)
    if "SPARK_REMOTE" in os.environ or "spark.remote" in given:
        raise _is_connect()
    refuse_environment(master, os.environ)
    java = check_java()
    announce_spark(master)
    for name in _SILENCED:  # a mistyped column would print a JSON line of 8 kB; our error says it in one
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    wanted = {**SETTINGS, **given}
    if preload_workers and importlib.util.find_spec(DAEMON_MODULE) is not None:
        wanted.setdefault("spark.python.daemon.module", DAEMON_MODULE)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # PySpark's default is whatever "python3" is in PATH
    if "spark.driver.extraJavaOptions" not in wanted:
        options = f"-Dlog4j2.configurationFile={_LOG4J} -Djava.io.tmpdir={_scratch()} {archive_options(java)}"
        wanted["spark.driver.extraJavaOptions"] = options.strip()
        if len(str(_scratch())) > _LONGEST_SOCKET_DIRECTORY and not _has_other_hosts(master):
            wanted.setdefault("spark.python.unix.domain.socket.dir", str(_socket_directory()))
    master, wanted = _for_master(master, wanted)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    built = check_session(builder.getOrCreate())
    built.sparkContext.setLogLevel(wanted.get("spark.log.level", "ERROR"))
    return built


def _has_other_hosts(master: str) -> bool:
    return master == YARN or master.startswith("spark://")


def _for_master(master: str, wanted: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the master to build a session with, and its settings."""
    if not _has_other_hosts(master):
        # Without it Spark resolves the host's name (`Utils.findLocalInetAddress`) and may take an address of another
        # interface. Executors on other hosts need that address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "spark.driver.host" not in wanted:
            wanted = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **wanted}
    if is_cluster(master):
        return master, {**settings_for_cluster(master), **wanted}
    master, cores = _with_threads(master)
    # Stays at the number of cores: the additional threads are held by resident slots, and `spark.range` or a user's job
    # must not be cut into four times as many partitions.
    parallelism = str(_processors() if cores == "*" else cores)
    return master, {"spark.default.parallelism": parallelism, **wanted, _CORES: cores}


def cores_of(spark: SparkSession) -> int:
    """Return the cores that a local session works with."""
    from headrace.spark.spark_internals import usable_processors

    cores = str(spark.conf.get(_CORES, ""))
    if cores == "*":
        return usable_processors(spark)
    return int(cores or spark.sparkContext.defaultParallelism)


def threads_of(spark: SparkSession) -> int:
    """Return the number of Spark tasks that a local session runs at a time."""
    from headrace.spark.spark_internals import usable_processors

    threads, _ = _parts_of(str(spark.sparkContext.master))
    return usable_processors(spark) if threads == "*" else int(threads)


def _with_threads(master: str) -> tuple[str, str]:
    """Return a local master with threads for resident slots, and the cores that it names: a number, or *."""
    cores, failures = _parts_of(master)
    count = _processors() if cores == "*" else int(cores)
    return f"local[{_THREADS_PER_CORE * count + _MORE_THREADS}{failures}]", cores


def _parts_of(master: str) -> tuple[str, str]:
    """Return the threads that a local master names, and the rest: its number of failures, with the comma."""
    found = _PARTS_OF_MASTER.fullmatch(master)
    return (found.group(1) or "1", found.group(2) or "") if found is not None else ("1", "")


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _scratch() -> Path:
    """Return the directory for temporary files of this process's JVM: blocks, sockets, unpacked libraries.

    The JVM removes most of them itself. After a kill, the next session on this machine removes them.
    """
    directory = OwnedDirectory("headrace-spark-")
    atexit.register(directory.remove)
    return directory.path


@functools.cache
def _socket_directory() -> Path:
    """Return a directory for the sockets of Python workers, if the path of the temporary directory is too long for
    them.

    A socket's path has at most 108 bytes; temporary directories of macOS, tests and CI jobs may be longer.
    """
    directory = OwnedDirectory("headrace-spark-", Path("/tmp"))
    atexit.register(directory.remove)
    return directory.path


def check_session(spark: Any) -> SparkSession:
    """Return `spark` if applications can run in it.

    Raises:
        ConfigError: `spark-connect` for a Spark Connect session, `spark-master` for an unknown kind of cluster, and
            `cluster-setting` for one on a cluster that lacks a setting.
    """
    from headrace.spark.spark_internals import is_classic

    if not is_classic(spark):
        raise _is_connect()
    master = str(spark.sparkContext.master)
    check_master(master)
    if is_cluster(master):
        refuse_settings(settings_of(spark))
    return spark


def _is_connect() -> ConfigError:
    return ConfigError(
        "spark-connect",
        "StreamsApp needs a classic Spark session; this is Spark Connect",
        "leave spark.api.mode, SPARK_REMOTE and --remote out; on Databricks take a cluster in dedicated access mode",
    )


def check_master(master: str) -> None:
    """Raise ConfigError `spark-master` unless `master` is local, or a kind of cluster that is tested."""
    if not _LOCAL_MASTER.fullmatch(master) and not is_cluster(master):
        raise ConfigError(
            "spark-master",
            f"Invalid master '{master}': expected a local one, spark://HOST:PORT, yarn or "
            "local-cluster[N,CORES,MB]; "
            "applications are not tested on other clusters",
            'use master="local[*]" (or local[4] …) and start one instance of the application per host: instances share '
            "the tasks",
        )


def missing_settings(spark: SparkSession) -> list[tuple[str, str, bool, str]]:
    """(setting, wanted value, refused, what it costs) for each setting that `spark` lacks."""
    missing = []
    for name, (wanted, refused, why) in JUDGED_SETTINGS.items():
        actual = _setting(spark, name, _DEFAULTS.get(name, "false"))
        if actual.lower() != wanted.lower():
            missing.append((name, wanted, refused, why))
    return missing


def _setting(spark: SparkSession, name: str, default: str) -> str:
    # The session's configuration includes the context's, and what was set after the start.
    return str(spark.conf.get(name, default))


def check_java() -> str:
    """The path of a Java that Spark can run on. Raises ConfigError("java-missing")."""
    home = os.environ.get("JAVA_HOME", "")
    java = Path(home, "bin", "java") if home else None
    if java is not None and not os.access(java, os.X_OK):
        raise _java_missing(f"JAVA_HOME is {home}, which holds no bin/java")
    found = str(java) if java is not None else shutil.which("java")
    if found is None:
        raise _java_missing("found none (JAVA_HOME is not set, no java in PATH)")
    version = _java_version(found)
    if version is not None and version < JAVA_WANTED:
        raise _java_missing(f"{found} is Java {version}")
    return found


def _java_version(java: str) -> int | None:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _java_missing(f"{java} does not start ({error})") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if match is None:
        return None  # an unusual vendor: let Spark judge
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major  # Java 8 calls itself 1.8


def _java_missing(found: str) -> ConfigError:
    return ConfigError(
        "java-missing",
        f"Spark needs Java {JAVA_WANTED} or later; {found}",
        "Debian/Ubuntu: apt install openjdk-17-jre-headless · macOS: brew install openjdk@17 · anywhere: "
        "conda install openjdk=17. The broker and its tests need no Java.",
    )
