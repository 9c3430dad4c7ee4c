"""Options of the data source: Spark's names and defaults, and refusals that name the fix."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import ConfigError
from headrace.spark.data_source.options import EARLIEST, LATEST, OPTIONS, SourceOptions

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def parsed(**options: str) -> SourceOptions:
    return SourceOptions.parse(BASE | {name.replace("__", "."): value for name, value in options.items()})


def refused(options: dict[str, str]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse(options)
    return caught.value


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parsed()
    assert options.topics.names == ("orders",)
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.client.isolation_level == "read_uncommitted"


def test_names_are_read_in_any_case() -> None:
    assert not parsed(FAILONDATALOSS="FALSE").fail_on_data_loss
    assert parsed(Kafka__Isolation__Level="read_committed").client.isolation_level == "read_committed"


def test_topics_are_chosen_by_list_pattern_or_partitions() -> None:
    servers = {"kafka.bootstrap.servers": "a:1"}
    assert SourceOptions.parse(servers | {"subscribe": "a, b,a"}).topics.names == ("a", "b")
    assert SourceOptions.parse(servers | {"subscribePattern": "a.*"}).topics.pattern == "a.*"
    assigned = SourceOptions.parse(servers | {"assign": '{"b":[1,0],"a":[2]}'}).topics.partitions
    assert assigned == (("a", 2), ("b", 0), ("b", 1))


def test_positions_are_words_numbers_or_times() -> None:
    assert parsed(startingOffsets="earliest").starting == EARLIEST
    assert parsed(startingOffsets="Latest").starting == LATEST
    offsets = parsed(startingOffsets='{"orders":{"0":5,"1":-2}}').starting
    assert offsets is not None
    assert offsets.by_partition == {("orders", 0): 5, ("orders", 1): -2}
    ending = parsed(endingOffsetsByTimestamp='{"orders":{"0":7}}').ending
    assert ending is not None
    assert (ending.kind, ending.by_partition, ending.or_latest) == ("timestamps", {("orders", 0): 7}, True)


def test_a_time_counts_before_times_by_partition_and_offsets() -> None:
    both = parsed(startingTimestamp="9", startingOffsetsByTimestamp='{"orders":{"0":7}}', startingOffsets="latest")
    assert both.starting is not None
    assert (both.starting.kind, both.starting.timestamp_ms, both.starting.or_latest) == ("timestamp", 9, False)


def test_a_start_at_commits_needs_the_group() -> None:
    assert parsed(startingOffsets="committed", kafka__group__id="billing").group_id == "billing"
    assert "group.id" in refused(BASE | {"startingOffsets": "committed"}).fix
    assert refused(BASE | {"group.id": "a", "kafka.group.id": "b"}).code == "bad-value"


def test_times_have_units_and_are_milliseconds_without_one() -> None:
    assert parsed(maxTriggerDelay="15m").max_trigger_delay_ms == 900_000
    assert parsed(maxTriggerDelay="250").max_trigger_delay_ms == 250


@pytest.mark.parametrize(
    ("name", "near"),
    [("startingOffset", "startingOffsets"), ("kafka.group.ids", "kafka.group.id"), ("subscibe", "subscribe")],
)
def test_an_unknown_option_names_the_near_one(name: str, near: str) -> None:
    error = refused(BASE | {name: "x"})
    assert error.code == "unknown-setting"
    assert error.fix == f"Did you mean {near}?"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("groupIdPrefix", "joins no consumer group"),
        ("kafkaConsumer.pollTimeoutMs", "not polled"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.value.deserializer", "always binary"),
        ("fetchOffset.numRetries", "until a time is up"),
    ],
)
def test_options_without_an_effect_are_refused_with_the_reason(name: str, reason: str) -> None:
    error = refused(BASE | {name: "1"})
    assert error.code == "not-supported-here"
    assert reason in str(error)


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "a"},
        {"kafka.bootstrap.servers": "a:1"},
        BASE | {"subscribePattern": "a"},
        BASE | {"subscribe": " , "},
        BASE | {"startingOffsets": "newest"},
        BASE | {"endingOffsets": "earliest"},
        BASE | {"endingOffsets": '{"orders":{"0":-2}}'},
        BASE | {"startingOffsets": '{"orders":{"0":-3}}'},
        BASE | {"startingOffsets": '{"orders":{"0":1,"0":2}}'},
        BASE | {"startingOffsets": '{"orders":{"zero":1}}'},
        BASE | {"startingOffsets": '{"orders":{"0":true}}'},
        BASE | {"startingOffsets": '{"orders":{}}'},
        BASE | {"startingOffsets": "{"},
        BASE | {"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'},
        BASE | {"startingOffsetsByTimestampStrategy": "earliest"},
        BASE | {"failOnDataLoss": "no"},
        BASE | {"minPartitions": "0"},
        BASE | {"minPartitions": "١"},
        BASE | {"maxRecordsPerPartition": "-1"},
        BASE | {"maxTriggerDelay": "soon"},
        BASE | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        BASE | {"kafka.isolation.level": "serializable"},
        BASE | {"kafka.security.protocol": "TELNET"},
        {"kafka.bootstrap.servers": "a:1", "subscribePattern": "("},
        {"kafka.bootstrap.servers": "a:1", "assign": '{"orders":0}'},
        {"kafka.bootstrap.servers": "a:1", "assign": '{"orders":[-1]}'},
        {"kafka.bootstrap.servers": "a:1", "assign": "[]"},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items() if BASE.get(name) != value),
)
def test_a_bad_value_is_refused_with_a_fix(options: dict[str, str]) -> None:
    error = refused(options)
    assert error.code == "bad-value"
    assert error.fix


def test_an_option_of_another_kind_of_query_is_refused() -> None:
    with pytest.raises(ConfigError, match="endingOffsets has no meaning in a stream"):
        parsed(endingOffsets="latest").refuse(("endingOffsets",), "a stream")


def test_options_reach_the_executors_with_their_secrets_and_do_not_show_them() -> None:
    options = parsed(
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "ann",
            "kafka.sasl.password": "hidden",
        }
    )
    copied = pickle.loads(pickle.dumps(options))
    assert copied.client.security.to_settings() == options.client.security.to_settings()
    assert "hidden" not in repr(options)


def test_every_option_is_listed_once() -> None:
    assert len({name.lower() for name in OPTIONS}) == len(OPTIONS)
