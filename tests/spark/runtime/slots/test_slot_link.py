"""The link of a resident slot: who is let in, what a message may be, and what the end of either side means."""

import contextlib
import json
import socket
import struct
import threading
import time

import pytest
from tests.harness.polling import wait_until

from headrace.spark.runtime.slots.slot_link import LinkClosed, SlotLink, SlotListener


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


# On a cluster.


@pytest.fixture
def serving(listener):
    """The links that a listener on a cluster takes, by name, and those that it asks to keep."""
    taken: dict[str, SlotLink] = {}
    thread = threading.Thread(target=listener.serve, args=(taken.__setitem__,), daemon=True)
    thread.start()
    yield taken
    listener.close()
    thread.join(10)
    for link in taken.values():
        link.close()


def test_a_hello_names_the_site(listener, serving):
    with SlotLink.connect(listener.address, listener.token, "0.1.whole.3", site="s", host="h"):
        wait_until(lambda: "0.1.whole.3" in serving, timeout_s=10)
        hello = serving["0.1.whole.3"].hello
        assert (hello["site"], hello["host"]) == ("s", "h")
        assert "token" not in hello


def test_silent_strangers_do_not_hold_up_a_slot(listener, serving):
    strangers = [socket.create_connection(listener.address) for _ in range(20)]
    with SlotLink.connect(listener.address, listener.token, "slot"):
        wait_until(lambda: "slot" in serving, timeout_s=2)
    for stranger in strangers:
        stranger.close()


def test_too_many_strangers_are_turned_away(listener, serving, monkeypatch):
    monkeypatch.setattr(listener, "_strangers", threading.Semaphore(1))
    with socket.create_connection(listener.address), socket.create_connection(listener.address) as second:
        second.settimeout(4)
        assert second.recv(1) == b"", "closed before its time for a hello is over"
    with contextlib.suppress(OSError), SlotLink.connect(listener.address, "wrong", "slot") as link:
        assert link.receive(within_s=10) is None
    assert serving == {}


def test_beats_keep_a_link_alive_and_are_no_messages(listener, serving):
    with SlotLink.connect(listener.address, listener.token, "slot") as slot, slot.beating():
        wait_until(lambda: "slot" in serving, timeout_s=10)
        messages = serving["slot"].messages(2.5)
        threading.Timer(4, lambda: slot.send({"reports": []})).start()
        assert next(messages) == {"reports": []}


def test_a_silent_end_ends_the_messages(listener, serving):
    with SlotLink.connect(listener.address, listener.token, "slot"):
        wait_until(lambda: "slot" in serving, timeout_s=10)
        began = time.monotonic()
        assert list(serving["slot"].messages(0.5)) == []
        assert 0.4 < time.monotonic() - began < 10
