"""Metadata and assignments of Kafka Connect, as Kafka 4.3.1's own classes wrote them (`connect_user_data.txt`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.connect_user_data import decode_connect_assignment, decode_connect_metadata

LINES = (Path(__file__).parent / "connect_user_data.txt").read_text().splitlines()
BYTES = {(role, int(version)): bytes.fromhex(data) for role, version, data in (line.split() for line in LINES)}


def assignment(version: int) -> dict[str, object]:
    """Return the assignment of all versions."""
    found: dict[str, object] = {
        "version": version,
        "error": 0,
        "leader": "leader-1",
        "leader_url": "http://one:8083/",
        "config_offset": 42,
        "assigned": {"files": ["connector", 0, 3]},
    }
    return found if version == 0 else {**found, "revoked": {"rows": [1]}, "scheduled_delay_ms": 300_000}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_assignments_of_every_protocol_are_decoded(version: int) -> None:
    assert decode_connect_assignment(BYTES["assignment", version]) == assignment(version)


def test_metadata_of_every_protocol_is_decoded() -> None:
    eager = {"version": 0, "url": "http://one:8083/", "config_offset": 42}
    assert decode_connect_metadata(BYTES["subscription", 0]) == eager
    for version in (1, 2):
        worker = {"version": version, "url": "http://two:8083/", "config_offset": 43}
        assert decode_connect_metadata(BYTES["subscription", version]) == {**worker, "allocation": assignment(version)}
        assert decode_connect_metadata(BYTES["empty", version]) == {**worker, "allocation": None}


@given(st.sampled_from(sorted(BYTES)), st.data())
def test_cut_or_longer_bytes_are_no_user_data(key: tuple[str, int], data: st.DataObject) -> None:
    decode = decode_connect_assignment if key[0] == "assignment" else decode_connect_metadata
    whole = BYTES[key]
    assert decode(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None
    assert decode(whole + b"\0") is None


@given(st.binary(max_size=200))
def test_bytes_of_strangers_are_harmless(data: bytes) -> None:
    for decode in (decode_connect_metadata, decode_connect_assignment):
        decode(data)
