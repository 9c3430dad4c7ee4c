"""Which version of StreamsGroupHeartbeat the coordinator speaks: asked with ApiVersions, and only when it matters.

Version 1 came with Kafka 4.4; with it static members and task offsets. A 4.2 or 4.3 broker refuses both with
INVALID_REQUEST, so they must not be sent there.
"""

from __future__ import annotations

from headrace.client.membership.events import SettingIgnored
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["HeartbeatVersion"]

API_KEY = int(ApiKey.STREAMS_GROUP_HEARTBEAT)
NEWEST = 1
SOFTWARE_NAME = "headrace"


class HeartbeatVersion:
    """Mutable: the highest version that the present coordinator offers; None while it was not asked."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._told = False

    @property
    def is_newest(self) -> bool:
        """Whether instance ids and task offsets may be sent."""
        return self.number is not None and self.number >= NEWEST

    def forget(self) -> None:
        """Another node coordinates, or the same one after a restart, maybe with another version."""
        self.number = None

    def request(self) -> object:
        """The question, for the coordinator's node."""
        return m.api_versions_request.ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version="membership"
        )

    def on_response(self, response: m.api_versions_response.ApiVersionsResponse) -> None:
        """Takes the answer; an error leaves the version unknown."""
        if response.error_code != ErrorCode.none:
            return
        offered = [int(key.max_version) for key in response.api_keys if int(key.api_key) == API_KEY]
        self.number = offered[0] if offered else 0

    def ignored(self, instance_id: str | None, *, keeps_member_id: bool = False) -> SettingIgnored | None:
        """What to tell the application when its instance id cannot be used here; once."""
        if self._told or instance_id is None or self.number is None or self.is_newest:
            return None
        self._told = True
        return SettingIgnored(
            setting="group.instance.id",
            message=f"the coordinator takes no static members of streams groups: {instance_id} joins as a dynamic one"
            + (", by a member id that it keeps over restarts" if keeps_member_id else ""),
            fix="use brokers of Apache Kafka 4.4 or later, or remove group.instance.id",
        )
