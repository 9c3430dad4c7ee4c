"""Answers written by hand because they are written thousands of times a second, byte for byte as the codec writes them.

Only the shape that nearly all of them have: Produce from v9 on, every partition appended under CreateTime. Everything
else is left to the codec (None). A test holds both against each other.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.units import to_ms

if TYPE_CHECKING:
    from penstock.protocol import messages as m

__all__ = ["produce_response"]

FIRST_FLEXIBLE, FIRST_WITH_IDS = 9, 13
_HEAD = struct.Struct(">iib")  # length of the frame, correlation id, no tagged fields
_PARTITION = struct.Struct(">ihqqqbbb")  # ... no record errors, no error message, no tagged fields
_THROTTLE = struct.Struct(">ib")
_NO_TIME = -1
_NO_ID = bytes(16)
_FEW = 0x7F  # items and characters whose count is one byte


def produce_response(
    api_version: int, correlation_id: int, response: m.produce_response.ProduceResponse
) -> bytes | None:
    """The whole frame, length included; None for what is not of the usual shape."""
    if api_version < FIRST_FLEXIBLE or response.node_endpoints or len(response.responses) >= _FEW:
        return None
    parts = [b"", bytes((len(response.responses) + 1,))]
    for topic in response.responses:
        who = _topic(topic.topic_id, topic.name, api_version)
        if who is None or len(topic.partition_responses) >= _FEW:
            return None
        parts += (who, bytes((len(topic.partition_responses) + 1,)))
        for part in topic.partition_responses:
            if part.error_code is not ErrorCode.none or part.log_append_time is not None or part.record_errors:
                return None
            if part.error_message is not None or _leader_is_told(part.current_leader):
                return None
            parts.append(_PARTITION.pack(part.index, 0, part.base_offset, _NO_TIME, part.log_start_offset, 1, 0, 0))
        parts.append(b"\x00")
    parts.append(_THROTTLE.pack(to_ms(response.throttle_time), 0))
    size = _HEAD.size - 4 + sum(map(len, parts))
    parts[0] = _HEAD.pack(size, correlation_id, 0)
    return b"".join(parts)


def _leader_is_told(leader: m.produce_response.LeaderIdAndEpoch) -> bool:
    return bool(leader.leader_id != -1 or leader.leader_epoch != -1)


def _topic(topic_id: UUID | None, name: str | None, api_version: int) -> bytes | None:
    if api_version >= FIRST_WITH_IDS:
        return _NO_ID if topic_id is None else topic_id.bytes
    encoded = (name or "").encode()
    return bytes((len(encoded) + 1,)) + encoded if name is not None and len(encoded) < _FEW else None
