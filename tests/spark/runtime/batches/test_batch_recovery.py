"""After a micro-batch that failed: what is waited for, how long, and what ends the application."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError, StateError
from headrace.spark.runtime.batches.bad_record_search import BadRecord
from headrace.spark.runtime.batches.batch_recovery import (
    BROKER_PATIENCE_S,
    GUARDED_BATCHES,
    RETRIES,
    UNGUARDED_BATCHES,
    BatchRecovery,
)
from headrace.spark.runtime.batches.job_runner import BatchFailed
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.topology.nodes import CompiledSubtopology, TopicSource

PLAN = MicroBatchPlan(
    subtopology_id="flights",
    batch=BatchKey(incarnation="a", batch_id=7),
    member_id="m",
    member_epoch=1,
    bootstrap_servers="127.0.0.1:9092",
    state_dir="state",
    slots=(),
    topic_ids={},
)
AWAY = CannotConnect("broker-unreachable", "nobody answers")
FULL = BrokerError(
    "broker-refused", "the broker refused to write", "", kafka_name="NOT_ENOUGH_REPLICAS", retriable=True
)
OVERDUE = Fenced("producer-fenced", "the broker refused to write", "", kafka_name="INVALID_PRODUCER_EPOCH")
BAD = BrokerError("broker-refused", "the broker refused to write", "", kafka_name="INVALID_RECORD", retriable=False)
FORBIDDEN = BrokerError("not-authorized", "the broker refused to write", "", retriable=False)
GONE = BrokerError("topic-missing", "there is no topic counted", "", retriable=True)
NO_LOGIN = CannotConnect("authentication-failed", "the broker does not let us in")
KILLED = "Lost task 0.0 in stage 3.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recovery(clock):
    unused: Any = None  # no job runs where a stage has reported the reason, or without records
    flights = CompiledSubtopology(subtopology_id="flights", sources=(), branches=())
    return BatchRecovery(flights, unused, tasks={}, reopen=unused, tick=unused, now_s=clock)


def failed(*said, spark="Job aborted"):
    return BatchFailed(Exception(spark), list(said))


RECREATED = [
    StateError("topic-recreated", "the topic flights was deleted and created again"),
    BrokerError("topic-recreated", "the topic flights was deleted and created again", "", retriable=True),
]


@pytest.mark.parametrize("cause", RECREATED, ids=lambda error: type(error).__name__)
def test_tasks_of_a_topic_that_was_recreated_are_opened_anew(clock, cause):
    """Their positions belong to the deleted topic: the same plan again would meet the same refusal."""
    opened: list[Any] = []
    unused: Any = None
    flights = CompiledSubtopology(subtopology_id="flights", sources=(), branches=())
    recovery = BatchRecovery(flights, unused, tasks={}, reopen=opened.append, tick=unused, now_s=clock)
    recovery.recover(PLAN, failed(cause))
    assert opened == [[]]


def test_records_of_a_recreated_topic_are_searched_anew(clock):
    """As `test_driver_evaluation` shows on Spark, `search_ahead` passes over what was searched already."""
    searched: list[Any] = []

    def find_bad_records(plan, **_):
        searched.append(plan.tasks[0].ranges)
        return []

    jobs: Any = SimpleNamespace(find_bad_records=find_bad_records)
    unused: Any = None
    flights = CompiledSubtopology(subtopology_id="flights", sources=(), branches=())
    recovery = BatchRecovery(flights, jobs, tasks={}, reopen=unused, tick=unused, now_s=clock)

    def search_ahead(topic_id, end):
        found = InputRange(topic="flights", partition=0, start=0, end=end, topic_id=topic_id)
        slot = SlotPlan(slot=0, tasks=(TaskPlan(partition=0, ranges=(found,)),))
        recovery.search_ahead(replace(PLAN, slots=(slot,)))

    search_ahead("old", 100)
    search_ahead("old", 100)
    assert len(searched) == 1, "searched already"
    search_ahead("new", 80)
    assert [found.end for found in searched[1]] == [80]


def test_a_broker_that_is_away_is_waited_for(recovery, clock):
    for _ in range(100):
        clock.now += 60
        recovery.recover(PLAN, failed(AWAY))


@pytest.mark.parametrize("cause", [FULL, OVERDUE], ids=lambda error: error.kafka_name)
def test_a_broker_that_refuses_for_now_has_five_minutes(recovery, clock, cause):
    for _ in range(29):
        recovery.recover(PLAN, failed(cause))
        clock.now += 10
    recovery.succeeded()
    for _ in range(30):
        recovery.recover(PLAN, failed(cause))
        clock.now += 10
    assert clock.now > BROKER_PATIENCE_S
    for _ in range(RETRIES):
        recovery.recover(PLAN, failed(cause))
    with pytest.raises(HeadraceError) as raised:
        recovery.recover(PLAN, failed(cause))
    assert raised.value is cause


@pytest.mark.parametrize("cause", [BAD, GONE, NO_LOGIN], ids=lambda error: error.code)
def test_errors_that_waiting_cannot_fix_end_after_the_retries(recovery, cause):
    for _ in range(RETRIES):
        recovery.recover(PLAN, failed(cause))
    with pytest.raises(HeadraceError) as raised:
        recovery.recover(PLAN, failed(cause))
    assert raised.value is cause


def test_forbidden_writes_end_at_once(recovery):
    with pytest.raises(BrokerError, match="refused to write"):
        recovery.recover(PLAN, failed(FORBIDDEN))


def test_repeated_worker_deaths_end_the_batch_despite_broker_outages(recovery):
    for _ in range(RETRIES):
        recovery.recover(PLAN, failed(AWAY))
        recovery.recover(PLAN, failed(spark=KILLED))
    with pytest.raises(HeadraceError, match=r"could not process batch 7: .*Python worker exited"):
        recovery.recover(PLAN, failed(spark=KILLED))
    recovery.succeeded()
    recovery.recover(PLAN, failed(spark=KILLED))


CAST = "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018"
BAD_RECORD = BadRecord(task=0, topic="flights", partition=0, offset=5, reason=CAST)


class GuardingJobs:
    """Jobs of a plan that can be guarded, with a list of what a guarded micro-batch finds."""

    def __init__(self, found=()):
        self.found, self.expected, self.searches = list(found), [], 0

    def can_guard(self):
        return True

    def process_guarded(self, plan, *, bad_expected, tick):
        self.expected.append(bad_expected)
        return [], self.found.pop(0) if self.found else []

    def find_bad_records(self, plan, **_):
        self.searches += 1
        return []


def skipping_recovery(jobs, on_error="skip"):
    source = TopicSource(name="flights", topics=("flights",), value_format="json", schema_json="{}", on_error=on_error)
    flights = CompiledSubtopology(subtopology_id="flights", sources=(source,), branches=())
    unused: Any = None
    return BatchRecovery(flights, jobs, tasks={}, reopen=unused, tick=unused)


def of_records(start, end):
    found = InputRange(topic="flights", partition=0, start=start, end=end)
    return replace(PLAN, slots=(SlotPlan(slot=0, tasks=(TaskPlan(partition=0, ranges=(found,)),)),))


def test_micro_batches_are_guarded_while_there_are_bad_records():
    jobs = GuardingJobs([[BAD_RECORD], [], [BAD_RECORD]])
    recovery = skipping_recovery(jobs)
    assert not recovery.guards
    assert not recovery.searches_ahead
    assert recovery.recover(of_records(0, 9), failed(spark=CAST)), "the same records again, guarded"
    assert recovery.guards
    assert not recovery.searches_ahead
    assert not jobs.searches
    for _ in range(3 + GUARDED_BATCHES):
        assert recovery.guards
        recovery.process_guarded(of_records(0, 20))
    assert not recovery.guards
    assert jobs.expected[:2] == [True, False], "only where the failed records are processed again"


def test_a_failure_is_expected_only_of_all_the_records_that_failed():
    jobs = GuardingJobs()
    recovery = skipping_recovery(jobs)
    recovery.recover(of_records(10, 30), failed(spark=CAST))
    recovery.process_guarded(of_records(10, 20))
    assert jobs.expected == [False]


def test_a_guarded_micro_batch_that_fails_runs_in_the_plain_form():
    jobs = GuardingJobs()
    recovery = skipping_recovery(jobs)
    recovery.recover(of_records(0, 9), failed(spark=CAST))
    overflow = HeadraceError("arithmetic-overflow", "the sum has no room")
    assert recovery.recover(of_records(0, 9), failed(overflow))
    assert not recovery.guards
    assert recovery.searches_ahead
    recovery.search_ahead(of_records(0, 9))
    assert jobs.searches == 1
    for _ in range(UNGUARDED_BATCHES):
        assert not recovery.guards
        recovery.succeeded()
    assert recovery.guards


def test_a_broker_that_is_away_does_not_end_the_guard():
    recovery = skipping_recovery(GuardingJobs())
    recovery.recover(of_records(0, 9), failed(spark=CAST))
    recovery.recover(of_records(0, 9), failed(AWAY))
    recovery.recover(of_records(0, 9), failed(spark=KILLED))
    assert recovery.guards


def test_on_error_fail_uses_no_guarded_plan():
    jobs = GuardingJobs()
    recovery = skipping_recovery(jobs, on_error="fail")
    recovery.recover(of_records(0, 9), failed(spark=CAST))
    assert jobs.searches == 1
    assert not recovery.guards
