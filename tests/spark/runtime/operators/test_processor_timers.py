"""Timers and values that expire, against plain Python: any order of calls, undone batches, restores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row
from tests.longer import LONG
from tests.spark.runtime.processors import INT_N, Scripted, Task, transform_of

from headrace.errors import UserCodeError
from headrace.spark.runtime.operators import processor_state
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark

KEYS = ["", "a", "b", "é", "x" * 300]


class Alarms(StatefulProcessor):
    """Registers, deletes and lists timers as its rows say; a timer that fires may register another one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", INT_N)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            does, _, time = row.does.partition(" ")
            if does == "register":
                self.handle.registerTimer(int(time))
            elif does == "delete":
                self.handle.deleteTimer(int(time))
            else:
                yield Row(key=key[0], found=f"has {sorted(self.handle.listTimers())}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        fired = (self.fired.get() or (0,))[0] + 1
        self.fired.update((fired,))
        yield Row(key=key[0], found=f"{at} is number {fired}")
        if at % 10 == 5:  # ten later; at once if that has passed as well, in the next micro-batch
            self.handle.registerTimer(at + 10)
        if at % 10 == 3:
            self.handle.deleteTimer(at + 1)


class Reference:
    """The same with a set of timers for each key."""

    def __init__(self) -> None:
        self.timers: dict[str | None, set[int]] = {}
        self.fired: dict[str | None, int] = {}

    def run(self, rows: Sequence[tuple[str | None, str]], now: int) -> list[tuple[Any, ...]]:
        made: list[tuple[Any, ...]] = []
        for key in sorted({key for key, _ in rows}, key=lambda key: (key is not None, (key or "").encode())):
            timers = self.timers.setdefault(key, set())
            for _, does in (row for row in rows if row[0] == key):
                word, _, time = does.partition(" ")
                if word == "register":
                    timers.add(int(time))
                elif word == "delete":
                    timers.discard(int(time))
                else:
                    made.append((key, f"has {sorted(timers)}"))
        due = [(at, key) for key, times in self.timers.items() for at in times if at <= now]
        for at, key in sorted(due, key=lambda pair: (pair[0], short(pair[1]))):
            if at not in self.timers[key]:
                continue
            self.fired[key] = self.fired.get(key, 0) + 1
            made.append((key, f"{at} is number {self.fired[key]}"))
            if at % 10 == 5:
                self.timers[key].add(at + 10)
            if at % 10 == 3:
                self.timers[key].discard(at + 1)
            self.timers[key].discard(at)
        return made


def short(key: str | None) -> bytes:
    """The order of the store's keys: null is FF, long keys are digests behind FE."""
    if key is None:
        return b"\xff"
    return key.encode() if len(key) < 200 else b"\xfe"


TIME = st.integers(-20, 60)
DOES = st.one_of(*[TIME.map(f"{does} {{}}".format) for does in ("register", "register", "delete")], st.just("list"))
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(KEYS)), DOES), max_size=8)
STEPS = st.lists(
    st.tuples(ROWS, st.integers(0, 12), st.sampled_from(["commit", "commit", "undo", "restore"])), max_size=14
)


def at_processing_time(now: int, operator: Any) -> None:
    operator.on_processing_time(now)


def at_watermark(now: int, operator: Any) -> None:
    """The slower one of two upstream tasks is at `now`."""
    for task, ahead in enumerate((0, 17_000)):
        time_us = now * 1000 + ahead + 999  # less than a millisecond does not count
        operator.on_watermarks(3, [UpstreamWatermark(source="in", task=task, tasks=2, time_us=time_us, sent_ms=0)], {})


