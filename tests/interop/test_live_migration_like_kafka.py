"""Groups with members that move between the protocols: the same scripts to Apache Kafka 4.3.1 and to our broker. The
same answers, field by field, and the same records in `__consumer_offsets`.

Where we answer or write otherwise on purpose, the tables below say so and why; they are exact both ways. Of records,
what a run decides is put to fixed values, member ids to the members' names, and records of one kind that stand together
are sorted: Kafka takes members in the order of a hash map.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop import migration_scenarios  # noqa: F401 - fills MIGRATION_SCENARIOS
from tests.interop.heartbeat_script import Recording
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.migration_scenarios.policies import POLICY_SCRIPTS
from tests.interop.mixed_script import MIGRATION_SCENARIOS, MigrationScenario, MixedScript
from tests.interop.test_consumer_groups_like_kafka import BROKER_SETTINGS as OF_CONSUMERS
from tests.interop.test_consumer_records_like_kafka import undecided
from tests.interop.test_group_records_like_kafka import segments
from tests.interop.test_heartbeats_like_kafka import Intended, assert_same_but_for
from tests.longer import LONG

from headrace.broker.embedded import EmbeddedBroker
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import decode, encode_value
from headrace.protocol.record_batches import decode_records

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BROKER_SETTINGS = {
    **OF_CONSUMERS,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.max.size": 5,
}
NOT_THE_SERVER = "Bytes that are wrong are no error of the server's, as which Kafka takes some of them."
INTENDED_DIFFERENCES: Mapping[str, Mapping[str, Intended]] = {
    "assignment-that-is-none": {"a cannot join": Intended(("error", "message"), NOT_THE_SERVER)},
    "unreadable-subscription": {
        "p joins with no subscription": Intended(("error",), NOT_THE_SERVER),
        "p joins with bytes": Intended(("error",), NOT_THE_SERVER),
    },
}


class Played(NamedTuple):
    answers: Recording
    records: list[str]


def played(port: int, data: Path, scenario: MigrationScenario, token: str) -> Played:
    with contextlib.closing(MixedScript(port, scenario.name, token)) as script:
        script.prepare(scenario.topics, scenario.settings)
        script.learn_topics(*scenario.topics)
        scenario.play(script)
        return Played(script.finished(), list(written(data, script)))


def written(data: Path, script: MixedScript) -> Iterator[str]:
    """The records of the script's group, in words; offsets are compared elsewhere."""
    for _, run in itertools.groupby(_records(data, script), key=lambda each: each[0]):
        yield from sorted(text for _, text in run)


def _records(data: Path, script: MixedScript) -> Iterator[tuple[object, str]]:
    for path in segments(data, script.group_id):
        for raw in decode_records(path.read_bytes()):
            assert raw.key is not None
            record = decode(raw.key, raw.value)
            assert record is not None, f"a record of an unknown type: {raw.key!r}"
            key: Any = record.key
            if record.value is not None:
                assert encode_value(record.value) == raw.value, f"{key} is not written as it was read"
            is_own = getattr(key, "group_id", getattr(key, "group", None)) == script.group_id
            if is_own and not isinstance(key, s.OffsetCommitKey):
                value = None if record.value is None else fixed(script.in_words(record.value))
                yield (type(key), value is None), f"{script.in_words(key)}: {value}"


def fixed(value: Any) -> Any:
    if isinstance(value, s.GroupMetadataValue):
        members = tuple(sorted(value.members, key=str))
        return replace(value, current_state_timestamp=min(value.current_state_timestamp, 1), members=members)
    return undecided(value)


@pytest.fixture(scope="module")
def ours() -> Iterator[EmbeddedBroker]:
    """One for all scripts: each has a group and topics of its own."""
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        yield broker


def play_to_both(kafka: KafkaBroker, ours: EmbeddedBroker, scenario: MigrationScenario) -> None:
    """At the same time, since some scripts wait for timeouts."""
    token = uuid.uuid4().hex[:8]
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(played, kafka.port, kafka.log_directory, scenario, token)
        found = played(ours.port, ours.data_dir, scenario, token)
        theirs = asked.result()
    assert_same_but_for(INTENDED_DIFFERENCES.get(scenario.name, {}), theirs.answers, found.answers, {})
    assert "\n".join(found.records) == "\n".join(theirs.records)


@pytest.mark.parametrize("name", MIGRATION_SCENARIOS)
def test_our_broker_answers_and_writes_like_kafka(kafka: KafkaBroker, ours: EmbeddedBroker, name: str) -> None:
    play_to_both(kafka, ours, MIGRATION_SCENARIOS[name])


@pytest.mark.skipif(not LONG, reason="a Kafka for each policy: HEADRACE_LONG=1")
@pytest.mark.parametrize("policy", ["disabled", "upgrade", "DOWNGRADE"])
def test_migration_policies_allow_the_same_as_kafka(kafka_tools: None, policy: str) -> None:
    settings = {"group.consumer.migration.policy": policy}
    with KafkaBroker("4.3.1", settings) as kafka, EmbeddedBroker(config={**BROKER_SETTINGS, **settings}) as broker:
        for play in POLICY_SCRIPTS:
            name = play.__name__.replace("_", "-")
            scenario = MigrationScenario(name, play, {"in": 4}, {"consumer.assignment.interval.ms": 0})
            play_to_both(kafka, broker, scenario)


def test_the_table_names_scenarios_that_exist() -> None:
    assert not INTENDED_DIFFERENCES.keys() - MIGRATION_SCENARIOS.keys()
