"""User data of the newest generation, from recordings and from a group of Kafka Connect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.cli.doctor.recording import RECORDINGS, Recording
from tests.cli.doctor.test_report import report_of

from headrace.cli.doctor.group_events import GroupRecord
from headrace.cli.doctor.member_data import newest_member_data
from headrace.cli.doctor.report import report_lines
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import encode_key, encode_value

CONNECT = (Path(__file__).parents[2] / "assignors/connect_user_data.txt").read_text().splitlines()


def test_a_recorded_sticky_member_of_java_is_decoded() -> None:
    recording = Recording.read(RECORDINGS / "two-assignors.json.gz")
    (member,) = newest_member_data(recording.records, recording.group)
    assert (member.client_id, member.protocol, member.received) == ("sticky", "cooperative-sticky", "-")
    assert isinstance(json.loads(member.sent)["generation"], int)
    lines = report_lines(replace(report_of("two-assignors"), member_data=(member,)), str)
    assert "User data of the members (cooperative-sticky)" in lines
    assert f"    sent     {member.sent}" in lines


def test_a_range_group_and_a_consumer_group_have_none() -> None:
    for name in ("slow-batch-java", "more-partitions"):
        recording = Recording.read(RECORDINGS / f"{name}.json.gz")
        assert newest_member_data(recording.records, recording.group) == ()


def test_workers_of_connect_are_decoded() -> None:
    metadata, assignment = (bytes.fromhex(line.split()[2]) for line in CONNECT[:2])
    worker = s.GroupMember(
        member_id="w",
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        subscription=metadata,
        assignment=assignment,
    )
    value = s.GroupMetadataValue(protocol_type="connect", generation=1, protocol="default", members=(worker,))
    record = GroupRecord(timestamp_ms=1, key=encode_key(s.GroupMetadataKey(group="g")), value=encode_value(value))
    (found,) = newest_member_data([record], "g")
    assert json.loads(found.sent)["url"] == "http://one:8083/"
    assert json.loads(found.received)["assigned"] == {"files": ["connector", 0, 3]}
    assert newest_member_data([record], "other") == ()
