"""Our own classes of heartbeat and describe v1 against the bytes of kafka-clients 4.4.0.

`written_by_kafka_clients_4_4_0.jsonl` holds random messages as JSON and the bytes that Kafka's own classes made of
them: `tests/interop/java/headrace/interop/MessageBytes.java` on the jars of 4.4.0.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.request_codec import RequestHeader, decode_response, encode_response
from headrace.protocol.version_conversion import message_class

WRITTEN = [
    json.loads(line)
    for line in (Path(__file__).parent / "written_by_kafka_clients_4_4_0.jsonl").read_text().splitlines()
]
API_KEYS = {key.kafka_name: key for key in (ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE)}


def as_json(value: Any) -> Any:
    """In the form of Kafka's request log."""
    if dataclasses.is_dataclass(value):
        return {
            _camel(field.name, getattr(value, field.name)): as_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    if isinstance(value, dt.timedelta):
        return to_ms(value)
    return int(value.value) if isinstance(value, ErrorCode) else value


def _camel(name: str, value: object) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest) + ("Ms" if isinstance(value, dt.timedelta) else "")


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: each["message"])
def test_we_read_and_write_what_kafka_4_4_writes(written: dict[str, Any]) -> None:
    kind = "request" if written["message"].endswith("Request") else "response"
    schema = message_class(API_KEYS[written["message"].removesuffix(kind.capitalize())], written["version"], kind)
    data = bytes.fromhex(written["hex"])
    entity, size = entity_reader(schema)(data, 0)
    assert (as_json(entity), size) == (written["json"], len(data))
    again = io.BytesIO()
    entity_writer(schema)(again, entity)
    assert again.getvalue() == data


def test_all_four_messages_are_there() -> None:
    assert {written["message"] for written in WRITTEN} == {
        name + kind for name in API_KEYS for kind in ("Request", "Response")
    }


def heartbeat_response(version: int) -> Any:
    r = m.streams_group_heartbeat_response
    response = r.StreamsGroupHeartbeatResponse(
        throttle_time=from_ms(0),
        error_code=ErrorCode.none,
        member_id="m",
        member_epoch=3,
        heartbeat_interval=from_ms(5_000),
        task_offset_interval=from_ms(60_000),
        acceptable_recovery_lag=2**40,
        status=(),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        topology_description_required=True,
        endpoint_information_epoch=0,
        partitions_by_user_endpoint=None,
    )
    header = RequestHeader(
        api_key=ApiKey.STREAMS_GROUP_HEARTBEAT, api_version=version, correlation_id=1, client_id=None
    )
    return decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, version, encode_response(header, response)[4:])[1]


@pytest.mark.parametrize(("version", "lag", "required"), [(0, -1, False), (1, 2**40, True)])
def test_the_recovery_lag_is_for_version_1(version: int, lag: int, required: bool) -> None:
    """In version 0 it is an int32 that Kafka leaves 0, and who reads it learns that there is none."""
    seen = heartbeat_response(version)
    assert (seen.acceptable_recovery_lag, seen.topology_description_required) == (lag, required)
    assert to_ms(seen.task_offset_interval) == 60_000
