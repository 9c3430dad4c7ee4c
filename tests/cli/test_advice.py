"""What the rules say: of ten configurations as they are published, of each situation, and of advice that was taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given as with_drawn
from hypothesis import strategies as st

from headrace.cli.advice.advise import RULES, TEMPLATES, Advice, advise, template
from headrace.cli.advice.given_configuration import Client, GivenConfiguration, Version, client_version
from headrace.cli.advice.situation import Situation, duration_ms, in_words, size_bytes
from headrace.cli.commands.explain import rule_names, rule_page

_STRATEGY = "partition.assignment.strategy"
JAVA = "org.apache.kafka.clients.consumer."


@dataclass(frozen=True, kw_only=True)
class Published:
    """A configuration from public documentation, its values retold, with a situation that fits its source."""

    source: str
    values: dict[str, str]
    situation: Situation
    wanted: set[tuple[str, str]]
    client: Client = "java"
    changes: dict[str, str | None] = field(default_factory=dict)


TEN = (
    Published(
        source="a cloud's advice for a Kafka-compatible hub: 30 s, 3 s, five minutes",
        values={"session.timeout.ms": "30000", "heartbeat.interval.ms": "3000", "max.poll.interval.ms": "300000"},
        situation=Situation(kind="classic", worst_batch_ms=20_000),
        wanted={("eager-assignor", "half way"), ("first-position", "skips")},
        changes={"partition.assignment.strategy": JAVA + "CooperativeStickyAssignor"},
    ),
    Published(
        source="another cloud's client guide: a session of 10 s, a third of it, five minutes",
        values={"session.timeout.ms": "10000", "heartbeat.interval.ms": "3000", "max.poll.interval.ms": "300000"},
        situation=Situation(kind="classic", longest_pause_ms=6_000),
        wanted={("session-timeout", "short"), ("eager-assignor", "half way"), ("first-position", "skips")},
        changes={"session.timeout.ms": "60000"},
    ),
    Published(
        source="a question-and-answer site: a low session, 'ten seconds for instance', a third of it for heartbeats",
        values={
            "session.timeout.ms": "10000",
            "heartbeat.interval.ms": "3333",
            "max.poll.interval.ms": "600000",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": JAVA + "RangeAssignor",
        },
        situation=Situation(kind="classic", worst_batch_ms=120_000),
        wanted={("session-timeout", "short"), ("eager-assignor", "eager")},
        changes={
            "partition.assignment.strategy": f"{JAVA}RangeAssignor,{JAVA}CooperativeStickyAssignor",
            "session.timeout.ms": "45000",
        },
    ),
    Published(
        source="a consulting firm's reference: static members, 45 s, the pod's name written out",
        values={
            "group.instance.id": "order-consumer-pod-1",
            "session.timeout.ms": "45000",
            "heartbeat.interval.ms": "3000",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": JAVA + "CooperativeStickyAssignor",
        },
        situation=Situation(kind="classic", deploy="kept-names", restart_ms=90_000),
        wanted={("static-member", "fixed"), ("session-timeout", "short")},
        changes={"group.instance.id": "${HOSTNAME}", "session.timeout.ms": "180000"},
    ),
    Published(
        source="the seed's steady configuration: 60 s, 15 s, ten minutes, cooperative",
        values={
            "session.timeout.ms": "60000",
            "heartbeat.interval.ms": "15000",
            "max.poll.interval.ms": "600000",
            "partition.assignment.strategy": JAVA + "CooperativeStickyAssignor",
            "auto.offset.reset": "earliest",
        },
        situation=Situation(kind="classic", worst_batch_ms=240_000, longest_pause_ms=10_000),
        wanted=set(),
    ),
    Published(
        source="the seed's Java example: a queue and ten workers behind the poll, all else as it comes",
        values={"group.id": "orders", "key.deserializer": "StringDeserializer"},
        situation=Situation(kind="classic", hands_over=True),
        wanted={("auto-commit", "risk"), ("eager-assignor", "half way"), ("first-position", "skips")},
        changes={"enable.auto.commit": "false"},
    ),
    Published(
        source="a Python quick start of librdkafka: servers, a group, earliest",
        values={"bootstrap.servers": "localhost:9092", "group.id": "mygroup", "auto.offset.reset": "earliest"},
        situation=Situation(kind="classic"),
        client="librdkafka",
        wanted={("eager-assignor", "eager"), ("auto-commit", "risk")},
        changes={"partition.assignment.strategy": "cooperative-sticky", "enable.auto.offset.store": "false"},
    ),
    Published(
        source="a librdkafka service with a short poll interval, both kinds of assignors listed",
        values={
            "session.timeout.ms": "45000",
            "max.poll.interval.ms": "30000",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky,range",
        },
        situation=Situation(kind="classic", worst_batch_ms=10_000),
        client="librdkafka",
        wanted={("eager-assignor", "refused"), ("max-poll-interval", "refused")},
        changes={"max.poll.interval.ms": "45000"},
    ),
    Published(
        source="a consumer moved to the new protocol with its old file",
        values={
            "group.protocol": "consumer",
            "session.timeout.ms": "45000",
            "heartbeat.interval.ms": "3000",
            "partition.assignment.strategy": JAVA + "CooperativeStickyAssignor",
            "auto.offset.reset": "earliest",
        },
        situation=Situation(kind="consumer"),
        wanted={("set-on-the-broker", "refused")},
        changes={
            "session.timeout.ms": None,
            "heartbeat.interval.ms": None,
            "partition.assignment.strategy": None,
        },
    ),
    Published(
        source="a Kafka Streams application moved to streams groups, with its old tuning and much state",
        values={
            "application.id": "enrichment",
            "group.protocol": "streams",
            "num.standby.replicas": "1",
            "session.timeout.ms": "60000",
            "group.instance.id": "enrichment-0",
        },
        situation=Situation(kind="streams", state_bytes=40_000_000_000, deploy="kept-names"),
        wanted={
            ("set-on-the-broker", "unused"),
            ("static-member", "unused"),
            ("standby-replicas", "consider"),
        },
        changes={"num.standby.replicas": None, "session.timeout.ms": None},
    ),
)


def asked(values: dict[str, str], client: Client, situation: Situation) -> Advice:
    return advise(GivenConfiguration(client=client, values=values), situation)


@pytest.mark.parametrize("published", TEN, ids=[published.source for published in TEN])
def test_ten_published_configurations(published: Published) -> None:
    advice = asked(published.values, published.client, published.situation)
    assert {(finding.rule, finding.word) for finding in advice.findings} == published.wanted
    changes = {setting: value for finding in advice.findings for setting, value in finding.changes.items()}
    assert changes.items() >= published.changes.items()


VALUES = {
    "session.timeout.ms": st.sampled_from(["1", "5999", "6000", "10000", "30000", "45000", "1900000", "soon"]),
    "heartbeat.interval.ms": st.sampled_from(["1", "3000", "15000", "50000", ""]),
    "max.poll.interval.ms": st.sampled_from(["1", "30000", "300000", "600000", "5m"]),
    "group.instance.id": st.sampled_from(["pod-1", "${HOSTNAME}"]),
    "partition.assignment.strategy": st.sampled_from(["cooperative-sticky", JAVA + "CooperativeStickyAssignor"]),
    "enable.auto.commit": st.sampled_from(["true", "false"]),
    "enable.auto.offset.store": st.sampled_from(["true", "false"]),
    "group.protocol": st.sampled_from(["classic", "consumer", "streams", "CONSUMER"]),
    "num.standby.replicas": st.sampled_from(["0", "1", "many"]),
    "auto.offset.reset": st.sampled_from(["earliest", "none"]),
    "session.time.out.ms": st.just("10000"),
}
MILLISECONDS = st.none() | st.integers(min_value=1, max_value=4_000_000)
CONFIGURATIONS = st.fixed_dictionaries({}, optional=VALUES)
SITUATIONS = st.builds(
    Situation,
    kind=st.sampled_from(["classic", "consumer", "streams"]),
    worst_batch_ms=MILLISECONDS,
    longest_pause_ms=st.none() | st.integers(min_value=1, max_value=800_000),
    restart_ms=st.none() | st.integers(min_value=1, max_value=1_000_000),
    deploy=st.sampled_from([None, "kept-names", "changing-names"]),
    hands_over=st.booleans(),
    state_bytes=st.none() | st.just(10**10),
)
DECIDED_BY_PEOPLE = {"first-position", "standby-replicas"}


@with_drawn(
    values=CONFIGURATIONS,
    client=st.sampled_from(["java", "librdkafka"]),
    version=st.sampled_from([None, (1, 5), (2, 3), (2, 12), (3, 9), (4, 2)]),
    situation=SITUATIONS,
)
def test_advice_that_is_taken_has_no_further_advice(
    values: dict[str, str], client: Client, version: Version | None, situation: Situation
) -> None:
    """But for the second of two rolling restarts, which is told after the first."""
    once = advise(GivenConfiguration(client=client, values=values, version=version), situation)
    twice = advise(once.corrected, situation)
    left = {finding.rule for finding in twice.findings if finding.word != "half way"}
    assert left <= DECIDED_BY_PEOPLE | ({"static-member"} if situation.kind == "streams" else set())


@with_drawn(values=CONFIGURATIONS, client=st.sampled_from(["java", "librdkafka"]), situation=SITUATIONS)
def test_proposed_configurations_are_valid(values: dict[str, str], client: Client, situation: Situation) -> None:
    corrected = asked(values, client, situation).corrected
    if situation.kind == "classic":
        session, heartbeat = corrected.integer("session.timeout.ms"), corrected.integer("heartbeat.interval.ms")
        assert session is not None
        assert heartbeat is not None
        assert heartbeat * 3 <= session
        assert 6_000 <= session <= 1_800_000
    else:
        assert not {"session.timeout.ms", "heartbeat.interval.ms"} & corrected.values.keys()
    interval = corrected.integer("max.poll.interval.ms")
    assert interval is not None
    assert situation.kind == "streams" or interval > (situation.worst_batch_ms or 0)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_templates_have_no_findings(name: str, client: Client) -> None:
    found = TEMPLATES[name]
    advice = advise(template(name, client), found.situation)
    assert advice.findings == ()
    assert advice.stage == found.stage
    # A user who knows nothing but the file gets the same stage.
    assert advise(template(name, client), Situation(kind=found.situation.kind)).stage == found.stage


@pytest.mark.parametrize("name", [name for name, each in TEMPLATES.items() if each.situation.kind == "classic"])
def test_a_template_keeps_the_heartbeat_rule_of_the_page(name: str) -> None:
    given = template(name, "java")
    session, heartbeat = given.integer("session.timeout.ms"), given.integer("heartbeat.interval.ms")
    assert session is not None
    assert heartbeat is not None
    assert session / 4 <= heartbeat <= session / 3


def test_every_setting_that_streams_groups_ignore_is_reported() -> None:
    seed = [
        "acceptable.recovery.lag",
        "max.warmup.replicas",
        "num.standby.replicas",
        "probing.rebalance.interval.ms",
        "rack.aware.assignment.tags",
        "rack.aware.assignment.strategy",
        "rack.aware.assignment.traffic_cost",
        "rack.aware.assignment.non_overlap_cost",
        "task.assignor.class",
        "session.timeout.ms",
        "heartbeat.interval.ms",
    ]
    values = {"group.protocol": "streams", **dict.fromkeys(seed, "10000")}
    advice = asked(values, "java", Situation(kind="streams"))
    reported = {finding.setting: finding.reason for finding in advice.findings if finding.rule == "set-on-the-broker"}
    assert reported.keys() == set(seed)
    assert reported["task.assignor.class"].endswith("streams.assignor.name.")
    assert "nothing: the group coordinator assigns tasks by itself" in reported["max.warmup.replicas"]


def test_the_reason_for_a_longer_session_is_its_largest_cause() -> None:
    values = {"session.timeout.ms": "100000", "group.instance.id": "${HOSTNAME}"}
    restart = Situation(kind="classic", longest_pause_ms=8_000, restart_ms=90_000)
    (found,) = [each for each in asked(values, "java", restart).findings if each.rule == "session-timeout"]
    assert found.reason.startswith("A restart of 90 s ")
    pause = Situation(kind="classic", longest_pause_ms=90_000, restart_ms=10_000)
    (found,) = [each for each in asked(values, "java", pause).findings if each.rule == "session-timeout"]
    assert found.reason.startswith("A pause of 90 s ")


@pytest.mark.parametrize(("pause_ms", "session_ms"), [(20_000, "60000"), (30_000, "60000"), (40_000, "120000")])
def test_garbage_collection_pauses_get_sessions_of_one_to_two_minutes(pause_ms: int, session_ms: str) -> None:
    advice = asked({}, "java", Situation(kind="classic", longest_pause_ms=pause_ms))
    assert advice.corrected.values["session.timeout.ms"] == session_ms
    (found,) = [each for each in advice.findings if each.rule == "session-timeout"]
    assert found.reason.startswith(f"A pause of {pause_ms // 1000} s ")


@pytest.mark.parametrize(
    ("client", "version", "values", "wanted"),
    [
        ("java", "2.8", {}, {("session-timeout", "session.timeout.ms"), ("eager-assignor", _STRATEGY)}),
        ("java", "3.0", {}, {("eager-assignor", _STRATEGY)}),
        ("librdkafka", "1.6.2", {}, {("session-timeout", "session.timeout.ms"), ("eager-assignor", _STRATEGY)}),
        ("librdkafka", "1.5", {}, {("session-timeout", "session.timeout.ms")}),
        ("java", "2.2", {"group.instance.id": "${P}"}, {("client-release", "group.instance.id")}),
        ("java", "3.9", {"group.protocol": "consumer"}, {("client-release", "group.protocol")}),
        ("librdkafka", "2.11", {"group.protocol": "consumer"}, {("client-release", "group.protocol")}),
        ("librdkafka", "2.12.1", {"group.protocol": "consumer"}, set()),
        ("librdkafka", "1.5", {_STRATEGY: "cooperative-sticky"}, {("client-release", _STRATEGY)}),
    ],
)
def test_the_release_of_the_client_decides_defaults_and_what_works(
    client: Client, version: str, values: dict[str, str], wanted: set[tuple[str, str]]
) -> None:
    kind: Literal["consumer", "classic"] = "consumer" if values.get("group.protocol") == "consumer" else "classic"
    given = GivenConfiguration(client=client, values=values, version=client_version(version))
    advice = advise(given, Situation(kind=kind))
    rules = {"session-timeout", "eager-assignor", "client-release"}
    found = {(each.rule, each.setting) for each in advice.findings if each.rule in rules}
    assert wanted <= found
    if not values or not wanted:
        assert found == wanted
    if ("client-release", "group.protocol") in wanted:
        assert "group.protocol" not in advice.corrected.values


@pytest.mark.parametrize("text", ["", "3", "three.five", "3.x"])
def test_no_releases(text: str) -> None:
    with pytest.raises(ValueError, match="expected major and minor"):
        client_version(text)


def test_each_rule_has_its_page_and_each_page_its_rule() -> None:
    assert sorted(rule.name for rule in RULES) == rule_names()
    for name in rule_names():
        assert (rule_page(name) or "").startswith(f"# {name}: ")


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("240s", 240_000), ("1500ms", 1500), ("5m", 300_000), ("2h", 7_200_000), ("7", 7000)]
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1d", "1e3"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_ms(text)


def test_sizes_and_words() -> None:
    assert [size_bytes(text) for text in ("20GB", "1MiB", "5", "1.5k")] == [20 * 10**9, 2**20, 5, 1500]
    assert [in_words(each) for each in (500, 1500, 45_000, 90_000, 480_000)] == [
        "500 ms",
        "1.5 s",
        "45 s",
        "90 s",
        "8 min",
    ]
