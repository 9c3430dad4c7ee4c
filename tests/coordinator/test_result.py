"""Timers of a shard."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.result import CancelTimer, SetTimer, TimerKey, TimerQueue

KEYS = [TimerKey(kind="session", group_id="g", member_id=f"m{number}") for number in range(4)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_timers_fire_as_a_plain_dict_says(changes: list[tuple[TimerKey, int | None]], now_ms: int) -> None:
    queue = TimerQueue()
    naive: dict[TimerKey, int] = {}
    for key, deadline_ms in changes:
        if deadline_ms is None:
            queue.apply([CancelTimer(key=key)])
            naive.pop(key, None)
        else:
            queue.apply([SetTimer(key=key, deadline_ms=deadline_ms)])
            naive[key] = deadline_ms
        assert queue.next_deadline_ms() == min(naive.values(), default=None)
        assert queue.deadline_ms(key) == naive.get(key)
    due = []
    while (fired := queue.pop_due(now_ms)) is not None:
        due.append(fired)
    expected = sorted((deadline_ms, key.member_id) for key, deadline_ms in naive.items() if deadline_ms <= now_ms)
    assert [key.member_id for key in due] == [member_id for _, member_id in expected]
    assert len(queue) == len(naive) - len(due)


def test_a_session_that_is_renewed_costs_no_memory() -> None:
    queue = TimerQueue()
    for deadline_ms in range(10_000):
        queue.apply([SetTimer(key=KEYS[0], deadline_ms=deadline_ms)])
    assert len(queue._heap) == 1
    assert queue.next_deadline_ms() == 9_999
