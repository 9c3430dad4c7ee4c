"""Reads the documents of running applications (`/v1/application`) at the endpoints that their groups name.

Every member of a group chooses its endpoint, and with it an address that this process connects to. So hosts are asked
only if they are allowed: the loopback, and those of `--application-host`. An answer is bounded in bytes and time,
redirects are not followed, and each value is checked before it is shown.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import h11

from headrace.broker.network.listener import is_loopback
from headrace.client.deadline import Deadline
from headrace.errors import ConfigError

__all__ = ["ApplicationAccess", "InstanceAnswer", "checked_document", "read_instances"]

PATH = "/v1/application"
FORMAT = 1
MOST_BYTES = 8 << 20
MOST_INSTANCES = 64
"""Asked for one screen; the page reports how many were left out."""
TIMEOUT_MS = 3_000
THREADS = 8

Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAccess:
    """Hosts that are asked, beside the loopback, and the token that applications expect. The token is not in the repr.

    Attributes:
        names: Host names and addresses, in lower case.
        networks: Networks in CIDR notation.
        token: `headrace.state.query.token.file` of the applications; None: they have none.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, hosts: Iterable[str], token: str | None) -> ApplicationAccess:
        """Read host names, addresses and networks.

        Raises:
            ConfigError: `bad-value`.
        """
        names, networks = set(), []
        for host in hosts:
            if "/" not in host:
                names.add(_plain(host))
                continue
            try:
                networks.append(ipaddress.ip_network(host))
            except ValueError as error:
                raise ConfigError(
                    "bad-value",
                    f"Invalid --application-host {host!r}: {error}.",
                    "Name a host, an address, or a network such as 10.0.0.0/16.",
                ) from None
        return cls(names=frozenset(names), networks=tuple(networks), token=token)

    def allows(self, host: str) -> bool:
        """Return whether a host may be asked."""
        name = _plain(host)
        if is_loopback(name) or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAnswer:
    """The document of one endpoint, or why there is none."""

    endpoint: Endpoint
    document: Mapping[str, Any] | None = None
    problem: str = ""


def read_instances(
    group_id: str, endpoints: Iterable[Endpoint], access: ApplicationAccess, *, timeout_ms: int = TIMEOUT_MS
) -> list[InstanceAnswer]:
    """Ask the endpoints of a group, several at a time. An endpoint beyond `MOST_INSTANCES` is left out.

    Args:
        group_id: The group; an answer of another application counts as a problem.
        endpoints: Hosts and ports, as the group names them.
        access: Hosts that are allowed, and the token.
        timeout_ms: Most time for all of them.
    """
    deadline = Deadline.after_ms(timeout_ms)
    chosen = sorted(set(endpoints))[:MOST_INSTANCES]
    if not chosen:
        return []
    with ThreadPoolExecutor(min(THREADS, len(chosen)), thread_name_prefix="headrace-ui-instances") as pool:
        return list(pool.map(lambda each: _read(group_id, each, access, deadline), chosen))


def _read(group_id: str, endpoint: Endpoint, access: ApplicationAccess, deadline: Deadline) -> InstanceAnswer:
    host, port = endpoint
    if not access.allows(host):
        return InstanceAnswer(
            endpoint=endpoint, problem="its host is not asked; allow it with --application-host of headrace ui"
        )
    try:
        status, body = _exchange(_plain(host), port, access.token, deadline)
        if status in (401, 403):
            return InstanceAnswer(
                endpoint=endpoint, problem="it refused the token; name it with --application-token-file of headrace ui"
            )
        if status != 200:
            return InstanceAnswer(endpoint=endpoint, problem=f"it answered with status {status}")
        document = checked_document(json.loads(body))
    except TimeoutError:
        return InstanceAnswer(endpoint=endpoint, problem="it did not answer in time")
    except OSError as error:
        return InstanceAnswer(endpoint=endpoint, problem=f"it is not reached: {error.strerror or type(error).__name__}")
    except (h11.ProtocolError, ValueError, RecursionError):
        return InstanceAnswer(endpoint=endpoint, problem="its answer is no document of an application")
    if document["application"] != group_id:
        return InstanceAnswer(endpoint=endpoint, problem="another application answered")
    return InstanceAnswer(endpoint=endpoint, document=document)


