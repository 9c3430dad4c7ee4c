"""User data of classic groups that run streams: round trips, a fixed layout, and bytes of strangers."""

import struct
import zlib
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.consumer_protocol import MalformedUserData
from headrace.client.membership.assignment import OwnedTasks, tasks_from, tasks_of
from headrace.client.membership.classic_task_leader import TaskAssignment, TaskReport
from headrace.client.membership.classic_user_data import (
    MOST_BYTES,
    MemberReport,
    decode_assignment,
    decode_report,
    decode_topology,
    encode_assignment,
    encode_endpoints,
    encode_report,
)
from headrace.client.membership.endpoints import Endpoint, EndpointPartitions
from headrace.client.membership.topology import Subtopology, Topology

NAMES = st.text(max_size=12)
TASKS = st.dictionaries(NAMES, st.lists(st.integers(0, 5000), min_size=1, max_size=6), max_size=4).map(tasks_of)
OWNED = st.builds(OwnedTasks, active=TASKS, standby=TASKS, warmup=TASKS)
OFFSETS = st.dictionaries(st.tuples(NAMES, st.integers(0, 5000)), st.integers(0, 1 << 60), max_size=5)
ENDPOINTS = st.builds(Endpoint, NAMES, st.integers(1, 65_535))
REPORTS = st.builds(
    MemberReport,
    topology_hash=st.binary(min_size=8, max_size=8),
    process_id=NAMES,
    client_tags=st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple),
    endpoint=st.none() | ENDPOINTS,
    tasks=st.builds(
        TaskReport, owned=OWNED, task_offsets=OFFSETS, task_end_offsets=OFFSETS, shutdown_application=st.booleans()
    ),
    acceptable_recovery_lag=st.none() | st.integers(0, 1 << 60),
)
SERVED = st.dictionaries(ENDPOINTS, st.builds(EndpointPartitions, active=TASKS, standby=TASKS), max_size=3)
ASSIGNMENTS = st.builds(
    TaskAssignment,
    tasks=OWNED,
    status=st.lists(st.tuples(st.integers(0, 6), NAMES), max_size=3).map(tuple),
    endpoints=SERVED.map(MappingProxyType),
    follow_up=st.booleans(),
)


@given(REPORTS)
def test_a_report_is_read_as_it_was_written(report):
    assert decode_report(encode_report(report)) == report


@given(ASSIGNMENTS)
def test_an_assignment_is_read_as_it_was_written(assignment):
    assert decode_assignment(encode_assignment(assignment)) == assignment


@given(REPORTS, ASSIGNMENTS, st.binary(max_size=20))
def test_fields_of_later_versions_are_passed_over(report, assignment, more):
    later = b"\x00\x02"
    assert decode_report(later + encode_report(report)[2:] + more) == report
    assert decode_assignment(later + encode_assignment(assignment)[2:] + more) == assignment


@given(REPORTS, ASSIGNMENTS, st.data())
def test_cut_bytes_are_malformed(report, assignment, data):
    for encoded, decode in ((encode_report(report), decode_report), (encode_assignment(assignment), decode_assignment)):
        length = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(MalformedUserData):
            decode(encoded[:length])


def test_one_assignment_has_the_topology():
    topology = Topology(subtopologies=(Subtopology(subtopology_id="counts", source_topics=("flights",)),))
    data = encode_assignment(TaskAssignment(), topology=topology)
    assert decode_topology(data) == topology
    assert decode_assignment(data) == TaskAssignment()
    assert decode_topology(encode_assignment(TaskAssignment())) is None


@pytest.mark.parametrize("document", [b"[]", b"7", b"{", b'{"epoch":0}', b'{"epoch":0,"subtopologies":[{}]}'])
def test_a_topology_of_strangers_is_malformed(document):
    section = zlib.compress(document)
    head = encode_assignment(TaskAssignment())[: 3 + 3 * 4 + 4]
    data = head + struct.pack(">i", len(section)) + section + encode_endpoints({})
    assert decode_assignment(data) == TaskAssignment()
    with pytest.raises(MalformedUserData):
        decode_topology(data)


@given(st.binary(max_size=300))
def test_bytes_of_strangers_are_read_or_malformed(content):
    for decode in (decode_report, decode_assignment):
        try:
            decode(b"\x00\x01" + content)
        except MalformedUserData:
            continue


