"""Reasons why a topology cannot run on the present topics: a status for the members, or an error of the topology."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["InvalidTopology", "StatusCode", "TopicProblem", "TopicStatus"]


class StatusCode(IntEnum):
    """Numbers of StreamsGroupHeartbeat's status list, in the order they are listed."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A status of a heartbeat's reply: code and detail."""

    code: StatusCode
    detail: str


class TopicProblem(Exception):
    """The topics do not fit the topology, which may change without the members doing anything."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = TopicStatus(code=code, detail=detail)


class InvalidTopology(Exception):
    """The topology cannot be configured whatever topics there are."""
