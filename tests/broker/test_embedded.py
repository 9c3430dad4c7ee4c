"""EmbeddedBroker as a test author meets it, and what a start refuses."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.brokers import Connect

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.process import banner
from headrace.broker.server import Server
from headrace.errors import BrokerError, ConfigError, HeadraceError, StateError


def test_values_and_keys_in_all_their_forms(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [{"origin": "JFK"}, {"origin": "EWR", "delay": 1.5}], key="origin")
    broker.produce("t", ["text", b"bytes", None], key=b"fixed")
    broker.produce("t", ["last"], key=lambda value: value[:2], timestamp_ms=7)
    records = broker.records("t")
    assert [(record.key, record.value) for record in records] == [
        (b"JFK", b'{"origin":"JFK"}'),
        (b"EWR", b'{"origin":"EWR","delay":1.5}'),
        (b"fixed", b"text"),
        (b"fixed", b"bytes"),
        (b"fixed", None),
        (b"la", b"last"),
    ]
    assert [record.offset for record in records] == list(range(6))
    assert records[-1].timestamp_ms == 7


def test_more_records_than_one_batch_or_one_read_holds(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 2})
    broker.produce("t", [b"%d" % number + b"x" * 500 for number in range(6000)])
    records = broker.records("t")
    assert len(records) == 6000
    assert [record.offset for record in records if record.partition == 1] == list(range(3000))


def test_async_with_is_the_same() -> None:
    async def use() -> int:
        async with EmbeddedBroker(topics={"t": 1}) as broker:
            broker.produce("t", [b"x"])
            return len(broker.records("t"))

    assert asyncio.run(use()) == 1


def test_a_temporary_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        temporary = broker.data_dir
        assert temporary.is_dir()
    assert not temporary.exists()
    with EmbeddedBroker(topics={"t": 1}, data_dir=tmp_path / "kept") as broker:
        broker.produce("t", [b"x"])
    with EmbeddedBroker(topics={"t": 1}, data_dir=tmp_path / "kept") as broker:
        assert [record.value for record in broker.records("t")] == [b"x"]


def test_a_missing_topic_is_said(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError) as raised:
        broker.records("nowhere")
    assert raised.value.code == "topic-missing"
    assert raised.value.kafka_name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_stopped_broker_says_so() -> None:
    broker = EmbeddedBroker()
    with pytest.raises(HeadraceError) as raised:
        broker.records("t")
    assert raised.value.code == "broker-stopped"


def test_a_taken_port_is_one_clear_error_and_touches_no_data(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            EmbeddedBroker(data_dir=tmp_path / "data", port=port).start()
    assert raised.value.code == "port-taken"
    assert str(port) in raised.value.message
    assert "--port" in raised.value.fix
    assert not (tmp_path / "data").exists()


def test_a_directory_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path), pytest.raises(StateError) as raised:
        EmbeddedBroker(data_dir=tmp_path).start()
    assert raised.value.code == "state-locked"


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        EmbeddedBroker(config={"num.partition": 1}).start()
    assert raised.value.code == "unknown-setting"


def test_only_so_many_connections(connect: Connect) -> None:
    with EmbeddedBroker(config={"max.connections": 2}) as broker:
        clients = [connect(broker) for _ in range(3)]
        assert clients[2].is_closed_by_peer()
        assert broker.connection_count == 2


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_banner_says_what_this_is(host: str, warned: bool, tmp_path: Path) -> None:
    configuration = BrokerConfiguration.from_settings(tmp_path, host=host, port=9092)
    text = banner(Server(configuration))
    assert f"{host}:9092" in text
    assert str(tmp_path) in text
    assert "one process, one machine, not replicated" in text
    assert ("warning" in text) is warned


def test_the_broker_needs_the_base_install_only() -> None:
    program = (
        "import sys\n"
        "from headrace.broker.embedded import EmbeddedBroker\n"
        "with EmbeddedBroker(topics={'t': 1}) as broker:\n"
        "    broker.produce('t', [b'x']); broker.records('t')\n"
        "print(sorted(set(sys.modules) & {'pyarrow', 'numba', 'numpy', 'pandas', 'pyspark', 'lmdb'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_deleted_records_stay_deleted_after_a_kill(broker: EmbeddedBroker, connect: Connect) -> None:
    from headrace.protocol import messages as m
    from headrace.protocol.api_keys import ApiKey
    from headrace.protocol.kio_units import from_ms

    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2", b"3"])
    d = m.delete_records_request
    part = d.DeleteRecordsPartition(partition_index=0, offset=2)
    request = d.DeleteRecordsRequest(
        topics=(d.DeleteRecordsTopic(name="t", partitions=(part,)),), timeout=from_ms(1000)
    )
    assert connect(broker).call(ApiKey.DELETE_RECORDS, request).topics[0].partitions[0].low_watermark == 2
    broker.kill()
    broker.restart()
    assert [record.value for record in broker.records("t")] == [b"3"]
