"""Names of client-side assignors and their parsing."""

from __future__ import annotations

import pytest

from headrace.assignors.assignor import Assignor, RebalanceProtocol
from headrace.assignors.registry import common_protocol, parse_assignors
from headrace.errors import ConfigError


def test_names_are_kafkas() -> None:
    named = parse_assignors("org.apache.kafka.clients.consumer.RangeAssignor, cooperative-sticky")
    assert [assignor.name for assignor in named] == ["range", "cooperative-sticky"]
    assert common_protocol(named) is RebalanceProtocol.EAGER
    assert common_protocol(parse_assignors("cooperative-sticky")) is RebalanceProtocol.COOPERATIVE


@pytest.mark.parametrize("strategy", ["", "rang", "range,range", Assignor()])
def test_wrong_names_are_refused(strategy: str | Assignor) -> None:
    with pytest.raises(ConfigError):
        parse_assignors(strategy)
