"""Replays of incidents: deterministic, and each setting prevents the disturbance that it is for and no other one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.simulator.incident_replay import Disturbance, DisturbanceKind, ReplaySettings, replay_incident

CLASSIC = ReplaySettings(session_timeout_ms=10_000, heartbeat_interval_ms=1_000, max_poll_interval_ms=20_000)
MODERN = replace(CLASSIC, protocol="consumer")


def disturbed(kind: DisturbanceKind, duration_ms: int) -> list[Disturbance]:
    return [Disturbance(at_ms=5_000, member=1, kind=kind, duration_ms=duration_ms)]


@pytest.mark.parametrize("settings", [CLASSIC, MODERN], ids=["classic", "consumer"])
def test_a_calm_group_costs_nothing(settings: ReplaySettings) -> None:
    outcome = replay_incident(settings, [], members=3, partitions=6)
    assert (outcome.rebalances, outcome.interrupted, outcome.standstill_ms, outcome.processed_twice) == (0, 0, 0, 0)


@pytest.mark.parametrize("settings", [CLASSIC, MODERN], ids=["classic", "consumer"])
@pytest.mark.parametrize(
    ("kind", "duration_ms", "change"),
    [
        ("pause", 15_000, {"session_timeout_ms": 40_000}),
        ("busy", 30_000, {"max_poll_interval_ms": 60_000}),
        ("restart", 3_000, {"static": True}),
    ],
)
def test_the_setting_for_a_disturbance_prevents_its_rebalances(
    settings: ReplaySettings, kind: DisturbanceKind, duration_ms: int, change: dict[str, int]
) -> None:
    was = replay_incident(settings, disturbed(kind, duration_ms), members=3, partitions=6)
    prevented = replay_incident(replace(settings, **change), disturbed(kind, duration_ms), members=3, partitions=6)  # type: ignore[arg-type]
    assert was.rebalances >= 2
    assert prevented.rebalances == 0


def test_a_disturbance_within_the_timeouts_moves_nothing() -> None:
    for kind, duration_ms in (("pause", 5_000), ("busy", 10_000)):
        outcome = replay_incident(CLASSIC, disturbed(kind, duration_ms), members=3, partitions=6)  # type: ignore[arg-type]
        assert outcome.rebalances == 0


def test_a_paused_reader_stops_its_partitions_for_the_pause_and_no_longer() -> None:
    outcome = replay_incident(CLASSIC, disturbed("pause", 5_000), members=2, partitions=4)
    assert 4_800 <= outcome.longest_standstill_ms <= 5_200
    assert 2 * 4_800 <= outcome.standstill_ms <= 2 * 5_200


def test_a_crash_stops_partitions_until_the_session_is_over() -> None:
    outcome = replay_incident(CLASSIC, disturbed("crash", 60_000), members=2, partitions=4)
    assert 9_000 <= outcome.longest_standstill_ms <= 13_000


def test_the_same_arguments_give_the_same_outcome() -> None:
    for settings in (CLASSIC, MODERN):
        first, second = (replay_incident(settings, disturbed("pause", 15_000), members=3, partitions=6) for _ in "12")
        assert first == second
