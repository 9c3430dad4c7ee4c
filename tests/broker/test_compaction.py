"""Compaction in a running broker: beside producers and readers, across a kill, of groups as of topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import BrokerError

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.1"}
OFTEN = {"log.cleaner.backoff.ms": 5}
Eventually = Callable[[Callable[[], Any]], Any]


def rounds(broker: EmbeddedBroker, count: int, *, keys: int = 5) -> None:
    for n in range(count):
        broker.produce("table", [f"{n}-{k}" for k in range(keys)], key=lambda value: value.split("-")[1])


def table(broker: EmbeddedBroker) -> dict[str, str]:
    return {not_none(record.key).decode(): record.value.decode() for record in broker.records("table") if record.value}


def test_a_compacted_topic_becomes_its_table() -> None:
    with EmbeddedBroker(config=OFTEN) as broker:
        broker.create_topics({"table": 1}, COMPACTED)
        rounds(broker, 200)
        expected = {str(k): f"199-{k}" for k in range(5)}
        wait_until(lambda: len(broker.records("table")) < 300)
        assert table(broker) == expected
        offsets = [record.offset for record in broker.records("table")]
        assert offsets[-1] == 999, "offsets are what they were"
        broker.kill()
        broker.restart()
        assert table(broker) == expected
        assert [record.offset for record in broker.records("table")][-1] == 999
        rounds(broker, 1)
        assert table(broker) == {str(k): f"0-{k}" for k in range(5)}


def test_reads_and_writes_go_on_while_a_log_is_cleaned() -> None:
    with EmbeddedBroker(config=OFTEN) as broker:
        broker.create_topics({"table": 1}, COMPACTED)
        for n in range(30):
            rounds(broker, 10)
            found = broker.records("table")
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))
            assert offsets[-1] == (n + 1) * 50 - 1
            assert table(broker) == {str(k): f"9-{k}" for k in range(5)}
        wait_until(lambda: len(broker.records("table")) < 600)


def test_a_topic_deleted_while_it_is_cleaned_disturbs_nobody() -> None:
    with EmbeddedBroker(config=OFTEN) as broker:
        for n in range(4):
            broker.create_topics({f"table-{n}": 1}, COMPACTED)
            for _ in range(40):
                broker.produce(f"table-{n}", ["x" * 500] * 3, key=lambda _value: "same")
            broker.delete_topics([f"table-{n}"])
        broker.create_topics({"table": 1}, COMPACTED)
        rounds(broker, 200)
        wait_until(lambda: len(broker.records("table")) < 300)


def test_a_compacted_topic_refuses_what_has_no_key() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topics({"table": 1}, COMPACTED)
        with pytest.raises(BrokerError) as raised:
            broker.produce("table", ["a", "b"])
        assert raised.value.facts["kafka_name"] == "INVALID_RECORD"
        assert "Compacted topic cannot accept message without key in topic partition table-0" in str(raised.value)
        broker.produce("table", ["a"], key=lambda _value: "k")


def test_the_cleaner_can_be_switched_off(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path, config={**OFTEN, "log.cleaner.enable": "false"}) as broker:
        broker.create_topics({"table": 1}, COMPACTED)
        rounds(broker, 100)
        assert len(broker.records("table")) == 500
    assert not (tmp_path / "cleaner-offset-checkpoint").exists()
