"""A broker configuration made of single settings."""

from __future__ import annotations

from headrace.broker.config.broker_configuration import BrokerConfiguration


def configured(**settings: object) -> BrokerConfiguration:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfiguration.from_settings("/tmp/nowhere", settings=named)
