"""Consumers in groups that are polled until something is raised."""

from __future__ import annotations

from headrace.client.consumer.consumer import Consumer

EVERY = {("t", number) for number in range(4)}


def poll_for_ever(consumer: Consumer) -> None:
    for _ in range(300):
        consumer.poll_records(0.2)
