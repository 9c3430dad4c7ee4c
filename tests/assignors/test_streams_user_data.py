"""User data of Kafka Streams in every version, as Kafka 4.3.1's own classes wrote it (`streams_user_data.txt`).

`tests/interop/test_user_data_like_kafka.py` compares the file with the classes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.assignors.streams_user_data import decode_streams_assignment, decode_streams_subscription
from headrace.assignors.user_data_report import report_user_data

LINES = (Path(__file__).parent / "streams_user_data.txt").read_text().splitlines()
BYTES = {(role, int(version)): bytes.fromhex(data) for role, version, data in (line.split() for line in LINES)}
VERSIONS = range(1, 12)
PROCESS = "01234567-89ab-cdef-0fed-cba987654321"


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_of_every_version_are_decoded(version: int) -> None:
    first, second = ("plan__0_1", "plan__1_2") if version >= 10 else ("0_1", "1_2")
    expected: dict[str, object] = {"version": version, "process_id": PROCESS}
    if version >= 3:
        expected["latest_supported_version"] = 11
    if version >= 2:
        expected["endpoint"] = "host:80"
    if version <= 6:
        expected |= {"previous_active": [first], "previous_standby": [second]}
    else:
        expected["offset_sums"] = {first: "running", second: 70_000}
    if version >= 8:
        expected["unique_field"] = 3
    if version >= 9:
        expected["error_code"] = 1
    if version >= 11:
        expected["client_tags"] = {"zone": "a"}
    assert decode_streams_subscription(BYTES["subscription", version]) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_assignments_of_every_version_are_decoded(version: int) -> None:
    first, second = ("plan__0_1", "plan__1_2") if version >= 10 else ("0_1", "1_2")
    expected: dict[str, object] = {"version": version, "active": [first], "standby": {second: {"bills": [2]}}}
    if version >= 2:
        expected["partitions_by_host"] = {"host:80": {"orders": [1]}}
    if version >= 3:
        expected["commonly_supported_version"] = 11
    if version >= 4:
        expected["error_code"] = 2
    if version >= 6:
        expected["standby_partitions_by_host"] = {"other:81": {"bills": [2]}}
    if version >= 7:
        expected["next_rebalance_ms"] = 1_700_000_000_000
    assert decode_streams_assignment(BYTES["assignment", version]) == expected


def test_both_roles_are_found_by_the_name_of_the_assignor() -> None:
    sent = encode_subscription(Subscription(topics=("orders",), user_data=BYTES["subscription", 11]))
    given_back = encode_assignment(Assignment(user_data=BYTES["assignment", 11]))
    assert json.loads(report_user_data("stream", "subscription", sent).text())["process_id"] == PROCESS
    assert json.loads(report_user_data("stream", "assignment", given_back).text())["active"] == ["plan__0_1"]


@given(st.sampled_from(sorted(BYTES)), st.data())
def test_cut_or_longer_bytes_are_no_user_data(key: tuple[str, int], data: st.DataObject) -> None:
    decode = decode_streams_subscription if key[0] == "subscription" else decode_streams_assignment
    whole = BYTES[key]
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode(whole[:cut]) is None
    assert decode(whole + b"\0") is None


@given(st.binary(max_size=200), st.integers(1, 11))
def test_bytes_of_strangers_are_harmless(data: bytes, version: int) -> None:
    for decode in (decode_streams_subscription, decode_streams_assignment):
        decode(data)
        decode(version.to_bytes(4, "big") + data)
