"""Members' data by protocol type and protocol: assignors, Headrace's own streams members, Connect, and others."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.cli.member_user_data import report_member_data
from headrace.client.membership.assignment import OwnedTasks
from headrace.client.membership.classic_task_leader import PROTOCOL_NAME, TaskAssignment, TaskReport
from headrace.client.membership.classic_user_data import MemberReport, encode_report
from headrace.client.membership.classic_user_data import encode_assignment as encode_tasks
from headrace.client.membership.endpoints import Endpoint

OWNED = OwnedTasks(active={"0": (2, 1)}, standby={"1": (0,)}, warmup={})


def test_our_own_streams_members_are_decoded_in_both_directions() -> None:
    report = MemberReport(
        topology_hash=b"\x01" * 8,
        process_id="p-1",
        client_tags=(("zone", "a"),),
        endpoint=Endpoint("host", 80),
        tasks=TaskReport(owned=OWNED, task_offsets={("0", 1): 7}, task_end_offsets={}),
    )
    sent = encode_subscription(Subscription(topics=("in",), user_data=encode_report(report)))
    decoded = report_member_data("consumer", PROTOCOL_NAME, "subscription", sent).decoded
    assert decoded is not None
    assert (decoded["process_id"], decoded["endpoint"], decoded["client_tags"]) == ("p-1", "host:80", {"zone": "a"})
    assert (decoded["active"], decoded["standby"], decoded["offsets"]) == ({"0": [1, 2]}, {"1": [0]}, {"0_1": 7})
    back = encode_assignment(Assignment(user_data=encode_tasks(TaskAssignment(tasks=OWNED))))
    decoded = report_member_data("consumer", PROTOCOL_NAME, "assignment", back).decoded
    assert decoded == {"active": {"0": [1, 2]}, "standby": {"1": [0]}, "warmup": {}, "status": [], "follow_up": False}


def test_workers_of_connect_are_decoded() -> None:
    lines = (Path(__file__).parents[1] / "assignors/connect_user_data.txt").read_text().splitlines()
    data = bytes.fromhex(lines[0].split()[2])
    decoded = report_member_data("connect", "default", "subscription", data).decoded
    assert decoded == {"version": 0, "url": "http://one:8083/", "config_offset": 42}


def test_other_protocols_are_shown_as_they_are() -> None:
    assert report_member_data("elections", "bully", "subscription", b"\x01\x02").text() == "0x0102 (2 bytes)"
    assert report_member_data("elections", "bully", "assignment", b"").text() == "-"
    subscription = encode_subscription(Subscription(topics=("in",), user_data=b"\x07"))
    assert report_member_data("consumer", "their-own", "subscription", subscription).text() == "0x07 (1 bytes)"


@given(
    st.sampled_from(("consumer", "connect", "other")),
    st.sampled_from((PROTOCOL_NAME, "stream", "sticky", "sessioned")),
    st.binary(max_size=120),
)
def test_bytes_of_strangers_are_harmless(protocol_type: str, protocol: str, data: bytes) -> None:
    wrapped = encode_subscription(Subscription(topics=("t",), user_data=data))
    for sent in (data, wrapped):
        report_member_data(protocol_type, protocol, "subscription", sent).text()
        report_member_data(protocol_type, protocol, "assignment", sent).text()
