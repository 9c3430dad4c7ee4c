"""Heads of requests: what is understood, and what a stranger may try."""

from __future__ import annotations

import json

import pytest

from headrace.spark.queries.http_requests import BadRequest, check_access, read_head

OWN = "state.example.org"


def head(target="/v1/stores", *headers, method="GET", version="HTTP/1.1"):
    lines = [f"{method} {target} {version}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def test_a_request_is_parsed():
    request = read_head(head("/v1/stores/a%2Fb/key?key=%22%C3%A9%22&stale=", "Host: 127.0.0.1:80", "X: y"))
    assert request.path == ("v1", "stores", "a/b", "key")
    assert request.parameters == {"key": '"é"', "stale": ""}
    assert request.host == "127.0.0.1"
    assert request.keeps_open
    assert request.token is None


@pytest.mark.parametrize(
    ("lines", "open_after"),
    [(["Connection: close"], False), (["Connection: keep-alive"], True), ([], True)],
)
def test_connections_stay_open_unless_asked(lines, open_after):
    assert read_head(head("/", *lines)).keeps_open is open_after
    assert not read_head(head("/", version="HTTP/1.0")).keeps_open


@pytest.mark.parametrize(
    "wrong",
    [
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        head(version="HTTP/2.0"),
        head("http://elsewhere/v1/stores"),
        head("//\x01"),
        head("/v1 /stores"),
        head("/é"),
        head("/v1/stores/%ff"),
        head("/v1/stores?key=%ff"),
        head("/v1/stores?key"),
        head("/v1/stores?key=1&key=2"),
        head("/v1/stores?" + "&".join(f"k{number}=1" for number in range(50))),
        head("/", "Content-Length: 5"),
        head("/", "Transfer-Encoding: chunked"),
        head("/", "Host : a"),
        head("/", " folded: a"),
        head("/", "no colon"),
        head("/", "Host: a", "Host: b"),
        head("/", "Authorization: Bearer a", "Authorization: Bearer b"),
    ],
)
def test_what_cannot_be_understood_is_refused(wrong):
    with pytest.raises(BadRequest) as refused:
        read_head(wrong)
    assert refused.value.answer.status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_nothing_but_get_is_answered(method):
    with pytest.raises(BadRequest) as refused:
        read_head(head(method=method))
    assert refused.value.answer.status == 405
    assert ("Allow", "GET") in refused.value.answer.headers


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8081", True),
        ("10.0.0.5", True),
        ("[::1]:8081", True),
        ("localhost:8081", True),
        ("LOCALHOST", True),
        (OWN, True),
        (f"{OWN}:9", True),
        ("evil.example.com", False),
        ("localhost.evil.example.com", False),
        ("127.0.0.1.evil.example.com", False),
        ("", False),
    ],
)
def test_other_names_of_the_server_are_refused(host, allowed):
    """Names that a web page chose to resolve to this address."""
    request = read_head(head("/", f"Host: {host}"))
    if allowed:
        check_access(request, token=None, own_host=OWN)
        return
    with pytest.raises(BadRequest) as refused:
        check_access(request, token=None, own_host=OWN)
    assert refused.value.answer.status == 403


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("Authorization: Bearer s3cret-s3cret-s3cret", True),
        ("authorization: bearer  s3cret-s3cret-s3cret", True),
        ("Authorization: Bearer s3cret-s3cret-s3cre", False),
        ("Authorization: Bearer s3cret-s3cret-s3crett", False),
        ("Authorization: Bearer S3CRET-S3CRET-S3CRET", False),
        ("Authorization: Basic s3cret-s3cret-s3cret", False),
        ("Authorization: Bearer \xff", False),
        ("Authorization: Bearer", False),
        ("Authorization: s3cret-s3cret-s3cret", False),
        ("X: y", False),
    ],
)
def test_tokens(line, allowed):
    request = read_head(head("/", "Host: localhost", line))
    assert "s3cret" not in repr(request).lower()
    if allowed:
        check_access(request, token="s3cret-s3cret-s3cret", own_host=OWN)
        return
    with pytest.raises(BadRequest) as refused:
        check_access(request, token="s3cret-s3cret-s3cret", own_host=OWN)
    assert refused.value.answer.status == 401
    assert json.loads(refused.value.answer.body)["error"]["code"] == "authentication-failed"