@pytest.mark.parametrize("mode", ["processingTime", "eventTime"])
@settings(max_examples=800 if LONG else 40, deadline=None)
@given(steps=STEPS, begin=st.integers(-30, 10))
def test_timers_fire_once_in_the_order_of_time(
    mode: Any, steps: list[tuple[list[tuple[str | None, str]], int, str]], begin: int
) -> None:
    transform = transform_of(Alarms(), mode, watermark_sources=("in",) if mode == "eventTime" else ())
    prepare = at_processing_time if mode == "processingTime" else at_watermark
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor_state, "AHEAD", 2)
        task, expected, now = Task(Path(directory), transform), Reference(), begin
        try:
            for rows, later, outcome in steps:
                if outcome == "restore":
                    task.restore()
                commits = outcome != "undo"
                made = task.run(rows, commits=commits, prepare=partial(prepare, now + later))
                if commits:
                    now += later
                    assert made == expected.run(rows, now)
            everything = [(key, "list") for key in [None, *KEYS]]
            task.restore()
            assert task.run(everything, prepare=partial(prepare, now)) == expected.run(everything, now)
        finally:
            task.store.close()


def test_no_timer_fires_before_every_upstream_task_has_sent_a_watermark(tmp_path: Path) -> None:
    task = Task(tmp_path, transform_of(Alarms(), "eventTime", watermark_sources=("in",)))
    assert task.run([("a", "register 5")]) == []

    def of_task(number: int, time_us: int, operator: Any) -> None:
        one = UpstreamWatermark(source="in", task=number, tasks=2, time_us=time_us, sent_ms=0)
        operator.on_watermarks(3, [one], {})

    assert task.run([], prepare=partial(of_task, 0, 9_000)) == []
    assert task.run([], prepare=partial(of_task, 1, 4_999)) == []
    task.restore()
    assert task.run([], prepare=partial(of_task, 1, 5_000)) == [("a", "5 is number 1")]
    # Its key has no timer any more but the one that it has registered, and the clock of two tasks.
    assert task.run([("a", "list"), ("a", "delete 15")]) == [("a", "has [15]")]
    assert task.store.count() == 3


def test_the_processor_sees_the_times_of_its_mode(tmp_path: Path) -> None:
    class Tells(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            values = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
            yield Row(key=key[0], found=repr(values))

    def both(operator: Any) -> None:
        operator.on_processing_time(77)
        if operator._operator.transform.watermark_sources:
            at_watermark(5, operator)

    for mode, sources, values in [("processingTime", (), (77, -1)), ("eventTime", ("in",), (77, 5))]:
        task = Task(tmp_path / mode, transform_of(Tells(), mode, watermark_sources=sources))  # type: ignore[arg-type]
        assert task.run([("a", "")], prepare=both) == [("a", repr(values))]


class Expiring(Scripted):
    ttl_ms = 10


def test_values_expire_by_the_time_of_the_micro_batch(tmp_path: Path) -> None:
    task = Task(tmp_path, transform_of(Expiring(), "processingTime"))

    def run(now: int, *does: str, key: str = "a") -> list[Any]:
        return [found for _, found in task.run([(key, one) for one in does], prepare=partial(at_processing_time, now))]

    nothing = repr(((False, False, False), None, [], []))
    run(100, "set 1", "append 1", "map x 1")
    run(105, "append 2", "map y 2")
    [seen] = run(109, "show")
    assert seen == repr(((True, True, True), (1, "11"), [(1,), (2,)], [(("x",), (1,)), (("y",), (2,))]))
    # An update begins the time anew; of lists and maps each element has its own.
    run(109, "set 3")
    [seen] = run(110, "show")
    assert seen == repr(((True, True, True), (3, "33"), [(2,)], [(("y",), (2,))]))
    [entry] = run(110, "entry x")
    assert entry == repr((None, False))
    task.restore()
    assert run(119, "show") == [nothing]
    # A micro-batch of another key deletes expired values.
    run(119, "show", key="b")
    assert task.store.count() == 0
    # A list that has expired begins anew, and none of its old elements comes back.
    run(120, "append 7")
    [seen] = run(121, "show")
    assert "[(7,)]" in seen
    run(122, "put 8 9", "clear map", "clear value")
    run(131, "append 1")
    [seen] = run(132, "show")
    assert seen == repr(((False, True, False), None, [(1,)], []))
    run(200)
    assert task.store.count() == 0


TTL_DOES = st.sampled_from(
    [f"clear {what}" for what in ("value", "list", "map")]
    + ["show", "set 1", "append 1", "append 2", "put 3 4", "put", "map a 1", "map b 2", "remove a", "entry a"]
)
TTL_STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(["a", "b"]), TTL_DOES), max_size=5),
        st.integers(-2, 8),
        st.sampled_from(["commit", "undo", "restore"]),
    ),
    max_size=16,
)


