"""librdkafka as a producer, and the results of its admin client."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException, Producer

from headrace.broker.embedded import EmbeddedBroker

TIMEOUT = 20


def settled(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Each future's result, or the KafkaError it raised."""
    outcome = {}
    for key, future in futures.items():
        try:
            outcome[key] = future.result(TIMEOUT)
        except KafkaException as error:
            outcome[key] = error.args[0]
    return outcome


def produced(broker: EmbeddedBroker, topic: str, count: int, **settings: object) -> list[Any]:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for number in range(count):
        producer.produce(
            topic,
            key=b"key-%d" % (number % 50),
            value=b"value-%d" % number,
            headers=[("number", b"%d" % number), ("null", None)],
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
    assert producer.flush(TIMEOUT) == 0
    return errors
