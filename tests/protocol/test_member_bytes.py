"""A large group's description, with kept bytes of members, equals what kio writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.protocol import member_bytes, request_codec
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import streams_group_describe_response as r
from headrace.protocol.request_codec import RequestHeader, decode_response, encode_response

KEY = ApiKey.STREAMS_GROUP_DESCRIBE
VERSIONS = range(SUPPORTED[KEY].lowest, SUPPORTED[KEY].highest + 1)


def member(number: int, partitions: tuple[int, ...] = (1, 2)) -> Any:
    tasks = r.Assignment(
        active_tasks=(r.TaskIds(subtopology_id="count", partitions=partitions),), standby_tasks=(), warmup_tasks=()
    )
    return r.Member(
        member_id=f"m{number}",
        member_epoch=3,
        instance_id=None if number % 3 else f"i{number}",
        rack_id=None,
        client_id="c" * (number % 200),
        client_host="/127.0.0.1",
        topology_epoch=0,
        process_id="p",
        user_endpoint=None if number % 2 else r.Endpoint(host="h", port=1),
        client_tags=(),
        task_offsets=(),
        task_end_offsets=(),
        assignment=tasks,
        target_assignment=tasks,
        is_classic=False,
    )


def answer(*members: Any) -> Any:
    group = r.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id="g",
        group_state="Stable",
        group_epoch=3,
        assignment_epoch=3,
        topology=r.Topology(epoch=0, subtopologies=()),
        members=members,
        topology_description_status=0,
        assignor_name="sticky",
    )
    return r.StreamsGroupDescribeResponse(throttle_time=from_ms(0), groups=(group,))


def frame(version: int, response: Any, correlation_id: int = 7) -> bytes:
    header = RequestHeader(api_key=KEY, api_version=version, correlation_id=correlation_id, client_id="c")
    return encode_response(header, response)


@pytest.fixture
def kio(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes with kio alone."""

    def write(version: int, response: Any, correlation_id: int = 7) -> bytes:
        with monkeypatch.context() as patched:
            patched.setattr(member_bytes, "FEWEST_MEMBERS", 10**9)
            return frame(version, response, correlation_id)

    return write


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 19, 20, 126, 127, 128, 300])
def test_the_bytes_are_those_of_kio(version: int, count: int, kio: Any) -> None:
    response = answer(*(member(number) for number in range(count)))
    for correlation_id in (7, 0, 257):
        assert frame(version, response, correlation_id) == kio(version, response, correlation_id)
    _, decoded = decode_response(KEY, version, frame(version, response)[4:])
    assert len(decoded.groups[0].members) == count  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_member_is_written_anew(version: int, kio: Any) -> None:
    members = [member(number) for number in range(40)]
    frame(version, answer(*members))
    members[17] = member(17, partitions=(5,))
    members[3] = replace(members[3], member_epoch=4)
    del members[0]
    assert frame(version, answer(*members)) == kio(version, answer(*members))


def test_members_beyond_the_limit_are_forgotten(monkeypatch: pytest.MonkeyPatch, kio: Any) -> None:
    kept = member_bytes.MemberBytes()
    monkeypatch.setattr(request_codec, "_MEMBER_BYTES", kept)
    monkeypatch.setattr(member_bytes, "MOST_KEPT", 50)
    for start in range(0, 400, 40):
        response = answer(*(member(number) for number in range(start, start + 40)))
        assert frame(0, response) == kio(0, response)
        assert len(kept._kept) <= 50


def test_several_groups_in_one_answer_are_written_by_kio(kio: Any) -> None:
    group = answer(*(member(number) for number in range(30))).groups[0]
    response = r.StreamsGroupDescribeResponse(throttle_time=from_ms(0), groups=(group, group))
    assert frame(0, response) == kio(0, response)
