"""The link of a resident slot: who is let in, what a message may be, and what the end of either side means."""

import contextlib
import json
import socket
import struct
import threading

import pytest

from headrace.spark.runtime.slot_link import LinkClosed, SlotLink, SlotListener


@pytest.fixture
def listener():
    listening = SlotListener()
    yield listening
    listening.close()


@pytest.fixture
def accepted(listener):
    """`accepted(slots)`: the links that the listener accepts in a thread, and the thread."""
    links = {}

    def accept(slots):
        thread = threading.Thread(
            target=lambda: links.update(listener.accept(slots, gives_up=lambda: False)), daemon=True
        )
        thread.start()
        return links, thread

    yield accept
    for link in links.values():
        link.close()


def send_much(link):
    for _ in range(100):
        link.send({"plan": "x" * 100_000})


def frame(message, length=None):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body) if length is None else length) + body


def test_messages_go_both_ways_until_one_end_closes(listener, accepted):
    links, accepting = accepted({"a", "b"})
    slots = [SlotLink.connect(listener.address, listener.token, name) for name in ("b", "a")]
    accepting.join(10)
    assert links.keys() == {"a", "b"}
    links["b"].send({"plan": "é" * 100_000})
    assert slots[0].receive() == {"plan": "é" * 100_000}
    slots[0].send({"reports": []})
    assert links["b"].receive() == {"reports": []}
    slots[0].close()
    assert links["b"].receive() is None
    with pytest.raises(LinkClosed):
        send_much(links["b"])  # the first bytes after the end may still go into a buffer
    links["a"].close()
    assert slots[1].receive() is None
    slots[1].close()


@pytest.mark.parametrize(
    "first",
    [
        frame({"token": "0" * 64, "name": "a"}),
        frame({"name": "a"}),
        frame(["token"]),
        frame({"token": None, "name": None}),
        frame({}, length=2**31),
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_a_stranger_is_sent_away_and_the_slot_is_accepted(listener, accepted, first):
    links, accepting = accepted({"a"})
    with socket.create_connection(listener.address) as stranger:
        stranger.sendall(first)
        with contextlib.suppress(OSError):  # closed already, or reset because of bytes that were not read
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "the listener closes the connection without an answer"
    with SlotLink.connect(listener.address, listener.token, "a"):
        accepting.join(10)
        assert links.keys() == {"a"}


def test_a_slot_that_is_not_awaited_or_comes_twice_is_sent_away(listener, accepted):
    links, accepting = accepted({"a", "b"})
    with (
        SlotLink.connect(listener.address, listener.token, "c") as other,
        SlotLink.connect(listener.address, listener.token, "a"),
        SlotLink.connect(listener.address, listener.token, "a") as again,
        SlotLink.connect(listener.address, listener.token, "b"),
    ):
        accepting.join(10)
        assert links.keys() == {"a", "b"}
        assert other.receive() is None
        assert again.receive() is None


def test_a_message_has_a_deadline_as_a_whole(listener, accepted):
    links, accepting = accepted({"a"})
    with SlotLink.connect(listener.address, listener.token, "a") as slot:
        accepting.join(10)
        assert links["a"].receive(within_s=0.05) is None
        slot._socket.sendall(struct.pack(">I", 10) + b"{")
        assert links["a"].receive(within_s=0.05) is None


def test_waiting_ends_when_it_is_given_up_or_the_listener_closes(listener, accepted):
    assert listener.accept({"a"}, gives_up=lambda: True) == {}
    links, accepting = accepted({"a"})
    listener.close()
    accepting.join(10)
    assert not accepting.is_alive()
    assert links == {}
