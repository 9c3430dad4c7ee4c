"""StreamsGroupDescribe's request, v1: may ask for the topology's description as well (KIP-1331)."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.streams_group_describe.v0 import request as v0
from kio.static.primitive import i16

__all__ = ["StreamsGroupDescribeRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescribeRequest(v0.StreamsGroupDescribeRequest):
    """Version 0 plus a flag that asks for the description of the topology."""

    __version__: ClassVar[i16] = i16(1)
    include_topology_description: bool = field(metadata={"kafka_type": "bool"}, default=False)