def test_a_long_array_in_a_short_message_is_refused_before_it_is_read():
    with pytest.raises(MalformedUserData, match="does not fit"):
        decode_assignment(b"\x00\x01\x00" + b"\x7f\xff\xff\xff")


def test_a_section_that_grows_without_bound_is_refused():
    packed = zlib.compress(bytes(MOST_BYTES + 1))
    head = b"\x00\x01\x00" + bytes(20)  # no tasks, no status, no topology
    assert len(packed) < 20_000
    with pytest.raises(MalformedUserData, match="more than"):
        decode_assignment(head + struct.pack(">i", len(packed)) + packed)
    with pytest.raises(MalformedUserData, match="compressed section"):
        decode_assignment(head + struct.pack(">i", 3) + b"abc")


def test_user_data_of_a_large_group_fits_into_a_record():
    """100 members with 1,000 tasks and as many standby tasks, and endpoints for queries."""
    tasks = [(f"counts-of-region-{n}", partition) for n in range(10) for partition in range(100)]
    of = [tuple(sorted(tasks[n::100])) for n in range(100)]
    served = {
        Endpoint(f"host-{n}.example.com", 8080): EndpointPartitions(
            active=tasks_from(of[n]), standby=tasks_from(of[n - 1])
        )
        for n in range(100)
    }
    owned = OwnedTasks(active=tasks_from(of[0]), standby=tasks_from(of[1]))
    offsets = {task: 123_456_789 + task[1] for task in (*of[0], *of[1])}
    report = MemberReport(
        topology_hash=b"12345678",
        process_id="0" * 36,
        endpoint=Endpoint("host-0.example.com", 8080),
        tasks=TaskReport(owned=owned, task_offsets=offsets, task_end_offsets=offsets),
    )
    assignment = TaskAssignment(tasks=owned, endpoints=MappingProxyType(served))
    assert decode_assignment(encode_assignment(assignment)) == assignment
    assert 100 * (len(encode_report(report)) + len(encode_assignment(assignment))) < 1_000_000


def in_sections(data: bytes, length: int) -> str:
    """Bytes before the compressed section, and the section as it was before: compressors may differ."""
    packed = struct.unpack(">i", data[length : length + 4])[0]
    assert len(data) == length + 4 + packed
    return data[:length].hex() + zlib.decompress(data[length + 4 :]).hex()


def test_the_layout_does_not_change():
    """Members of two releases share a group during an upgrade."""
    owned = OwnedTasks(active={"by-origin": (0, 2)}, standby={"flights": (1,)})
    tasks = TaskReport(
        owned=owned,
        task_offsets={("by-origin", 2): 7},
        task_end_offsets={("by-origin", 0): 9, ("by-origin", 2): 8},
        shutdown_application=True,
    )
    report = MemberReport(
        topology_hash=b"12345678",
        process_id="p",
        client_tags=(("zone", "a"),),
        endpoint=Endpoint("h", 80),
        tasks=tasks,
        acceptable_recovery_lag=10_000,
    )
    assert in_sections(encode_report(report), 92) == (
        "0001" "3132333435363738" "000170" "0000000100047a6f6e65000161" "0001680050" "01"
        "000000010009" "62792d6f726967696e" "000000020000000000000002"
        "000000010007" "666c6967687473" "0000000100000001" "00000000" "0000000000002710"
        "000000010009" "62792d6f726967696e" "00000002"
        "00000000" "ffffffffffffffff" "0000000000000009" "00000002" "0000000000000007" "0000000000000008"
    )  # fmt: skip
    served = {Endpoint("h", 80): EndpointPartitions(active={"t": (0,)})}
    assignment = TaskAssignment(tasks=owned, status=((3, "x"),), endpoints=MappingProxyType(served), follow_up=True)
    assert in_sections(encode_assignment(assignment), 70) == (
        "0001" "01"
        "000000010009" "62792d6f726967696e" "000000020000000000000002"
        "000000010007" "666c6967687473" "0000000100000001" "00000000"
        "00000001" "00000003" "000178" "00000000"
        "00000001" "000174" "00000001" "0001680050" "00000001" "00000000" "0000000100000000" "00000000"
    )  # fmt: skip
