"""The chaos run in its shortest form: two disasters of different kinds, everything counted once at the end.

By hand, for ten minutes, on our broker and on Apache Kafka: `make chaos`. A rolling restart of three static instances
(HEADRACE_LONG=1): by hand `python -m tests.chaos.rolling_restart`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.longer import longer

pytest.importorskip("confluent_kafka")
from tests.chaos.chaos import broker_of, chaos
from tests.chaos.rolling_restart import SESSION_S, rolling_restart

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

WITH_OPEN_TIMERS = (
    "kill -9 of a driver",
    "kill -9 of all Python workers",
    "kill -9 of a driver and its guardian",
    "kill -9 of a driver",
    "broker kill -9",
)
FEW = ("broker kill -9", "kill -9 of a driver and its guardian")  # of workers: test_commit_path_crashes


def test_the_result_is_right_after_random_kills(tmp_path: Path) -> None:
    with broker_of("headrace", tmp_path) as broker:
        outcome = chaos(
            broker,
            tmp_path,
            seed=1,
            instances=2,
            goes_on=lambda number: number < len(FEW),
            disasters=FEW,
            proves_state=False,
        )
    print(f"\n{outcome.disasters}, {outcome.flights} flights in {outcome.seconds:.0f} s")
    assert outcome.failures == ()
    assert outcome.flights > 0


@longer
def test_a_rolling_restart_pauses_no_output(tmp_path: Path) -> None:
    with broker_of("headrace", tmp_path, session_s=SESSION_S) as broker:
        restarts, _, failures = rolling_restart(broker, tmp_path, instances=3, quiet_s=3)
    assert failures == []
    assert [restart.instance for restart in restarts] == ["a", "b", "c"]


@longer
@pytest.mark.parametrize("standbys", [0, 1])
def test_open_timers_fire_once_whoever_is_killed(tmp_path: Path, standbys: int) -> None:
    with broker_of("headrace", tmp_path, standbys=standbys) as broker:
        outcome = chaos(
            broker,
            tmp_path,
            seed=3,
            instances=2,
            goes_on=lambda number: number < len(WITH_OPEN_TIMERS),
            disasters=WITH_OPEN_TIMERS,
            program="timers",
        )
    assert outcome.failures == ()
    assert outcome.verdict == "right"
    assert set(outcome.disasters) == set(WITH_OPEN_TIMERS)
    assert outcome.takeovers >= standbys