class ExpiringReference:
    """`Scripted` with values that carry the time until which they are there."""

    def __init__(self) -> None:
        self.value: tuple[tuple[Any, ...], int] | None = None
        self.elements: list[tuple[tuple[int], int]] = []
        self.entries: dict[tuple[str], tuple[tuple[int], int]] = {}

    def expire(self, now: int) -> None:
        if self.value is not None and self.value[1] <= now:
            self.value = None
        self.elements = [one for one in self.elements if one[1] > now]
        self.entries = {key: one for key, one in self.entries.items() if one[1] > now}

    def do(self, now: int, does: str, *arguments: str) -> str | None:
        until = now + 10
        self.expire(now)
        if does == "show":
            exists = (self.value is not None, bool(self.elements), bool(self.entries))
            entries = sorted((key, value) for key, (value, _) in self.entries.items())
            return repr((exists, self.value and self.value[0], [one for one, _ in self.elements], entries))
        if does == "entry":
            found = self.entries.get((arguments[0],), (None, 0))[0]
            return repr((found and Row(n=found[0]), found is not None))
        if does == "set":
            self.value = ((int(arguments[0]), arguments[0] * 2), until)
        elif does in ("append", "put"):
            added = [((int(one),), until) for one in arguments]
            self.elements = [*([] if does == "put" else self.elements), *added]
        elif does == "map":
            self.entries[(arguments[0],)] = ((int(arguments[1]),), until)
        elif does == "remove":
            self.entries.pop((arguments[0],), None)
        else:
            cleared: tuple[str, Any] = {"value": ("value", None), "list": ("elements", []), "map": ("entries", {})}[
                arguments[0]
            ]
            setattr(self, *cleared)
        return None


@settings(max_examples=1000 if LONG else 40, deadline=None)
@given(steps=TTL_STEPS)
def test_expiry_does_not_depend_on_undone_batches_and_restores(
    steps: list[tuple[list[tuple[str, str]], int, str]],
) -> None:
    """Also when the clock goes back, as it may when a task moves."""
    with tempfile.TemporaryDirectory() as directory:
        task, now = Task(Path(directory), transform_of(Expiring(), "processingTime")), 100
        kept: dict[str, ExpiringReference] = {}
        try:
            for rows, later, outcome in steps:
                if outcome == "restore":
                    task.restore()
                made = task.run(rows, commits=outcome != "undo", prepare=partial(at_processing_time, now + later))
                if outcome == "undo":
                    continue
                now += later
                for state in kept.values():
                    state.expire(now)
                expected = []
                for key in sorted({key for key, _ in rows}):
                    for _, does in (row for row in rows if row[0] == key):
                        found = kept.setdefault(key, ExpiringReference()).do(now, *does.split(" "))
                        expected += [(key, found)] if found is not None else []
                assert made == expected
            task.run([], prepare=partial(at_processing_time, now + 1000))
            assert task.store.count() == 0
        finally:
            task.store.close()


def test_a_timer_outside_of_64_bits_is_refused(tmp_path: Path) -> None:
    task = Task(tmp_path, transform_of(Alarms(), "processingTime"))
    with pytest.raises(UserCodeError, match="expected a number of 64 bits"):
        task.run([("a", f"register {1 << 63}")], prepare=partial(at_processing_time, 0))
