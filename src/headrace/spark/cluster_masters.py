"""Spark clusters: which masters applications run on, what they need there, and what is refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, TopologyError
from headrace.spark.topology.nodes import CompiledTopology, TableSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.application_settings import ApplicationSettings

__all__ = [
    "CLUSTER_SETTINGS",
    "LEASE_S",
    "YARN",
    "cluster_cores",
    "cores_for_each",
    "is_cluster",
    "link_addresses",
    "refuse_environment",
    "refuse_on_cluster",
    "refuse_settings",
    "settings_for_cluster",
    "settings_of",
    "slots_on_cluster",
]

# `local-cluster[2,2,1024]` is no local master: it has executors in processes of their own.
_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]|spark://.+|yarn")
YARN = "yarn"
# A slot is lost after this silence. Shorter than transaction.timeout.ms, which is shorter than the group's session.
LEASE_S = 5.0
# Settings that slots on executors need: setting → (wanted, Spark's default, why)
CLUSTER_SETTINGS: Mapping[str, tuple[str, str, str]] = {
    "spark.speculation": ("false", "false", "a second attempt of a running slot would write its rows twice"),
    # Only this scheduler gives a core that becomes free to the subtopology with the fewest slots.
    "spark.scheduler.mode": ("FAIR", "FIFO", "a subtopology without a slot would wait behind those with several"),
    "spark.dynamicAllocation.enabled": ("false", "false", "executors without Spark jobs would be removed with stores"),
    "spark.python.worker.killOnIdleTimeout": ("false", "false", "a slot is idle when no record arrives"),
    "spark.task.maxFailures": ("1", "4", "the driver starts lost slots, and Spark would hide the reason of a failure"),
    "spark.submit.deployMode": ("client", "client", "the state directory of the driver would move with it"),
}
_FIX = 'use master="local[*]" and start one instance of the application per host: instances share the tasks'


def is_cluster(master: str) -> bool:
    """Whether an application runs on executors of other processes with this master."""
    return _CLUSTER.fullmatch(master) is not None


def settings_of(spark: SparkSession) -> Mapping[str, str]:
    """Return the settings of a session's context, the master among them."""
    return dict(spark.sparkContext.getConf().getAll())


def settings_for_cluster(master: str) -> dict[str, str]:
    """Return the settings that a session of ours has on a cluster, unless the program gives others."""
    settings = {"spark.task.maxFailures": CLUSTER_SETTINGS["spark.task.maxFailures"][0]}
    if master == YARN:
        # Python workers listen on a socket below java.io.tmpdir. In a container that is a directory whose path is
        # longer than the 108 bytes that a socket may have.
        settings["spark.python.unix.domain.socket.dir"] = "/tmp"
        # YARN ends an application after a few lost executors, however many days lie between them.
        settings["spark.executor.failuresValidityInterval"] = "1h"
    return settings


def refuse_environment(master: str, environ: Mapping[str, str]) -> None:
    """Raise ConfigError `cluster-setting` if Spark could not find the cluster of `master`: YARN's address is in a file.

    Spark itself would try to connect to 0.0.0.0 without end.
    """
    if master != YARN:
        return
    fix = "set HADOOP_CONF_DIR to the directory with the configuration of the cluster's clients"
    given = environ.get("YARN_CONF_DIR") or environ.get("HADOOP_CONF_DIR")
    if not given:
        raise ConfigError("cluster-setting", "master yarn: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set", fix)
    if not Path(given, "yarn-site.xml").is_file():
        raise ConfigError("cluster-setting", f"master yarn: the directory {given} holds no yarn-site.xml", fix)


def refuse_settings(conf: Mapping[str, str]) -> None:
    """Raise ConfigError `cluster-setting` if a session on a cluster lacks a setting that slots need."""
    for name, (wanted, default, why) in CLUSTER_SETTINGS.items():
        actual = conf.get(name, default)
        if actual.lower() != wanted.lower():
            raise ConfigError(
                "cluster-setting",
                f"Invalid {name} '{actual}' on the cluster {conf['spark.master']}: expected '{wanted}', because {why}",
                f"set {name}={wanted} when the session is built, or let headrace.spark.session() build it",
            )


