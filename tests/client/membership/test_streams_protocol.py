"""Choice between streams and classic groups."""

from __future__ import annotations

import pytest

from headrace.client.membership.classic_task_leader import PROTOCOL_NAME
from headrace.client.membership.streams_protocol import CoordinatorOffer, choose_protocol, parse_group_protocol
from headrace.errors import BrokerError, ConfigError
from headrace.protocol.error_codes import ErrorCode

NO_GROUP = ErrorCode.group_id_not_found


@pytest.mark.parametrize(
    ("offer", "expected", "reason"),
    [
        (CoordinatorOffer(has_heartbeat=False), "classic", "has no streams groups"),
        (CoordinatorOffer(has_heartbeat=True, described=ErrorCode.unsupported_version), "classic", "turned off"),
        (CoordinatorOffer(has_heartbeat=True), "streams", "offers streams groups"),
        (CoordinatorOffer(has_heartbeat=True, described=NO_GROUP), "streams", "offers streams groups"),
        (
            CoordinatorOffer(has_heartbeat=True, described=NO_GROUP, classic_members=2, classic_protocol=PROTOCOL_NAME),
            "classic",
            "2 running members",
        ),
        (CoordinatorOffer(has_heartbeat=True, described=NO_GROUP, classic_members=1), "classic", "1 running members"),
        (
            CoordinatorOffer(has_heartbeat=True, described=NO_GROUP, classic_members=2, classic_protocol="range"),
            "streams",
            "offers streams groups",
        ),
    ],
    ids=["old", "off", "streams group", "no group", "ours", "ours, rebalancing", "consumers"],
)
def test_auto_follows_the_coordinator(offer: CoordinatorOffer, expected: str, reason: str) -> None:
    choice = choose_protocol("auto", offer, group_id="app")
    assert choice.protocol == expected
    assert reason in choice.reason


@pytest.mark.parametrize("wanted", ["streams", "classic"])
def test_a_named_protocol_is_taken_whatever_is_offered(wanted: str) -> None:
    named = parse_group_protocol(wanted, member="a StreamsApp")
    for has_heartbeat in (True, False):
        assert choose_protocol(named, CoordinatorOffer(has_heartbeat=has_heartbeat), group_id="app").protocol == wanted


def test_a_coordinator_that_does_not_answer_the_question_ends_the_start() -> None:
    offer = CoordinatorOffer(has_heartbeat=True, described=ErrorCode.group_authorization_failed)
    with pytest.raises(BrokerError) as caught:
        choose_protocol("auto", offer, group_id="app")
    assert caught.value.code == "not-authorized"


@pytest.mark.parametrize(
    ("given", "fix"), [("consumer", "headrace.Consumer"), ("stream", "Remove the setting"), ("", "Remove the setting")]
)
def test_an_unknown_protocol_is_refused_with_the_known_ones(given: str, fix: str) -> None:
    with pytest.raises(ConfigError, match="expected auto, streams, classic for a StreamsApp") as caught:
        parse_group_protocol(given, member="a StreamsApp")
    assert fix in caught.value.fix
