"""Requests and responses of every API and version there and back, and bytes that are none."""

from __future__ import annotations

import dataclasses
import io
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer
from tests.protocol.message_samples import EVERY_MESSAGE, message_id
from tests.protocol.request_samples import HEARTBEAT, Message, decode, encode, sender_of

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.framing import MalformedRequest, MalformedResponse, UnsupportedVersion
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.protocol.version_conversion import message_class, newest_class

# What the newest class cannot hold is gone after decoding; all other bytes come back as they were.
LOSSY = {
    *[(ApiKey.METADATA, version, kind) for version in (8, 9, 10) for kind in ("request", "response")],
    *[(ApiKey.OFFSET_COMMIT, version, "request") for version in (2, 3, 4)],  # retention time
    *[(ApiKey.UPDATE_FEATURES, version, "response") for version in (0, 1)],
    *[(ApiKey.API_VERSIONS, 3, "response")],  # features that start at 0
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 0, "response"),  # a recovery lag that no broker fills in
}


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=message_id)
def test_every_message_of_every_version_survives_the_newest_class(message: Message) -> None:
    newest = newest_class(message[0], message[2])
    for seed in range(4):
        frame, _ = sender_of(message, seed)
        decoded = decode(message, frame)
        assert type(decoded) is newest
        again = encode(message, decoded)
        assert decode(message, again) == decoded
        if message not in LOSSY:
            assert again == frame


def frames_of_everything() -> list[bytes]:
    return [sender_of(message, 1)[0] for message in EVERY_MESSAGE if message[2] == "request"]


REQUEST_FRAMES = frames_of_everything()
HOSTILE = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80", b"\xff", b"\x00", b"\xff" * 10]


@st.composite
def mutated_frames(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.sampled_from(REQUEST_FRAMES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(8, max(8, len(frame) - 1)))
        match draw(st.integers(0, 3)):
            case 0:
                del frame[at:]
            case 1:
                piece = draw(st.sampled_from(HOSTILE))
                frame[at : at + len(piece)] = piece
            case 2:
                frame[at:at] = draw(st.binary(max_size=9))
            case _:
                frame[at : at + 1] = bytes([draw(st.integers(0, 255))])
    return bytes(frame)


@settings(max_examples=600, deadline=None)
@given(mutated_frames())
def test_mutated_requests_raise_nothing_else(frame: bytes) -> None:
    try:
        header, request = decode_request(frame)
    except (MalformedRequest, UnsupportedVersion):
        return
    assert type(request) is newest_class(ApiKey(header.api_key), "request")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_else(frame: bytes) -> None:
    try:
        decode_request(frame)
    except (MalformedRequest, UnsupportedVersion):
        return


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([m for m in EVERY_MESSAGE if m[2] == "response"]), st.binary(max_size=60))
def test_arbitrary_bytes_are_at_worst_a_malformed_response(message: Message, frame: bytes) -> None:
    try:
        decode_response(message[0], message[1], frame)
    except MalformedResponse:
        return


def test_a_cut_request_names_its_header() -> None:
    frame, _ = sender_of((ApiKey.METADATA, 12, "request"), 0)
    with pytest.raises(MalformedRequest, match="Metadata v12") as caught:
        decode_request(frame[:13])
    assert caught.value.header is not None
    assert caught.value.header.correlation_id == 77


@pytest.mark.parametrize("frame", [b"", b"\x00" * 9, struct.pack(">hhih", 3, 1, 1, 9) + b"abc"])
def test_without_a_header_there_is_none(frame: bytes) -> None:
    with pytest.raises(MalformedRequest) as caught:
        decode_request(frame)
    assert caught.value.header is None


