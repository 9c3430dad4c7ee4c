"""StreamsGroupHeartbeat's request, v1: the fields of v0. The version tells that the caller reads answers of v1."""

from dataclasses import dataclass
from typing import ClassVar

from kio.schema.streams_group_heartbeat.v0 import request as v0
from kio.schema.streams_group_heartbeat.v0.request import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from kio.static.primitive import i16

__all__ = [
    "CopartitionGroup",
    "Endpoint",
    "KeyValue",
    "StreamsGroupHeartbeatRequest",
    "Subtopology",
    "TaskIds",
    "TaskOffset",
    "TopicInfo",
    "Topology",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupHeartbeatRequest(v0.StreamsGroupHeartbeatRequest):
    """Null lists and strings mean "as before", a rebalance timeout of -1 ms too."""

    __version__: ClassVar[i16] = i16(1)
