"""Null in the place of every array, string, byte field and struct of every message in every version.

The places come from kio's schemas. Kafka 4.4.0's own readers agree on each of the 2,207 frames which to refuse.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from kio.serial import entity_writer
from tests.protocol.message_samples import EVERY_MESSAGE, message_id, sample
from tests.protocol.null_fields import ITEM, NullPlace, null_places, write_message
from tests.protocol.request_samples import Message

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.fast_path import produce_request
from headrace.protocol.framing import MalformedRequest, MalformedResponse
from headrace.protocol.request_codec import decode_request, decode_response
from headrace.protocol.version_conversion import has_flexible_header, message_class, newest_class


def full_sample(message: Message) -> Any:
    return sample(message_class(*message), random.Random(zlib.crc32(message_id(message).encode())), full=True)


def header_of(message: Message) -> bytes:
    api_key, version, kind = message
    fixed = struct.pack(">hhih", api_key, version, 77, 2) + b"me" if kind == "request" else struct.pack(">i", 77)
    return fixed + b"\0" * has_flexible_header(message_class(*message))


def frames_with_null(message: Message, *, nullable: bool) -> Iterator[tuple[NullPlace, bytes]]:
    entity, header = full_sample(message), header_of(message)
    for place in null_places(message_class(*message)):
        if place.nullable is nullable:
            yield place, header + write_message(entity, place.path)


def decode(message: Message, frame: bytes) -> Any:
    if message[2] == "request":
        return decode_request(frame)[1]
    return decode_response(message[0], message[1], frame)[1]


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=message_id)
def test_without_null_the_writer_of_the_tests_writes_what_kio_writes(message: Message) -> None:
    entity = full_sample(message)
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    assert write_message(entity) == buffer.getvalue()


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=message_id)
def test_null_is_refused_where_the_schema_has_none(message: Message) -> None:
    for place, frame in frames_with_null(message, nullable=False):
        with pytest.raises((MalformedRequest, MalformedResponse)) as caught:
            print(place, decode(message, frame))
        if isinstance(caught.value, MalformedRequest):
            assert caught.value.header is not None, place
            assert caught.value.header.correlation_id == 77
        assert produce_request(frame) is None, place


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=message_id)
def test_null_is_accepted_where_the_schema_has_it(message: Message) -> None:
    for place, frame in frames_with_null(message, nullable=True):
        decoded = decode(message, frame)
        if message_class(*message) is newest_class(message[0], message[2]):  # else null may have become a neutral value
            assert value_at(decoded, place.path) is None, place


def value_at(entity: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        entity = getattr(entity[0] if isinstance(entity, tuple) else entity, name)
    return entity


def test_the_places_are_not_few_and_of_every_kind() -> None:
    places = [place for message in EVERY_MESSAGE for place in null_places(message_class(*message))]
    assert len(places) > 2000
    assert {(place.kind, place.nullable) for place in places} == {
        *((kind, nullable) for kind in ("array", "string", "bytes") for nullable in (False, True)),
        ("struct", True),
    }
    assert any(place.tagged and place.nullable for place in places)
    assert any(place.path[-1] == ITEM for place in places)


@pytest.mark.parametrize("version", range(12, 19))
def test_fetch_may_state_that_its_cluster_id_is_null(version: int) -> None:
    """The only tagged string of a request that may be null. kio reads every tagged field as not nullable."""
    message = (ApiKey.FETCH, version, "request")
    entity = full_sample(message)
    stated = decode(message, header_of(message) + write_message(entity, ("cluster_id",)))
    assert stated.cluster_id is None
    assert stated.max_wait == entity.max_wait