def _exchange(host: str, port: int, token: str | None, deadline: Deadline) -> tuple[int, bytes]:
    """Send the request and return status and body. The deadline bounds all of it, also a server that sends slowly."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=16_384)
    shown = f"[{host}]" if ":" in host else host
    headers = [("Host", f"{shown}:{port}"), ("Connection", "close"), ("Accept", "application/json")]
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    status, body = 0, bytearray()
    with socket.create_connection((host, port), timeout=_remaining(deadline)) as link:
        link.sendall(connection.send(h11.Request(method="GET", target=PATH, headers=headers)) or b"")
        link.sendall(connection.send(h11.EndOfMessage()) or b"")
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                link.settimeout(_remaining(deadline))
                connection.receive_data(link.recv(65_536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BYTES:
                    raise ValueError("too large")
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return status, bytes(body)


def _remaining(deadline: Deadline) -> float:
    if deadline.passed:
        raise TimeoutError
    return deadline.remaining_s


def _plain(host: str) -> str:
    return host.strip("[]").lower().rstrip(".")


# -- checks -----------------------------------------------------------------------------------------------------------

LONGEST_TEXT = 2_000
# A value that is not of this shape is no document: the page computes with numbers and shows texts, of known length.
# A type stands for a value, a tuple for a value that may also be null, a list for a list, and `_Keyed` for a mapping.


@dataclass(frozen=True, slots=True)
class _Keyed:
    of: Any


_Number = (int, float)
_DURATIONS = {"count": int, "p50": (_Number, None), "p99": (_Number, None), "max": (_Number, None)}
_TASK = {
    "partition": int,
    "slot": int,
    "place": str,
    "records": int,
    "lag": int,
    "state_keys": int,
    "state_bytes": int,
    "watermarks_ms": _Keyed((int, None)),
    "late_rows": int,
    "skipped": int,
    "dead_letters": int,
}
_SUBTOPOLOGY = {
    "id": str,
    "sources": [{"kind": str, "topics": [str]}],
    "operators": [{"store": str, "kind": str, "changelog": str}],
    "sinks": [{"kind": str, "name": str}],
    "records": int,
    "records_per_second": _Number,
    "output_records": int,
    "lag": int,
    "batches": int,
    "resident_batches": int,
    "failed_batches": int,
    "batch_ms": _DURATIONS,
    "stages_ms": _Keyed(_DURATIONS),
    "tasks": [_TASK],
    "opening": [{"partition": int, "restored": (int, None), "remaining": (int, None)}],
}
_APPLICATION = {
    "application": str,
    "version": str,
    "time_ms": int,
    "started_ms": int,
    "state": str,
    "reasons": [str],
    "member_id": (str, None),
    "member_epoch": (int, None),
    "host": str,
    "pid": int,
    "guarantee": str,
    "state_disk_bytes": int,
    "memberships_lost": int,
    "subtopologies": [_SUBTOPOLOGY],
    "standby": [{"subtopology": str, "partition": int, "lag": int}],
}


def checked_document(given: object) -> dict[str, Any]:
    """Return the known keys of a document, each of its type. Pure.

    Raises:
        ValueError: it is no document, or of a later format.
    """
    _require(isinstance(given, dict) and given.get("format") == FORMAT, "a document of this format")
    found: dict[str, Any] = _checked(given, _APPLICATION)
    return found


def _checked(given: Any, shape: Any) -> Any:
    if isinstance(shape, tuple) and shape[-1] is None:
        return None if given is None else _checked(given, shape[0])
    if isinstance(shape, dict):
        _require(isinstance(given, dict), "an object")
        return {name: _checked(given.get(name), each) for name, each in shape.items()}
    if isinstance(shape, list):
        _require(isinstance(given, list), "a list")
        return [_checked(each, shape[0]) for each in given]
    if isinstance(shape, _Keyed):
        _require(isinstance(given, dict), "an object")
        return {str(name)[:LONGEST_TEXT]: _checked(each, shape.of) for name, each in given.items()}
    # bool is an int for Python.
    _require(isinstance(given, shape) and not isinstance(given, bool), "a value of its type")
    if isinstance(given, str):
        return given[:LONGEST_TEXT]
    # Also false for infinities and NaN, which JSON of a browser does not have.
    _require(-(2**63) <= given < 2**63, "a number of 64 bits")
    return given


def _require(condition: bool, expected: str) -> None:
    if not condition:
        raise ValueError(f"expected {expected}")
