"""The runner's order of duty, seen with a shard and a log that write down what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from headrace.broker.coordinators.coordinator_runtime import AppendFailed, ShardRunner
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    CreatableTopic,
    Reply,
    SetTimer,
    TimerKey,
)
from headrace.protocol.error_codes import ErrorCode

RECORD = CoordinatorRecord(key="k", value="v")
TIMER = SetTimer(key=TimerKey(kind="session", group_id="g"), deadline_ms=5)


class RecordingLog:
    def __init__(self, events: list[object]) -> None:
        self.events = events
        self.refuse = False
        self.kept: list[CoordinatorRecord] = []

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        if self.refuse:
            raise AppendFailed("no room")
        self.kept += records
        self.events.append(("append", tuple(records), now_ms))

    def read_all(self) -> Iterator[CoordinatorRecord]:
        return iter(self.kept)


class RecordingShard:
    """A shard whose results are prepared, and which notes every change."""

    def __init__(self, events: list[object]) -> None:
        self.events = events
        self.due: list[CoordinatorResult] = []
        self.loaded = CoordinatorResult()

    def replay(self, record: CoordinatorRecord) -> None:
        self.events.append(("replay", record))

    def apply_timers(self, timers: tuple[SetTimer | CancelTimer, ...]) -> None:
        self.events.append(("timers", timers))

    def on_timers(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        while self.due:
            self.events.append(("fire", now_ms))
            yield self.due.pop(0)

    def on_metadata_image(self, image: MetadataImage, *, now_ms: int) -> Iterator[CoordinatorResult]:
        self.events.append(("image", image.version))
        yield from self.on_timers(now_ms=now_ms)

    def on_configuration(
        self, configuration: GroupCoordinatorConfiguration, *, now_ms: int
    ) -> Iterator[CoordinatorResult]:
        self.events.append(("configuration", configuration.streams_max_size))
        yield from self.on_timers(now_ms=now_ms)

    def on_loaded(self, *, now_ms: int) -> CoordinatorResult:
        self.events.append(("loaded", now_ms))
        return self.loaded

    def next_deadline_ms(self) -> int | None:
        return 5 if self.due else None


@pytest.fixture
def events() -> list[object]:
    return []


@pytest.fixture
def log(events: list[object]) -> RecordingLog:
    return RecordingLog(events)


@pytest.fixture
def shard(events: list[object]) -> RecordingShard:
    return RecordingShard(events)


@pytest.fixture
def runner(shard: RecordingShard, log: RecordingLog) -> ShardRunner:
    return ShardRunner(shard, log)


def test_append_then_replay_then_timers_then_replies(runner: ShardRunner, events: list[object]) -> None:
    result = CoordinatorResult(
        records=(RECORD, RECORD),
        timers=(TIMER,),
        replies=(Reply(token=1, response="answer"),),
        topics_to_create=(CreatableTopic(name="t", partitions=1, replication_factor=-1),),
    )
    outcome = runner.run(lambda: result, now_ms=7)
    assert events == [("append", (RECORD, RECORD), 7), ("replay", RECORD), ("replay", RECORD), ("timers", (TIMER,))]
    assert outcome.replies == result.replies
    assert outcome.topics_to_create == result.topics_to_create
    assert outcome.appended is True


def test_a_result_without_records_appends_nothing(runner: ShardRunner, events: list[object]) -> None:
    outcome = runner.run(lambda: CoordinatorResult(replies=(Reply(token=1, response="same"),)), now_ms=7)
    assert events == []
    assert outcome.appended is False


def test_a_failed_append_leaves_memory_untouched(runner: ShardRunner, log: RecordingLog, events: list[object]) -> None:
    log.refuse = True
    result = CoordinatorResult(records=(RECORD,), timers=(TIMER,), replies=(Reply(token=1, response="never"),))
    with pytest.raises(CoordinatorError) as raised:
        runner.run(lambda: result, now_ms=7)
    assert raised.value.code is ErrorCode.coordinator_not_available
    assert "no room" in raised.value.message
    assert events == []


def test_a_refusal_of_the_rule_passes_through(runner: ShardRunner, events: list[object]) -> None:
    def refuse() -> CoordinatorResult:
        raise CoordinatorError(ErrorCode.group_id_not_found, "Group g not found.")

    with pytest.raises(CoordinatorError) as raised:
        runner.run(refuse, now_ms=7)
    assert raised.value.code is ErrorCode.group_id_not_found
    assert events == []


def test_loading_replays_everything_and_then_arms(
    runner: ShardRunner, log: RecordingLog, shard: RecordingShard, events: list[object]
) -> None:
    log.kept = [RECORD, RECORD]
    shard.loaded = CoordinatorResult(timers=(TIMER,))
    runner.load(now_ms=9)
    assert events == [("replay", RECORD), ("replay", RECORD), ("loaded", 9), ("timers", (TIMER,))]


def test_each_timer_takes_effect_before_the_next_is_asked(
    runner: ShardRunner, shard: RecordingShard, events: list[object]
) -> None:
    shard.due = [CoordinatorResult(records=(RECORD,)), CoordinatorResult(timers=(TIMER,))]
    assert len(list(runner.fire_timers(now_ms=3))) == 2
    assert events == [("fire", 3), ("append", (RECORD,), 3), ("replay", RECORD), ("fire", 3), ("timers", (TIMER,))]


def test_failed_timer_is_rearmed_and_the_newest_image_applied(
    runner: ShardRunner, log: RecordingLog, shard: RecordingShard, events: list[object]
) -> None:
    log.refuse = True
    shard.due = [CoordinatorResult(records=(RECORD,))]
    with pytest.raises(AppendFailed):
        list(runner.fire_timers(now_ms=3))
    log.refuse = False
    shard.loaded = CoordinatorResult(timers=(TIMER,))
    list(runner.catch_up(MetadataImage(version=8), now_ms=4))
    assert events == [("fire", 3), ("loaded", 4), ("timers", (TIMER,)), ("image", 8)]


def test_new_settings_take_effect_one_result_at_a_time(
    runner: ShardRunner, shard: RecordingShard, events: list[object]
) -> None:
    shard.due = [CoordinatorResult(records=(RECORD,)), CoordinatorResult(timers=(TIMER,))]
    configuration = GroupCoordinatorConfiguration(streams_max_size=6)
    assert len(list(runner.push_configuration(configuration, now_ms=3))) == 2
    assert events == [
        ("configuration", 6),
        ("fire", 3),
        ("append", (RECORD,), 3),
        ("replay", RECORD),
        ("fire", 3),
        ("timers", (TIMER,)),
    ]