def refuse_on_cluster(
    compiled: CompiledTopology, *, guarantee: str, execution: str, transaction_timeout_ms: int
) -> None:
    """Raise what keeps an application from running on the executors of a cluster.

    Args:
        compiled: The program.
        guarantee: `processing_guarantee`.
        execution: The setting `headrace.execution`.
        transaction_timeout_ms: `transaction.timeout.ms`.

    Raises:
        ConfigError: `cluster-unsupported` for a setting.
        TopologyError: `cluster-unsupported` for a part of the program.
    """
    if guarantee != "exactly_once_v2":
        # A slot that is cut off and comes back may write to a changelog behind its successor. Transactions fence it.
        raise ConfigError(
            "cluster-unsupported",
            "at least once on a Spark cluster: nothing would fence an executor that was cut off",
            'set processing_guarantee="exactly_once_v2", or ' + _FIX,
        )
    if execution == "micro-batch":
        raise ConfigError(
            "cluster-unsupported",
            'headrace.execution "micro-batch" on a Spark cluster: the tasks of a Spark job may run where the stores '
            "are not",
            'set headrace.execution to "auto", or ' + _FIX,
        )
    if transaction_timeout_ms <= LEASE_S * 1000:
        # The other slots of a micro-batch wait for the lease of one that is cut off, with their transactions open.
        raise ConfigError(
            "cluster-unsupported",
            f"Invalid transaction.timeout.ms '{transaction_timeout_ms}' on a Spark cluster: expected more than "
            f"{LEASE_S * 1000:.0f}, the time after which a silent executor is given up",
            "set transaction.timeout.ms to 10000 or more, and below the session timeout of the group",
        )
    for part in compiled.subtopologies:
        for branch in part.branches:
            if isinstance(branch.sink, TableSink):
                raise TopologyError(
                    "cluster-unsupported",
                    f"the table {branch.sink.name} on a Spark cluster: the driver publishes files that executors write",
                    _FIX,
                    where=branch.sink.where,
                )


def cluster_cores(conf: Mapping[str, str]) -> int:
    """Return the cores that a session asks the cluster for. Raises ConfigError `cluster-cores` if it names none."""
    local = _CLUSTER.fullmatch(conf["spark.master"])
    if local is not None and local.group(1):
        return int(local.group(1)) * int(local.group(2))
    if conf["spark.master"] == YARN:  # Spark's own defaults there
        return int(conf.get("spark.executor.instances", "2")) * int(conf.get("spark.executor.cores", "1"))
    if "spark.cores.max" in conf:
        return int(conf["spark.cores.max"])
    raise ConfigError(
        "cluster-cores",
        f"the number of slots on {conf['spark.master']} is not known: spark.cores.max is not set",
        "set spark.cores.max when the session is built, or headrace.max.slots",
    )


def slots_on_cluster(settings: ApplicationSettings) -> int:
    """Return the slots of all subtopologies together. Raises ConfigError `cluster-cores` if they are not known."""
    return int(settings.config["headrace.max.slots"]) or cluster_cores(settings_of(settings.spark))


def cores_for_each(cores: int, subtopologies: int) -> int:
    """Return the slots of each subtopology. Raises ConfigError `cluster-cores` if there is not one for each."""
    if cores < subtopologies:
        # One without a slot would never run, and nothing would fail.
        raise ConfigError(
            "cluster-cores",
            f"{subtopologies} subtopologies need as many slots, each of which holds a core of an executor: {cores} are "
            "there",
            f"give the application at least {subtopologies} cores: spark.cores.max, or headrace.max.slots",
        )
    return cores // subtopologies


def link_addresses(conf: Mapping[str, str]) -> tuple[str, str]:
    """Return the address that the driver listens on for slots, and the host that executors connect to: Spark's own."""
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or host, host
