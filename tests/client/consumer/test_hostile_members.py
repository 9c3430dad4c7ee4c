"""A group with one who does not keep the rules: a leader that assigns nonsense, a member that subscribes in nonsense.

The stranger sends its requests by hand (`Stranger`). Our consumer goes on, reads what it may, and says what it passed
over.
"""

from __future__ import annotations

import logging
import struct
from typing import Self

import pytest
from kio.schema.types import GroupId
from tests.client.running_consumers import RunningConsumer
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

EVERY = {("t", number) for number in range(2)}
SUBSCRIBED = encode_subscription(Subscription(topics=("t",)))


def write_twenty_records(broker: EmbeddedBroker) -> None:
    for number in range(20):
        broker.produce("t", [b"v%d" % number], partition=number % 2)


broker = broker_fixture(
    {"t": 2, "other": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module", setup=write_twenty_records
)


class Stranger:
    """A member by hand: `join` once, again when somebody came; as leader it gives `assignments`. Mutable."""

    def __init__(self, broker: EmbeddedBroker, group: str, metadata: bytes) -> None:
        self._client = NetworkClient(broker.bootstrap_servers, client_id="stranger")
        self.group, self.metadata = group, metadata
        self.member_id, self.generation, self.leads = "", -1, False
        self.members: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def join(self) -> None:
        """Until it is a member of a generation."""
        request = m.join_group_request
        while True:
            reply = self._client.call_coordinator(
                self.group,
                request.JoinGroupRequest(
                    group_id=GroupId(self.group),
                    session_timeout=from_ms(45_000),
                    rebalance_timeout=from_ms(60_000),
                    member_id=self.member_id,
                    group_instance_id=None,
                    protocol_type="consumer",
                    protocols=(request.JoinGroupRequestProtocol(name="range", metadata=self.metadata),),
                    reason=None,
                ),
                lambda answer: [answer.error_code],
                timeout_ms=70_000,
            )
            self.member_id = reply.member_id
            if reply.error_code == ErrorCode.none:
                break
            assert reply.error_code == ErrorCode.member_id_required
        self.generation, self.leads = int(reply.generation_id), reply.leader == reply.member_id
        self.members = tuple(each.member_id for each in reply.members)

    def sync(self, assignments: dict[str, bytes]) -> ErrorCode:
        request = m.sync_group_request
        reply = self._client.call_coordinator(
            self.group,
            request.SyncGroupRequest(
                group_id=GroupId(self.group),
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=tuple(
                    request.SyncGroupRequestAssignment(member_id=name, assignment=given)
                    for name, given in assignments.items()
                ),
            ),
            lambda answer: [answer.error_code],
        )
        return reply.error_code

    def leave(self) -> None:
        request = m.leave_group_request
        self._client.call_coordinator(
            self.group,
            request.LeaveGroupRequest(
                group_id=GroupId(self.group),
                members=(request.MemberIdentity(member_id=self.member_id, group_instance_id=None, reason=None),),
            ),
            lambda answer: [answer.error_code],
        )


def ours(broker: EmbeddedBroker, group: str) -> RunningConsumer:
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": "classic", "heartbeat.interval.ms": 200}
    return RunningConsumer("t", group_id=group, config=config, partition_assignment_strategy="range")


GIVEN = {
    "noise": b"\x00\x03" + bytes(range(200)),
    "a length beyond the end": struct.pack(">hi", 3, 2**31 - 1),
    "another topic": encode_assignment(Assignment(partitions=(("t", 0), ("other", 0), ("t", 1)))),
    "a topic that is not there": encode_assignment(Assignment(partitions=(("t", 0), ("nowhere", 7), ("t", 1)))),
    "partitions that are not there": encode_assignment(
        Assignment(partitions=(("t", 0), ("t", -1), ("t", 4_000), ("t", 1)))
    ),
    "one partition many times": encode_assignment(Assignment(partitions=(("t", 0),) * 500 + (("t", 1),))),
    "much user data": encode_assignment(Assignment(partitions=(("t", 0), ("t", 1)), user_data=b"x" * 300_000)),
}


@pytest.mark.parametrize("given", GIVEN)
def test_invalid_assignments_of_a_leader(broker: EmbeddedBroker, given: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace.client")
    group = f"led-{given}"
    with Stranger(broker, group, SUBSCRIBED) as stranger:
        stranger.join()
        stranger.sync({stranger.member_id: b""})
        with ours(broker, group) as member:
            stranger.join()  # waits for ours, or ours for it
            while len(stranger.members) < 2:
                stranger.sync({stranger.member_id: b""})
                stranger.join()
            assert stranger.leads
            (other,) = set(stranger.members) - {stranger.member_id}
            assert stranger.sync({other: GIVEN[given]}) == ErrorCode.none
            readable = given not in ("noise", "a length beyond the end")
            if readable:
                wait_until(lambda: len(member.read) == 20, "it reads what it may")
            else:
                wait_until(lambda: "cannot be decoded" in caplog.text, "it is logged")
            assert member.assigned <= EVERY | {("t", 4_000)}
            stranger.leave()
            wait_until(lambda: member.assigned == EVERY, "it leads, and has what there is")
            wait_until(lambda: len(member.read) == 20, "and reads it once")
        assert not member.errors
    assert broker.group(group).state == "Empty"


SAID = {
    "nothing": b"",
    "noise": bytes(range(200)),
    "topics beyond the end": struct.pack(">hi", 3, 2**31 - 1),
    "hostile user data": encode_subscription(
        Subscription(topics=("t",), user_data=struct.pack(">i", 2**31 - 1) + b"\xff" * 100)
    ),
    "what it does not own": encode_subscription(
        Subscription(topics=("t",), owned_partitions=(("t", -5), ("t", 0), ("nowhere", 3)), generation_id=2**31 - 1)
    ),
}


@pytest.mark.parametrize("said", SAID)
def test_invalid_subscriptions_of_a_member(broker: EmbeddedBroker, said: str) -> None:
    """Ours leads: it gives the stranger its share if it can be understood, and keeps everything if not."""
    group = f"said-{said}"
    with ours(broker, group) as member:
        wait_until(lambda: member.assigned == EVERY, "it has everything")
        with Stranger(broker, group, SAID[said]) as stranger:
            stranger.join()
            assert not stranger.leads
            assert stranger.sync({}) == ErrorCode.none
            share = 1 if said in ("hostile user data", "what it does not own") else 2
            wait_until(lambda: len(member.assigned) == share, "it divides")
            stranger.leave()
        wait_until(lambda: member.assigned == EVERY, "it has everything again")
    assert not member.errors
