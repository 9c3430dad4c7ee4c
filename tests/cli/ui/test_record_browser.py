"""The newest records of a partition with gaps, limits and transactions, and bytes in a readable form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.transaction_ends import write
from tests.harness.brokers import broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.ui import record_browser
from headrace.cli.ui.record_browser import LONGEST_HEX, LONGEST_TEXT, read_newest_records, render
from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, produce
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.errors import HeadraceError

broker = broker_fixture({"plain": 1, "txn": 1, "large": 1, "empty": 1}, scope="module")


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers, api_timeout_ms=10_000) as opened:
        yield opened


def identity_of(outcome: TransactionalIdentity | HeadraceError) -> TransactionalIdentity:
    assert isinstance(outcome, TransactionalIdentity)
    return outcome


def values(admin: Admin, topic: str, count: int = 5, **options: object) -> list[bytes | None]:
    found = read_newest_records(admin, topic, 0, count=count, **options)  # type: ignore[arg-type]
    return [record.value for record in found.records]


def test_the_newest_records_come_first_and_older_ones_by_offset(admin: Admin) -> None:
    produce(admin.client, "plain", [PlainRecord(value=b"%d" % number) for number in range(30)])
    found = read_newest_records(admin, "plain", 0, count=5)
    assert [record.value for record in found.records] == [b"29", b"28", b"27", b"26", b"25"]
    assert (found.start, found.end, found.is_cut) == (0, 30, False)
    assert values(admin, "plain", before=25) == [b"24", b"23", b"22", b"21", b"20"]
    assert values(admin, "plain", before=2) == [b"1", b"0"]
    assert values(admin, "plain", before=10**12, count=1) == [b"29"]
    assert values(admin, "plain", before=0) == values(admin, "empty") == []


def test_windows_grow_over_offsets_without_records(admin: Admin) -> None:
    transactions = Transactions(admin.client, transaction_timeout_ms=60_000)
    first = identity_of(transactions.initialise(["gaps"])["gaps"])
    write(admin.client, transactions, first, {("txn", 0): ["kept"]})
    ended = identity_of(transactions.end([first], commit=True)["gaps"])
    for number in range(40):  # aborted records and markers: 80 offsets that nothing is read from
        write(admin.client, transactions, ended, {("txn", 0): [f"aborted {number}"]})
        ended = identity_of(transactions.end([ended], commit=False)["gaps"])
    assert values(admin, "txn", count=2) == [b"kept"]
    uncommitted = values(admin, "txn", count=2, isolation_level="read_uncommitted")
    assert uncommitted == [b"aborted 39", b"aborted 38"]
    # An open transaction: readers of committed records stop before it.
    write(admin.client, transactions, ended, {("txn", 0): ["open"]})
    assert values(admin, "txn", count=1) == [b"kept"]
    assert values(admin, "txn", count=1, isolation_level="read_uncommitted") == [b"open"]
    transactions.end([ended], commit=False)


def test_large_records_are_bounded_and_the_newest_is_shown(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        produce(admin.client, "large", [PlainRecord(value=bytes([number]) * 300_000)])
    monkeypatch.setattr(record_browser, "MOST_BYTES", 700_000)
    found = read_newest_records(admin, "large", 0, count=6)
    assert found.is_cut
    assert [record.value[:1] for record in found.records if record.value] == [b"\5"]


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        ("Zürich\n".encode(), "text", "Zürich\n"),
        (
            b'{"a": 1.10, "b": 123456789012345678901234567890}',
            "json",
            '{"a": 1.10, "b": 123456789012345678901234567890}',
        ),
        (b"[" * 100_000, "text", "[" * LONGEST_TEXT),
        (b"[" * 3000, "text", "[" * 3000),
        (b"{" + b"1" * 3000, "text", "{" + "1" * 3000),
        (b"12", "text", "12"),
        (b"\x00\x00\x00\x00\x0c", "hex", "00 00 00 00 0c"),
        (b"\xff\xfe", "hex", "ff fe"),
        ("\u202eevil".encode(), "hex", "e2 80 ae 65 76 69 6c"),  # it would turn the text of the page around
        (b"\x1b[2J", "hex", "1b 5b 32 4a"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, text: str) -> None:
    shown = render(data)
    assert (shown["kind"], shown["text"]) == (kind, text)
    assert shown["size"] == len(data or b"")


def test_long_bytes_are_cut_at_a_character() -> None:
    shown = render(b"x" + "é".encode() * 100_000)
    assert (len(shown["text"]), shown["is_cut"], shown["text"][-1]) == (LONGEST_TEXT, True, "é")
    assert render(b"\xff" * 1000)["text"] == " ".join(["ff"] * LONGEST_HEX)
    assert render(b"{}", "hex")["text"] == "7b 7d"
    assert render(b"\xff!", "text")["text"] == "\ufffd!"
