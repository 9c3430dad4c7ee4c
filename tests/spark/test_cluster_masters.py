"""Which masters are clusters, and which settings and programs are refused there, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.cluster_masters import (
    cluster_cores,
    cores_for_each,
    is_cluster,
    link_addresses,
    refuse_on_cluster,
    refuse_settings,
)
from headrace.spark.topology.nodes import CompiledTopology

NOTHING = CompiledTopology(app_name="app", subtopologies=())


def settings(master: str = "spark://host:7077", **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"spark.master": master, "spark.task.maxFailures": "1", "spark.scheduler.mode": "FAIR"} | given


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]"])
def test_clusters(master: str) -> None:
    assert is_cluster(master)
    refuse_settings(settings(master))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4,2]", "yarn", "k8s://host", "local-cluster[2]"])
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


def test_every_subtopology_needs_a_slot() -> None:
    assert cores_for_each(8, 3) == 2
    with pytest.raises(ConfigError, match="3 subtopologies need as many slots"):
        cores_for_each(2, 3)


def test_slots_are_listened_for_where_spark_listens() -> None:
    assert link_addresses(settings(spark_driver_host="10.0.0.5")) == ("10.0.0.5", "10.0.0.5")
    addresses = link_addresses(settings(spark_driver_host="driver", spark_driver_bindAddress="10.0.0.5"))
    assert addresses == ("10.0.0.5", "driver")
