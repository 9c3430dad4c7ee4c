"""Hosts that are asked, hostile and slow servers, and documents of any shape."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.ui.running_applications import answering, document_of

from headrace.cli.ui.instance_client import MOST_BYTES, ApplicationAccess, checked_document, read_instances
from headrace.errors import ConfigError

TOKEN = "a-token-of-sixteen-characters"


def problem_of(port: int, access: ApplicationAccess | None = None, *, host: str = "127.0.0.1", **more: Any) -> str:
    (found,) = read_instances("delays", [(host, port)], access or ApplicationAccess(), **more)
    assert (found.document is None) == bool(found.problem)
    return found.problem


def test_the_document_of_an_instance() -> None:
    with answering(document_of(), token=TOKEN) as port:
        (found,) = read_instances("delays", [("127.0.0.1", port)], ApplicationAccess(token=TOKEN))
        assert found.document == {key: value for key, value in document_of().items() if key != "format"}
        assert "token" in problem_of(port)
        assert "token" in problem_of(port, ApplicationAccess(token="another-token-of-sixteen"))


def test_the_token_is_not_in_the_repr() -> None:
    assert TOKEN not in repr(ApplicationAccess(token=TOKEN))


def test_only_allowed_hosts_are_asked() -> None:
    access = ApplicationAccess.parse(["Apps.Example", "10.1.2.3", "192.168.0.0/16", "fd00::/8"], None)
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "apps.example", "APPS.example.", "10.1.2.3", "192.168.7.1"):
        assert access.allows(host), host
    for host in ("10.1.2.4", "evil.example", "apps.example.evil.example", "169.254.169.254", "", "192.169.0.1"):
        assert not access.allows(host), host
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        assert "--application-host" in problem_of(server.getsockname()[1], host="192.0.2.1")
        with pytest.raises(TimeoutError):  # nothing connects
            server.accept()
    with pytest.raises(ConfigError, match="--application-host"):
        ApplicationAccess.parse(["10.0.0.0/99"], None)


def test_answers_that_are_no_document() -> None:
    for content, words in (
        (document_of(application="other"), "another application"),
        (document_of(format=2), "no document"),
        (document_of(pid="1"), "no document"),
        (b"<html>", "no document"),
        (b"[" * 100_000, "no document"),
        (b'{"format": 1, "pad": "' + b"x" * MOST_BYTES + b'"}', "no document"),
    ):
        with answering(content) as port:
            assert words in problem_of(port)
    with answering(document_of(), status=307) as port:
        assert "307" in problem_of(port)


@contextmanager
def raw_server(answer: bytes, pause_s: float) -> Iterator[int]:
    """Send the answer byte by byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                link, _ = server.accept()
                with link:
                    for index in range(len(answer)):
                        link.sendall(answer[index : index + 1])
                        time.sleep(pause_s)
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def test_a_slow_server_is_given_up_in_time() -> None:
    for answer in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + b" " * 900):
        with raw_server(answer, 0.05) as port:
            begun = time.monotonic()
            assert problem_of(port, timeout_ms=500)
            assert time.monotonic() - begun < 5


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "not reached" in problem_of(port)


def test_all_endpoints_are_asked_at_a_time_and_bounded() -> None:
    with answering(document_of()) as port:
        found = read_instances(
            "delays", [("127.0.0.1", port), ("127.0.0.2", 1), ("127.0.0.1", port)], ApplicationAccess()
        )
        assert [bool(each.problem) for each in found] == [False, True]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_one_changed_value_is_refused_or_of_the_type(data: st.DataObject) -> None:
    document = document_of()
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            places.append((node, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(document)
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(anything)
    try:
        found = checked_document(document)
    except ValueError:
        return
    # Accepted again, unchanged, and JSON that a browser reads.
    assert checked_document({**found, "format": 1}) == found
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@given(anything)
def test_other_values_are_no_document(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        checked_document(value)
