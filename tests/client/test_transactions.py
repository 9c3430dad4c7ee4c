"""Many transactions at once: identities, offsets, ends, who is shut out; at transaction versions 2 and 1."""

from __future__ import annotations

import pytest
from tests.client.transaction_ends import read, write

from headrace.client import connection
from headrace.client.fetcher import Fetcher
from headrace.client.group_offsets import fetch_offsets
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_rules import Round
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.protocol.api_keys import SUPPORTED, ApiKey, VersionRange
from headrace.protocol.error_codes import ErrorCode


def test_records_and_offsets_of_many_ids_count_together(txn_client, transactions):
    ids = [f"x-{n}" for n in range(5)]
    known = transactions.initialise(ids)
    for turn in range(3):
        offsets = {}
        for n, tid in enumerate(ids):
            write(txn_client, transactions, known[tid], {("a", n % 2): [f"{turn}.{n}"], ("b", 0): [f"{turn}.{n}"]})
            offsets[known[tid]] = {("a", n % 2): 100 * turn + n}
        assert not any(f"{turn}." in value for value in read(txn_client, ("b", 0))["b", 0])
        told = transactions.commit_offsets("readers", offsets, member_id="", member_epoch=-1)
        assert told == dict.fromkeys(ids)
        ended = transactions.end(offsets, commit=True)
        assert not [outcome for outcome in ended.values() if isinstance(outcome, HeadraceError)]
        known = ended if transactions.renews_identities else transactions.initialise(ids)
        committed = fetch_offsets(txn_client, "readers", [("a", 0), ("a", 1)], require_stable=True)
        assert committed == {("a", 0): 100 * turn + 4, ("a", 1): 100 * turn + 3}
    rows = read(txn_client, ("a", 0), ("a", 1), ("b", 0))
    assert sorted(rows["b", 0]) == sorted(f"{turn}.{n}" for turn in range(3) for n in range(5))
    assert sorted(rows["a", 0] + rows["a", 1]) == sorted(rows["b", 0])


def test_brokers_that_look_up_one_key_at_a_time_coordinate_many_ids(txn_client, transactions, monkeypatch):
    """Before Kafka 3.0: FindCoordinator names one key, and its answer does not repeat it."""
    monkeypatch.setattr(
        connection, "SUPPORTED", {**SUPPORTED, ApiKey.FIND_COORDINATOR: VersionRange(lowest=0, highest=3)}
    )
    ids = ["x-0", "x-1", "x-2"]
    known = transactions.initialise(ids, timeout_ms=20_000)
    assert {tid: identity.transactional_id for tid, identity in known.items()} == {tid: tid for tid in ids}
    assert set(transactions.coordinators(ids, timeout_ms=20_000)) == set(ids)


def test_aborted_records_are_not_read_and_older_epochs_are_fenced(txn_client, transactions):
    old = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, old, {("b", 0): ["lost"]})
    transactions.commit_offsets("readers", {old: {("a", 0): 7}}, member_id="", member_epoch=-1)
    new = transactions.initialise(["x"])["x"]
    assert (new.producer_id, new.producer_epoch) > (old.producer_id, old.producer_epoch)
    assert read(txn_client, ("b", 0)) == {("b", 0): []}
    assert fetch_offsets(txn_client, "readers", [("a", 0)], require_stable=True) == {("a", 0): -1}
    with pytest.raises(Fenced):
        write(txn_client, transactions, old, {("b", 0): ["straggler"]})
    for outcome in (
        transactions.commit_offsets("readers", {old: {("a", 0): 8}}, member_id="", member_epoch=-1)["x"],
        transactions.end([old], commit=True)["x"],
    ):
        assert isinstance(outcome, Fenced)
        assert outcome.facts["transaction"] == "fenced"
    write(txn_client, transactions, new, {("b", 0): ["kept"]})
    transactions.end([new], commit=True)
    assert read(txn_client, ("b", 0)) == {("b", 0): ["kept"]}


def test_second_writer_continues_the_sequence_of_the_first(txn_client, transactions):
    identity = transactions.initialise(["x"])["x"]
    first = write(txn_client, transactions, identity, {("b", 0): ["1", "2"]})
    assert first.next_sequences() == {("b", 0): 2}
    write(txn_client, transactions, identity, {("b", 0): ["3"]}, sequences=first.next_sequences())
    transactions.end([identity], commit=True)
    assert read(txn_client, ("b", 0)) == {("b", 0): ["1", "2", "3"]}


def test_one_refusal_leaves_the_others_alone(txn_client, transactions):
    known = transactions.initialise(["x", "y"])
    stale = known["x"]
    fresh = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, known["y"], {("b", 0): ["y"]})
    ended = transactions.end([stale, known["y"]], commit=True)
    assert isinstance(ended["x"], Fenced)
    assert isinstance(ended["y"], TransactionalIdentity)
    assert read(txn_client, ("b", 0)) == {("b", 0): ["y"]}
    write(txn_client, transactions, fresh, {("b", 0): ["x"]})
    assert isinstance(transactions.end([fresh], commit=True)["x"], TransactionalIdentity)


def test_an_end_that_nobody_heard_is_sent_again(txn_client, transactions, txn_broker):
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("b", 0): ["once"]})
    first = transactions.end([identity], commit=True)["x"]
    again = transactions.end([identity], commit=True)["x"]
    assert again == first
    assert read(txn_client, ("b", 0)) == {("b", 0): ["once"]}


def test_a_broker_that_is_away_makes_the_outcome_unknown(txn_client, transactions, txn_broker):
    identity = transactions.initialise(["x"])["x"]
    write(txn_client, transactions, identity, {("b", 0): ["?"]})
    txn_broker.kill()
    outcome = transactions.end([identity], commit=True, timeout_ms=300)["x"]
    assert isinstance(outcome, CannotConnect)


# The rules alone.


def test_a_round_ends_with_an_outcome_for_each():
    round_: Round[int] = Round(what="to commit", api="EndTxn", ids=("a", "b", "c", "d"))
    round_.apply_answer("a", ErrorCode.none, 1)
    round_.apply_answer("b", ErrorCode.concurrent_transactions, 2)
    round_.apply_answer("c", ErrorCode.producer_fenced, 3)
    round_.note_disconnect("d")
    assert round_.due == ("b", "d")
    assert round_.moved == {"d"}
    round_.apply_answer("d", ErrorCode.not_coordinator, 4)
    round_.note_disconnect("d")
    round_.give_up(CannotConnect("broker-unreachable", "no answer"))
    assert round_.due == ()
    assert round_.outcomes["a"] == 1
    assert isinstance(round_.outcomes["b"], BrokerError)
    assert isinstance(round_.outcomes["c"], Fenced)
    assert isinstance(round_.outcomes["d"], CannotConnect)


def test_a_reader_that_waits_for_a_transaction_is_told_which_one(txn_client, transactions):
    identity = transactions.initialise(["flights-x-0"])["flights-x-0"]
    write(txn_client, transactions, identity, {("a", 1): ["open"]})
    with pytest.raises(
        BrokerError, match="nothing is returned from 0 on: a transaction of flights-x-0 is open"
    ) as caught:
        list(Fetcher(txn_client).fetch_ranges({("a", 1): (0, 1)}, timeout_ms=200))
    assert caught.value.code == "range-unreachable"
    assert caught.value.retriable
    assert caught.value.facts["producer_id"] == identity.producer_id
    assert (
        f"producer id {identity.producer_id}, epoch {identity.producer_epoch}; its coordinator has it as Ongoing"
        in (caught.value.message)
    )
    assert caught.value.fix.startswith("Wait: ")
