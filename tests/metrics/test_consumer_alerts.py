"""The packaged alert rules: each fires and is silent where it should; a storm sets them off, a calm restart does not.

Storm and restart are worlds of the simulator: real memberships, the real coordinator, virtual time.
"""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from tests.metrics.alert_rules import Prometheus, read_rules

import headrace.metrics
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.parallel.stats import PipelineStats, pipeline_families
from headrace.metrics.prometheus_text import prometheus_text
from headrace.simulator.consumer_world import ConsumerWorld
from headrace.simulator.simulated_consumer import ConsumerProfile, SimulatedConsumer

RULES = read_rules(files(headrace.metrics).joinpath("consumer_alerts.yml").read_text())
SCRAPE_MS = 15_000
MINUTE_MS = 60_000


def test_every_alert_names_existing_metrics_and_a_remedy() -> None:
    lags = {TopicPartition("t", 0): 5}
    known = {family.name for family in ConsumerMetrics("c").families(lags, 1)}
    known |= {family.name for family in pipeline_families(PipelineStats(), "c")}
    assert len(RULES) == 11
    for rule in RULES:
        assert set(rule.metrics) <= known, rule.name
        assert rule.annotations["summary"].endswith(".")
        assert rule.annotations["fix"].endswith(".")
        assert rule.labels["severity"] in ("warning", "critical")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_fires_beyond_its_bound_and_not_before(rule: object) -> None:
    quiet, loud = Prometheus([rule]), Prometheus([rule])  # type: ignore[list-item]
    for minute in range(31):
        quiet.scrape(minute * 60, "pod", page_of(minute, trouble=False))
        loud.scrape(minute * 60, "pod", page_of(minute, trouble=True))
        quiet.evaluate(minute * 60)
        loud.evaluate(minute * 60)
    assert not quiet.fired
    assert len(loud.fired) == 1


def page_of(minute: int, *, trouble: bool) -> str:
    """All metrics of the rules at once, either all well or all bad."""
    coordinator = "kafka_consumer_consumer_coordinator_metrics"
    values = {
        f"{coordinator}_rebalance_total": minute * 2 if trouble else minute // 4,
        f"{coordinator}_rebalance_latency_max": 31_000 if trouble else 29_000,
        f"{coordinator}_failed_rebalance_total": minute if trouble else minute // 10,
        f"{coordinator}_last_heartbeat_seconds_ago": 16 if trouble else 14,
        "kafka_consumer_consumer_metrics_last_poll_seconds_ago": 61 if trouble else 59,
        "kafka_consumer_consumer_metrics_poll_idle_ratio_avg": 0.05,
        "kafka_consumer_consumer_fetch_manager_metrics_records_lag_max": 100_001 if trouble else 9_000,
        "kafka_consumer_consumer_fetch_manager_metrics_records_consumed_total": 500 if trouble else 500 * minute,
        "headrace_parallel_consumer_oldest_in_flight_seconds": 301 if trouble else 299,
        "headrace_parallel_consumer_dead_letters_total": minute if trouble else 7,
        "headrace_parallel_consumer_paused_partitions": 1 if trouble or minute % 2 else 0,
    }
    return "".join(f'{name}{{client_id="c"}} {value}\n' for name, value in values.items())


def test_a_consumption_cliff_is_reported_and_an_idle_consumer_is_not() -> None:
    """Records stop while others wait, once because polls stop and once because a rebalance took every partition."""
    now_s = 0.0
    partition = TopicPartition("flights", 0)
    hanging, revoked, idle = (ConsumerMetrics(name, clock=lambda: now_s) for name in ("hanging", "revoked", "idle"))
    prometheus = Prometheus(RULES)
    for tick in range(40):
        now_s = tick * SCRAPE_MS / 1000
        runs = tick < 20
        for each in (hanging, revoked, idle):
            each.records_returned(100 if runs else 0)
        lags = {hanging: {partition: 700}, revoked: {partition: 700} if runs else {}, idle: {partition: 0}}
        for each, lag in lags.items():
            prometheus.scrape(now_s, "pod", prometheus_text(each.families(lag, len(lag))))
        prometheus.evaluate(now_s)
        assert not (runs and prometheus.fired)
    cliffs = prometheus.fired["KafkaConsumerConsumptionCliff"]
    assert {dict(labels)["client_id"] for labels in cliffs} == {"hanging", "revoked"}


