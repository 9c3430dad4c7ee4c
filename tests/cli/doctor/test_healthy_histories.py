"""Random histories of healthy groups have no finding, and random bytes in logs cost little and raise nothing."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.doctor.client_logs import find_causes
from headrace.cli.doctor.findings import diagnose
from headrace.cli.doctor.group_events import EventKind, GroupEvent
from headrace.cli.doctor.group_state import GroupState, PartitionState


def event(kind: EventKind, at_ms: int, name: str, instance_id: str | None = None) -> GroupEvent:
    return GroupEvent(
        at_ms=at_ms, kind=kind, member_id=f"{name}-{at_ms}", client_id=name, client_host="/h", instance_id=instance_id
    )


@given(st.integers(1, 20), st.lists(st.integers(0, 19), max_size=60))
def test_restarts_of_static_members_in_any_order_are_healthy(members: int, restarts: list[int]) -> None:
    history = [event("joined", number, f"pod-{number}", f"pod-{number}") for number in range(members)]
    for at_ms, number in enumerate(restarts, 1_000):
        name = f"pod-{number % members}"
        history += [event("replaced", at_ms, name, name), event("rebalance", at_ms, "")]
    assert diagnose(history, []) == []


@given(st.integers(1, 10), st.integers(0, 10), st.integers(0, 10))
def test_scaling_out_and_then_in_is_healthy(first: int, more: int, fewer: int) -> None:
    names = [f"app-{number}" for number in range(first + more)]
    history = [event("joined", at_ms, name) for at_ms, name in enumerate(names)]
    history += [event("left", 1_000 + at_ms, name) for at_ms, name in enumerate(names[: min(fewer, len(names))])]
    assert diagnose(history, []) == []


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=12), st.integers(0, 2_000))
def test_a_backlog_that_is_spread_evenly_is_not_hot(ends: list[int], lag: int) -> None:
    """Whatever the sizes are: the same lag everywhere is the lag of a slow group, not of a hot partition."""
    partitions = tuple(
        PartitionState(topic="t", partition=number, log_start=0, stable_end=end + lag, end=end + lag, committed=end)
        for number, end in enumerate(ends)
    )
    found = diagnose([], [], GroupState(at_ms=0, group_type="classic", state="Stable", partitions=partitions))
    assert found == [] or len(ends) == 1


@given(st.text(max_size=300))
def test_any_text_is_a_log(text: str) -> None:
    find_causes(text.splitlines(), file="x")


def test_a_hostile_line_costs_linear_time() -> None:
    for part in ("in group ", "Group coordinator ", "coordinator ", "Connect to ipv4#", "connection to node 1 "):
        line = part * (1_000_000 // len(part))
        began = time.monotonic()
        find_causes([line], file="x")
        assert time.monotonic() - began < 1
