"""The capacity model: products of a workload and of unit costs, followed by hand for one small workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.simulator.capacity_model import TARGET_LOAD, UnitCosts, Workload, estimate, read_unit_costs

COSTS = UnitCosts(
    operators={
        "copy": {"application_us": 1.0, "broker_us": 0.5},
        "count": {"application_us": 2.0, "broker_us": 0.5},
        "count, a million keys": {"application_us": 5.0, "broker_us": 1.0},
    },
    cycle_ms=50.0,
    task_ms=4.0,
    transaction_ms=5.0,
    broker_cycle_ms=4.0,
    broker_task_ms=0.5,
    broker_transaction_ms=2.0,
    store_bytes_per_key=50.0,
    changelog_bytes_per_key=30.0,
    idle_percent_of_core=2.0,
    idle_mb=1_000.0,
    restore_bytes_per_cpu_s=70e6,
    heartbeat_us=10.0,
    description_ms=1.0,
    description_members=1_000,
    assignment_ms=10.0,
)
WORK = Workload(
    instances=10, tasks=80, records_per_s=1_000_000, cores=4, keys=8_000_000, operator="count", brokers=4, cycle_ms=500
)


def test_cores_of_an_instance() -> None:
    spark = estimate(WORK, COSTS).spark
    assert spark["cores for records"] == pytest.approx(100_000 * 2e-6)
    # Two cycles a second: 50 ms, 4 ms for each of 8 tasks, 5 ms for each of 4 transactions; and 2 % idle.
    assert spark["cores for cycles"] == pytest.approx(2 * (50 + 8 * 4 + 4 * 5) / 1000 + 0.02)
    assert spark["stores per instance, MB"] == pytest.approx(2 * 800_000 * 50 / 1e6)
    assert spark["memory per instance, MB"] == 1_000 + 2 * 125


def test_needs_of_kafka() -> None:
    kafka = estimate(WORK, COSTS).kafka
    assert kafka["partitions"] == 240
    assert kafka["replicas per broker"] == 180
    assert kafka["transactions per second"] == 10 * 4 * 2
    assert kafka["transactions per second and coordinator"] == 20
    assert kafka["markers per second"] == (80 * 2 + 40) * 2
    assert kafka["heartbeats per second, all at one broker"] == 20
    assert kafka["offset records per second, all in one partition"] == 160


def test_transactions_per_slot_and_per_task() -> None:
    found = estimate(WORK, COSTS).transactions
    assert found["transactions per second"] == (80, 160)
    assert found["markers per second"] == (400, 480)
    assert found["records of __transaction_state per second"] == (160, 320)


def test_a_slot_has_a_task_at_least() -> None:
    found = estimate(replace(WORK, tasks=10), COSTS).transactions
    assert found["transactions per second"] == (20, 20)


def test_at_least_once_has_no_transactions() -> None:
    found = estimate(replace(WORK, exactly_once=False), COSTS)
    assert found.kafka["transactions per second"] == found.kafka["markers per second"] == 0
    assert found.spark["cores for cycles"] == pytest.approx(2 * (50 + 8 * 4) / 1000 + 0.02)


def test_the_recommended_number_of_instances_has_the_target_load() -> None:
    number = estimate(WORK, COSTS).instances_for_target
    # More tasks than slots on each instance: the transactions of a cycle are as many as cores.
    loads = [
        estimate(replace(WORK, instances=count), COSTS).spark["cores needed per instance"] / WORK.cores
        for count in (number, number - 1)
    ]
    assert loads[0] <= TARGET_LOAD < loads[1]


def test_cycles_that_need_all_cores_have_no_number_of_instances() -> None:
    assert estimate(replace(WORK, cores=1, cycle_ms=10), COSTS).instances_for_target == 0


def test_the_highest_load_comes_first() -> None:
    loads = [limit.load for limit in estimate(Workload(), read_unit_costs()).limits]
    assert loads == sorted(loads, reverse=True)
