"""Metrics of a broker's connections and of its process."""

from __future__ import annotations

from tests.broker.test_faults import LIST_GROUPS
from tests.harness.brokers import Connect
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode


def test_closed_connections_are_counted_by_reason(connect: Connect) -> None:
    with EmbeddedBroker() as broker:
        polite = connect(broker)
        assert polite.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
        polite.close()
        malformed = connect(broker)
        malformed.socket.sendall(b"\x00\x00\x00\x03abc")
        assert malformed.is_closed_by_peer()
        closed = {
            reason: f'headrace_connections_closed_total{{listener="PLAINTEXT",reason="{reason}"}}'
            for reason in ("client", "malformed-request")
        }
        wait_until(lambda: [broker.metrics().get(name) for name in closed.values()] == [1.0, 1.0])
        samples = broker.metrics()
        created = (
            'kafka_server_socket_server_metrics_connection_creation_total{listener="PLAINTEXT",networkProcessor="0"}'
        )
        assert samples[created] == 2
        assert samples["process_resident_memory_bytes"] > 1 << 20
        assert samples["process_open_fds"] > 3
