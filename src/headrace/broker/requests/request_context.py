"""The context of a request: everything a handler may know about it besides its message. Pure.

A principal is named as in access rules: `User:alice` (KafkaPrincipal).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordinator.request_context import RequestContext as CoordinatorContext

if TYPE_CHECKING:
    from headrace.coordinator.result import Repeatable

__all__ = ["ANONYMOUS", "UNKNOWN_SOFTWARE", "ClientInformation", "Principal", "RequestContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`type` is "User" for every client; `name` is the SASL user name or comes from the certificate."""

    type: str = "User"
    name: str = "ANONYMOUS"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal()


class ClientInformation(NamedTuple):
    """Name and version of a client's software, as its ApiVersions request gave them (KIP-511)."""

    software_name: str
    software_version: str


UNKNOWN_SOFTWARE = ClientInformation("unknown", "unknown")


# A plain class with slots and not a dataclass: one is made for every request, and a frozen dataclass sets each field
# through `object.__setattr__`, which takes several times as long for ten fields.
class RequestContext:
    """One request. `token` is unique within the broker's life; `local_address` is what the client connected to.

    `principal` is who the client has shown to be; `listener_name` is the listener it came by, in Kafka's words
    (PLAINTEXT where nothing is named); `secure` means that the connection is encrypted (TLS).
    `sends_files`: the connection takes records of an answer as spans of their file (`sendfile_writer`).
    `client_information` is set by ApiVersions, for all further requests of the connection.
    `repeatable` is set where the answer may be repeated for the same bytes of this connection, see `fast_paths`.
    """

    __slots__ = (
        "api_version",
        "client_host",
        "client_id",
        "client_information",
        "client_port",
        "listener_name",
        "local_address",
        "principal",
        "repeatable",
        "secure",
        "sends_files",
        "token",
    )

    def __init__(
        self,
        *,
        token: int,
        client_id: str,
        client_host: str,
        api_version: int,
        local_address: tuple[str, int],
        principal: Principal = ANONYMOUS,
        listener_name: str = "PLAINTEXT",
        secure: bool = False,
        sends_files: bool = False,
        client_port: int = 0,
        client_information: ClientInformation = UNKNOWN_SOFTWARE,
    ) -> None:
        self.token = token
        self.client_id = client_id
        self.client_host = client_host
        self.client_port = client_port
        self.client_information = client_information
        self.api_version = api_version
        self.local_address = local_address
        self.principal = principal
        self.listener_name = listener_name
        self.secure = secure
        self.sends_files = sends_files
        self.repeatable: Repeatable | None = None

    @property
    def coordinator(self) -> CoordinatorContext:
        """The part of the context that the coordinator's rules may use."""
        # Made only for requests of groups: the rules must not see sockets or connections, or they could not be replayed
        # in the simulator.
        return CoordinatorContext(
            token=self.token,
            client_id=self.client_id,
            client_host=self.client_host,
            api_version=self.api_version,
            principal=str(self.principal),
        )
