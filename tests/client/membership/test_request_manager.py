"""When heartbeats are due: fast ones after a change, the interval's cap, throttling, backoff, jitter."""

from __future__ import annotations

import itertools

from tests.client.membership.scripted_coordinator import ScriptedCoordinator

from headrace.client.membership.request_manager import HeartbeatSchedule
from headrace.protocol.error_codes import ErrorCode


def delays(schedule: HeartbeatSchedule, count: int, *, delayed: bool = False) -> list[int]:
    now_ms, found = 0, []
    for _ in range(count):
        schedule.on_success(now_ms, interval_ms=5_000, throttle_ms=0, delayed=delayed)
        found.append(schedule.due_ms - now_ms)
        now_ms = schedule.due_ms
    return found


def test_after_a_change_the_beats_double_up_to_the_cap() -> None:
    schedule = HeartbeatSchedule(max_interval_ms=500, chance=lambda: 0.0)
    schedule.speed_up()
    assert delays(schedule, 6) == [50, 100, 200, 400, 500, 500]


def test_the_servers_interval_wins_when_it_is_shorter() -> None:
    schedule = HeartbeatSchedule(max_interval_ms=500, chance=lambda: 0.0)
    schedule.on_success(0, interval_ms=300, throttle_ms=0, delayed=False)
    assert schedule.due_ms == 300


def test_while_the_assignment_is_delayed_the_beats_stay_fast() -> None:
    schedule = HeartbeatSchedule(max_interval_ms=500, chance=lambda: 0.0)
    schedule.speed_up()
    assert delays(schedule, 5, delayed=True) == [50, 100, 200, 200, 200]
    assert delays(schedule, 3) == [200, 400, 500]


def test_a_throttled_client_waits_even_with_something_to_tell() -> None:
    schedule = HeartbeatSchedule(max_interval_ms=500, chance=lambda: 0.0)
    schedule.on_success(0, interval_ms=5_000, throttle_ms=2_000, delayed=False)
    schedule.heartbeat_now(10)
    assert schedule.due_ms == 2_000


def test_jitter_only_makes_a_beat_earlier() -> None:
    for number in (0.0, 0.5, 0.999):
        schedule = HeartbeatSchedule(max_interval_ms=500, chance=itertools.repeat(number).__next__)
        schedule.on_success(0, interval_ms=5_000, throttle_ms=0, delayed=False)
        assert 400 <= schedule.due_ms <= 500


def test_failures_back_off_and_success_forgets_them() -> None:
    schedule = HeartbeatSchedule(max_interval_ms=500, chance=lambda: 0.0)
    found = []
    for _ in range(6):
        schedule.on_failure(0)
        found.append(schedule.due_ms)
    assert found == [100, 200, 400, 800, 1_000, 1_000]
    schedule.on_success(0, interval_ms=5_000, throttle_ms=0, delayed=False)
    schedule.on_failure(0)
    assert schedule.due_ms == 100


def test_the_member_beats_fast_after_its_join_and_settles_at_the_cap() -> None:
    script = ScriptedCoordinator(heartbeat_max_interval_ms=500)
    script.joined()
    waits = []
    for _ in range(6):
        before_ms = script.now_ms
        script.next_sent()
        waits.append(script.now_ms - before_ms)
        script.answer()
    assert waits == [50, 100, 200, 400, 500, 500]


def test_the_member_respects_a_throttle_in_a_refusal() -> None:
    script = ScriptedCoordinator()
    script.joined()
    script.next_sent()
    script.answer(code=ErrorCode.coordinator_load_in_progress, throttle_ms=3_000)
    before_ms = script.now_ms
    script.next_sent()
    assert script.now_ms - before_ms == 3_000
