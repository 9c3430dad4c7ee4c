"""The stateful program on Apache Kafka 4.4.0: one run, because everything else about it is tested on 4.3.1."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.spark.application.processes import Application, flight, newest, send_flights

from penstock.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


def test_an_application_catches_up_on_kafka_4_4(kafka_tools: None, tmp_path: Path) -> None:
    flights = range(500)
    with KafkaBroker("4.4.0") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4}, replication_factor=1)
        send_flights(broker.bootstrap_servers, flights, 4)
        Application("flight_delays.py", broker.bootstrap_servers, tmp_path).run_until_caught_up()
        found = newest(broker.bootstrap_servers, "flight-delays-by-origin")
    expected = Counter(one["origin"] for one in map(flight, flights) if one["dep_delay"] is not None)
    assert {origin: row["flights"] for origin, row in found.items()} == expected