RULE = """
groups:
  - name: g
    rules:
      - alert: A
        expr: increase(n[1m]) > 3
        for: 30s
        labels:
          severity: "x"
        annotations:
          summary: s
"""


def test_the_evaluator_handles_resets_ranges_and_pending_alerts() -> None:
    prometheus = Prometheus(read_rules(RULE))
    for at, value in ((0, 100), (15, 1), (30, 2), (45, 4), (60, 5)):  # a restart, then five more within a minute
        prometheus.scrape(at, "pod", f"n {value}\n")
        prometheus.evaluate(at)
        assert not prometheus.fired
    prometheus.evaluate(75)
    assert prometheus.fired == {"A": {(("instance", "pod"),)}}
    with pytest.raises(AssertionError, match="beyond the subset"):
        Prometheus(read_rules(RULE.replace("increase(n[1m]) > 3", "rate(n[1m]) / 2 > 3"))).evaluate(0)


class WatchedWorld(ConsumerWorld):
    """A classic group whose members' metrics are scraped, in virtual time."""

    def __init__(self) -> None:
        super().__init__(7, "classic")
        self.conditions.calm()
        self.reads_alike, self.join_version = True, 9
        self.strategies = (("cooperative-sticky",),)
        self.profile = ConsumerProfile(polling_ms=(800, 1_500), max_poll_interval_ms=5_000)
        self.prometheus = Prometheus(RULES)
        self.metrics: dict[str, ConsumerMetrics] = {}

    def start_member(self, name: str, instance_id: str | None) -> SimulatedConsumer:
        consumer = self._start(name, instance_id, self.subscription())
        watched = self.metrics[name] = ConsumerMetrics(name, clock=lambda: self.events.now_ms / 1000)
        membership = consumer.membership
        for call in ("poll", "on_response", "acknowledge"):  # where the runner looks
            inner = getattr(membership, call)

            def looked(*arguments: object, inner: object = inner) -> object:
                found = inner(*arguments)  # type: ignore[operator]
                watched.member_is(membership.state)
                return found

            setattr(membership, call, looked)
        return consumer

    def run(self, duration_ms: int) -> None:
        end_ms = self.events.now_ms + duration_ms
        while self.events.now_ms < end_ms:
            self.advance(SCRAPE_MS)
            now_s = self.events.now_ms / 1000
            for consumer in self.running():
                watched = self.metrics[consumer.name]
                watched.poll_begins()
                watched.poll_ended()
                if consumer.membership.identity.is_member:
                    watched.heartbeat_answered(1.0)
                page = prometheus_text(watched.families({}, len(consumer.open)))
                self.prometheus.scrape(now_s, re.sub(r"-\d+$", "", consumer.name), page)
            self.prometheus.evaluate(now_s)


def test_a_rebalance_storm_raises_the_alert() -> None:
    world = WatchedWorld()
    for number in range(4):
        world.start_member(f"pod{number}-0", None)
    world.run(MINUTE_MS)
    assert not world.prometheus.fired
    for restart in range(1, 10):  # one pod in a crash loop
        victim = next(each for each in world.running() if each.name.startswith("pod3"))
        victim.kill()
        world.advance(2_000)
        world.start_member(f"pod3-{restart}", None)
        world.run(40_000)
    told = world.prometheus.fired["KafkaConsumerRebalanceStorm"]
    assert {dict(labels)["instance"] for labels in told} >= {"pod0", "pod1", "pod2"}


def test_a_rolling_restart_with_static_members_raises_no_alert() -> None:
    world = WatchedWorld()
    for number in range(4):
        world.start_member(f"pod{number}-0", f"pod{number}")
    world.run(MINUTE_MS)
    before = {name: watched.values()["rebalance-total"] for name, watched in world.metrics.items()}
    for round_ in range(1, 3):
        for number in range(4):
            victim = next(each for each in world.running() if each.name.startswith(f"pod{number}-"))
            others = [each for each in world.running() if each is not victim]
            totals = {each.name: world.metrics[each.name].values()["rebalance-total"] for each in others}
            victim.kill()
            world.advance(2_000)
            world.start_member(f"pod{number}-{round_}", f"pod{number}")
            world.run(40_000)
            after = {each.name: world.metrics[each.name].values()["rebalance-total"] for each in others}
            assert after == totals, "nobody else heard of it"
    assert all(before.values())
    assert world.prometheus.fired == {}