@pytest.mark.parametrize(("api_key", "version"), [(4, 0), (999, 3), (-1, 0), (0, 2), (1, 99), (18, 9)])
def test_unknown_apis_and_versions_are_told_with_their_header(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(struct.pack(">hhih", api_key, version, 5, -1))
    assert caught.value.header == RequestHeader(api_key=api_key, api_version=version, correlation_id=5, client_id=None)


def test_unknown_tagged_fields_in_a_header_are_skipped() -> None:
    frame, _ = sender_of((ApiKey.LIST_GROUPS, 5, "request"), 2)
    with_tags = frame[:12] + b"\x02" + b"\x00\x03abc" + b"\x09\x00" + frame[13:]
    assert decode_request(with_tags) == decode_request(frame)


FLEXIBLE = [message for message in EVERY_MESSAGE if message_class(*message).__flexible__]


@pytest.mark.parametrize("message", FLEXIBLE, ids=message_id)
def test_tagged_fields_of_a_newer_peer_are_left_out(message: Message) -> None:
    """Behind the known ones, if there are any, and in front of them."""
    unknown = b"\xc6\x0d\x03abc"  # tag 1734
    for seed in range(2):
        frame, entity = sender_of(message, seed)
        start = len(frame) - tagged_fields_size(entity)
        count, known = frame[start], frame[start + 1 :]
        for section in (bytes([count + 1]) + known + unknown, bytes([count + 2]) + unknown + unknown + known):
            assert decode(message, frame[:start] + section) == decode(message, frame)


def tagged_fields_size(entity: Any) -> int:
    """Bytes of the message's own tagged fields, their number included."""
    defaults = {field.name: field.default for field in dataclasses.fields(entity) if "tag" in field.metadata}
    sizes = []
    for each in (entity, dataclasses.replace(entity, **defaults)):
        buffer = io.BytesIO()
        entity_writer(type(entity))(buffer, each)
        sizes.append(len(buffer.getvalue()))
    return sizes[0] - sizes[1] + 1


def test_unknown_tagged_fields_of_nested_structures_are_skipped() -> None:
    task = b"\x020" + b"\x02\x00\x00\x00\x01"  # subtopology "0", partition 1
    begin = b"\x02g\x02m" + struct.pack(">ii", 3, -1) + b"\x00\x00" + struct.pack(">i", -1)
    end = b"\x01\x01\x00\xff\x00\x00\x00\x00\x00"
    frames = [
        struct.pack(">hhih", ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 77, 2) + b"me\x00" + begin + topology + active + end
        for topology, active in (
            (b"\x01" + b"\x00" * 4 + b"\x01" + b"\x00", b"\x02" + task + b"\x00"),
            (b"\x01" + b"\x00" * 4 + b"\x01" + b"\x01\x07\x00", b"\x02" + task + b"\x01\x05\x02hi"),
        )
    ]
    plain, tagged = (decode_request(frame)[1] for frame in frames)
    assert plain == tagged
    assert plain.active_tasks[0].partitions == (1,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [32_767, 32_768])
def test_a_string_has_no_more_than_32767_bytes(size: int) -> None:
    """As in Kafka; the keys of records could not hold more."""
    _, entity = sender_of(HEARTBEAT, 1)
    frame = encode(HEARTBEAT, dataclasses.replace(entity, rack_id="r" * size))
    if size > 32_767:
        with pytest.raises(MalformedRequest, match="a string of 32768 bytes"):
            decode(HEARTBEAT, frame)
    else:
        assert decode(HEARTBEAT, frame).rack_id == "r" * size


def test_unknown_api_versions_version_is_encoded_as_version_0() -> None:
    response = m.api_versions_response
    answer = response.ApiVersionsResponse(
        error_code=response.ErrorCode.unsupported_version,
        api_keys=(response.ApiVersion(api_key=18, min_version=0, max_version=4),),
        throttle_time=from_ms(0),
    )
    header = RequestHeader(api_key=18, api_version=99, correlation_id=3, client_id=None)
    assert encode_response(header, answer)[4:] == struct.pack(">ihihhh", 3, 35, 1, 18, 0, 4)


def test_the_api_versions_response_header_never_has_tagged_fields() -> None:
    frame, _ = sender_of((ApiKey.API_VERSIONS, 4, "response"), 0)
    decoded = decode((ApiKey.API_VERSIONS, 4, "response"), frame)
    assert struct.unpack_from(">h", frame, 4)[0] == decoded.error_code


def test_a_version_that_cannot_say_it_is_refused() -> None:
    request = m.find_coordinator_request.FindCoordinatorRequest(coordinator_keys=("a", "b"))
    with pytest.raises(ValueError, match="asks for one key"):
        encode_request(ApiKey.FIND_COORDINATOR, 3, 1, None, request)
