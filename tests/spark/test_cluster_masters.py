"""Which masters are clusters, and which settings and programs are refused there, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.cluster_masters import (
    cluster_cores,
    cores_for_each,
    is_cluster,
    link_addresses,
    refuse_environment,
    refuse_on_cluster,
    refuse_settings,
    settings_for_cluster,
)
from headrace.spark.topology.nodes import CompiledTopology

NOTHING = CompiledTopology(app_name="app", subtopologies=())


def settings(master: str = "spark://host:7077", **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"spark.master": master, "spark.task.maxFailures": "1", "spark.scheduler.mode": "FAIR"} | given


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_clusters(master: str) -> None:
    assert is_cluster(master)
    refuse_settings(settings(master))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4,2]", "yarn-client", "k8s://host", "local-cluster[2]"])
def test_no_clusters(master: str) -> None:
    assert not is_cluster(master)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark_speculation", "true"),
        ("spark_scheduler_mode", "FIFO"),
        ("spark_dynamicAllocation_enabled", "true"),
        ("spark_python_worker_killOnIdleTimeout", "true"),
        ("spark_task_maxFailures", "4"),
        ("spark_submit_deployMode", "cluster"),
    ],
)
def test_settings_that_do_not_fit_slots_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", ".")) as refused:
        refuse_settings(settings(**{name: value}))
    assert refused.value.code == "cluster-setting"


@pytest.mark.parametrize(
    ("name", "value"),
    [("guarantee", "at_least_once"), ("execution", "micro-batch"), ("transaction_timeout_ms", 5_000)],
)
def test_what_would_not_be_fenced_in_time_is_refused(name: str, value: object) -> None:
    fitting: dict[str, Any] = {
        "guarantee": "exactly_once_v2",
        "execution": "auto",
        "transaction_timeout_ms": 10_000,
    }
    refuse_on_cluster(NOTHING, **fitting)
    with pytest.raises(ConfigError) as refused:
        refuse_on_cluster(NOTHING, **fitting | {name: value})
    assert refused.value.code == "cluster-unsupported"


def test_cores_are_those_that_are_asked_for() -> None:
    assert cluster_cores(settings("local-cluster[3, 2, 1024]")) == 6
    assert cluster_cores(settings(spark_cores_max="8")) == 8
    with pytest.raises(ConfigError, match="is not known"):
        cluster_cores(settings())


def test_cores_on_yarn_are_those_of_its_executors() -> None:
    """`spark.cores.max` says nothing there; without any setting Spark asks for two executors of one core."""
    assert cluster_cores(settings("yarn", spark_cores_max="8")) == 2
    assert cluster_cores(settings("yarn", spark_executor_instances="3", spark_executor_cores="4")) == 12


def test_yarn_needs_the_configuration_of_a_cluster(tmp_path: Path) -> None:
    refuse_environment("spark://host:7077", {})
    with pytest.raises(ConfigError, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set") as refused:
        refuse_environment("yarn", {})
    assert refused.value.code == "cluster-setting"
    with pytest.raises(ConfigError, match=r"holds no yarn-site\.xml"):
        refuse_environment("yarn", {"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").touch()
    refuse_environment("yarn", {"YARN_CONF_DIR": str(tmp_path)})


def test_sessions_on_yarn_have_sockets_with_short_paths() -> None:
    assert settings_for_cluster("yarn")["spark.python.unix.domain.socket.dir"] == "/tmp"
    assert "spark.python.unix.domain.socket.dir" not in settings_for_cluster("spark://host:7077")


def test_every_subtopology_needs_a_slot() -> None:
    assert cores_for_each(8, 3) == 2
    with pytest.raises(ConfigError, match="3 subtopologies need as many slots"):
        cores_for_each(2, 3)


def test_slots_are_listened_for_where_spark_listens() -> None:
    assert link_addresses(settings(spark_driver_host="10.0.0.5")) == ("10.0.0.5", "10.0.0.5")
    addresses = link_addresses(settings(spark_driver_host="driver", spark_driver_bindAddress="10.0.0.5"))
    assert addresses == ("10.0.0.5", "driver")
