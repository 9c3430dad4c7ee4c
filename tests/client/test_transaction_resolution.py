"""Transactions that their owner left open: resolved once, whatever arrives late."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.client.transaction_ends import read, write

from headrace.client import connection, transaction_resolution
from headrace.client.transaction_resolution import note_decisions, resolve_transactions
from headrace.client.transactions import Transactions
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol.api_keys import SUPPORTED, ApiKey, VersionRange


def after_the_first_look(monkeypatch, happens):
    """`happens` between the first DescribeTransactions and whatever follows it."""
    real = Transactions.describe

    def describe(self, transactional_ids, **given):
        found = real(self, transactional_ids, **given)
        monkeypatch.setattr(Transactions, "describe", real)
        happens()
        return found

    monkeypatch.setattr(Transactions, "describe", describe)


def test_late_commit_after_describing_an_ongoing_transaction_counts(txn_client, transactions, monkeypatch):
    """The EndTxn of a driver that was killed may lie in a broken connection while others look at its transactions."""
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("a", 0): ["kept"]})
    after_the_first_look(monkeypatch, lambda: transactions.end([identity], commit=True))
    known: dict[str, bool] = {}
    told = resolve_transactions(
        txn_client, ["x"], group_id="readers", topics=["a"], committed=known, transaction_timeout_ms=10_000
    )
    assert (told, known) == ({"x": None}, {"x": True})
    assert read(txn_client, ("a", 0)) == {("a", 0): ["kept"]}


def test_brokers_without_descriptions_leave_transactions_to_their_timeout(txn_client, transactions, monkeypatch):
    """Before Kafka 3.0 no request tells what was decided; each id has that as its outcome, and nothing is guessed."""
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("a", 0): ["open"]})
    none = VersionRange(lowest=99, highest=99)
    monkeypatch.setattr(connection, "SUPPORTED", {**SUPPORTED, ApiKey.DESCRIBE_TRANSACTIONS: none})
    known: dict[str, bool] = {}
    told = resolve_transactions(
        txn_client, ["x"], group_id="readers", topics=["a"], committed=known, transaction_timeout_ms=10_000
    )
    error = told["x"]
    assert isinstance(error, BrokerError)
    assert (error.code, known) == ("unsupported-api", {})
    assert not isinstance(transactions.end([identity], commit=True)["x"], HeadraceError), "it was left alone"
    assert read(txn_client, ("a", 0)) == {("a", 0): ["open"]}


def test_late_commit_after_the_abort_of_a_transaction_is_refused(txn_client, transactions):
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("a", 0): ["not to be"]})
    known: dict[str, bool] = {}
    assert note_decisions(transactions, ["x", "never used"], known) == {}
    assert known == {"x": False}
    late = transactions.end([identity], commit=True)["x"]
    assert isinstance(late, BrokerError)
    assert read(txn_client, ("a", 0)) == {("a", 0): []}


def test_an_id_whose_state_is_not_known_is_not_initialised(txn_client, transactions, monkeypatch):
    """An InitProducerId would wipe out the only trace of its decision."""
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("a", 0): ["kept"]})
    transactions.end([identity], commit=True)
    away = CannotConnect("broker-unreachable", "no answer")
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "describe", lambda _self, tids, **_given: dict.fromkeys(tids, away))
        told = resolve_transactions(txn_client, ["x"], group_id="readers", topics=["a"], transaction_timeout_ms=10_000)
    assert told == {"x": away}
    assert transactions.describe(["x"])["x"].state == "CompleteCommit"


def views_in_turn(monkeypatch, *changed):
    """The next looks at leaders see each of these changes to the real view; later ones the real view."""
    real, left = transaction_resolution.read_leader_views, list(changed)

    def read(*args, **given):
        change = left.pop(0) if left else {}
        return {node: replace(view, **change) for node, view in real(*args, **given).items()}

    monkeypatch.setattr(transaction_resolution, "read_leader_views", read)
    return left


LEADERLESS = {"leaderless": (("a", 0),)}


def test_no_resolution_while_a_written_partition_has_no_leader(txn_client, transactions, monkeypatch, caplog):
    """Its marker would be left out again, and InitProducerId would wipe out the coordinator's decision."""
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("a", 0): ["kept"]})
    transactions.end([identity], commit=True)
    given: dict[str, Any] = {"group_id": "readers", "topics": ["a"], "transaction_timeout_ms": 10_000}
    views_in_turn(monkeypatch, LEADERLESS)
    with pytest.raises(BrokerError, match="a-0") as caught:
        resolve_transactions(txn_client, ["x"], leader_wait_ms=0, **given)
    assert caught.value.retriable
    assert transactions.describe(["x"])["x"].state == "CompleteCommit"
    caplog.clear()
    left = views_in_turn(monkeypatch, LEADERLESS, LEADERLESS)
    with caplog.at_level(logging.WARNING, "headrace.client"):
        assert resolve_transactions(txn_client, ["x"], **given) == {"x": None}
    assert left == []
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["Waiting for a leader of a-0"]
    assert read(txn_client, ("a", 0)) == {("a", 0): ["kept"]}


def test_resolving_is_repeated_when_a_leader_changed_meanwhile(txn_client, transactions, monkeypatch):
    transactions.initialise(["x"])
    given: dict[str, Any] = {"group_id": "readers", "topics": ["a"], "transaction_timeout_ms": 10_000}
    left = views_in_turn(monkeypatch, {}, LEADERLESS, {}, {})
    assert resolve_transactions(txn_client, ["x"], **given) == {"x": None}
    assert left == [], "two rounds of two looks"
    views_in_turn(monkeypatch, *({}, {"hosts": frozenset()}) * transaction_resolution.ROUNDS)
    told = resolve_transactions(txn_client, ["x"], **given)["x"]
    assert isinstance(told, CannotConnect), "leaders that change for ever are a reason to try again later"
