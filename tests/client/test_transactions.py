"""Many transactions at once: identities, offsets, ends, who is shut out; at transaction versions 2 and 1."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client import transaction_resolution
from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender, TransactionalIdentity
from headrace.client.transaction_resolution import note_decisions, resolve_transactions
from headrace.client.transaction_rules import Round, first_refusal, ruling
from headrace.client.transactions import Transactions, transaction_version
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, encode_batch


@pytest.fixture(params=[2, 1], ids=["version 2", "version 1"])
def version(request):
    return request.param


@pytest.fixture
def broker(version):
    with EmbeddedBroker({"a": 2, "b": 1}) as running:
        if version != 2:
            with Admin(running.bootstrap_servers) as admin:
                admin.update_features({"transaction.version": version}, upgrade_type="safe_downgrade")
        yield running


@pytest.fixture
def client(broker):
    with NetworkClient(broker.bootstrap_servers, api_timeout_ms=20_000) as made:
        yield made


@pytest.fixture
def transactions(client, version):
    assert transaction_version(client) == version
    return Transactions(client, transaction_timeout_ms=10_000, version=version)


def write(client, transactions, identity, rows, **queue):
    """Rows by (topic, partition), as one who got the identity told would write them."""
    register = None
    if not transactions.renews_identities:
        register = lambda partitions: transactions.add_partitions(identity, partitions)  # noqa: E731
    produced = Sender(client, identity=identity, register=register, **queue)
    for where, values in rows.items():
        produced.add(*where, encode_batch([PlainRecord(value=value.encode()) for value in values]))
    produced.flush()
    return produced


def read(client, *wheres):
    """What a reader of committed records gets up to the last stable offset, and where that is."""
    with Admin(client) as admin:
        ends = admin.list_offsets(dict.fromkeys(wheres, "latest"), isolation_level="read_committed")
    found = {where: [] for where in wheres}
    for batch in Fetcher(client).fetch_ranges({where: (0, end.offset) for where, end in ends.items()}):
        found[batch.topic, batch.partition] += [v.decode() for v in batch.table.column("value").to_pylist()]
    return found


def test_records_and_offsets_of_many_ids_count_together(client, transactions):
    ids = [f"x-{n}" for n in range(5)]
    known = transactions.initialise(ids)
    for turn in range(3):
        offsets = {}
        for n, tid in enumerate(ids):
            write(client, transactions, known[tid], {("a", n % 2): [f"{turn}.{n}"], ("b", 0): [f"{turn}.{n}"]})
            offsets[known[tid]] = {("a", n % 2): 100 * turn + n}
        assert not any(f"{turn}." in value for value in read(client, ("b", 0))["b", 0])
        told = transactions.commit_offsets("readers", offsets, member_id="", member_epoch=-1)
        assert told == dict.fromkeys(ids)
        ended = transactions.end(offsets, commit=True)
        assert not [outcome for outcome in ended.values() if isinstance(outcome, HeadraceError)]
        known = ended if transactions.renews_identities else transactions.initialise(ids)
        committed = fetch_offsets(client, "readers", [("a", 0), ("a", 1)], require_stable=True)
        assert committed == {("a", 0): 100 * turn + 4, ("a", 1): 100 * turn + 3}
    rows = read(client, ("a", 0), ("a", 1), ("b", 0))
    assert sorted(rows["b", 0]) == sorted(f"{turn}.{n}" for turn in range(3) for n in range(5))
    assert sorted(rows["a", 0] + rows["a", 1]) == sorted(rows["b", 0])


def test_what_is_aborted_is_not_read_and_an_older_identity_is_shut_out(client, transactions):
    old = transactions.initialise(["x"])["x"]
    write(client, transactions, old, {("b", 0): ["lost"]})
    transactions.commit_offsets("readers", {old: {("a", 0): 7}}, member_id="", member_epoch=-1)
    new = transactions.initialise(["x"])["x"]
    assert (new.producer_id, new.producer_epoch) > (old.producer_id, old.producer_epoch)
    assert read(client, ("b", 0)) == {("b", 0): []}
    assert fetch_offsets(client, "readers", [("a", 0)], require_stable=True) == {("a", 0): -1}
    with pytest.raises(Fenced):
        write(client, transactions, old, {("b", 0): ["straggler"]})
    for outcome in (
        transactions.commit_offsets("readers", {old: {("a", 0): 8}}, member_id="", member_epoch=-1)["x"],
        transactions.end([old], commit=True)["x"],
    ):
        assert isinstance(outcome, Fenced)
        assert outcome.facts["transaction"] == "fenced"
    write(client, transactions, new, {("b", 0): ["kept"]})
    transactions.end([new], commit=True)
    assert read(client, ("b", 0)) == {("b", 0): ["kept"]}


def test_a_second_writer_with_the_same_identity_goes_on_where_the_first_left_off(client, transactions):
    identity = transactions.initialise(["x"])["x"]
    first = write(client, transactions, identity, {("b", 0): ["1", "2"]})
    assert first.next_sequences() == {("b", 0): 2}
    write(client, transactions, identity, {("b", 0): ["3"]}, sequences=first.next_sequences())
    transactions.end([identity], commit=True)
    assert read(client, ("b", 0)) == {("b", 0): ["1", "2", "3"]}


def test_one_refusal_leaves_the_others_alone(client, transactions):
    known = transactions.initialise(["x", "y"])
    stale = known["x"]
    fresh = transactions.initialise(["x"])["x"]
    write(client, transactions, known["y"], {("b", 0): ["y"]})
    ended = transactions.end([stale, known["y"]], commit=True)
    assert isinstance(ended["x"], Fenced)
    assert isinstance(ended["y"], TransactionalIdentity)
    assert read(client, ("b", 0)) == {("b", 0): ["y"]}
    write(client, transactions, fresh, {("b", 0): ["x"]})
    assert isinstance(transactions.end([fresh], commit=True)["x"], TransactionalIdentity)


def test_an_end_that_nobody_heard_is_sent_again(client, transactions, broker):
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("b", 0): ["once"]})
    first = transactions.end([identity], commit=True)["x"]
    again = transactions.end([identity], commit=True)["x"]
    assert again == first
    assert read(client, ("b", 0)) == {("b", 0): ["once"]}


def test_a_broker_that_is_away_makes_the_outcome_unknown(client, transactions, broker):
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("b", 0): ["?"]})
    broker.kill()
    outcome = transactions.end([identity], commit=True, timeout_ms=300)["x"]
    assert isinstance(outcome, CannotConnect)


# The rules alone.


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("none", "done"),
        ("concurrent_transactions", "again"),
        ("coordinator_load_in_progress", "again"),
        ("not_coordinator", "moved"),
        ("producer_fenced", "fenced"),
        ("invalid_producer_epoch", "fenced"),
        ("stale_member_epoch", "abortable"),
        ("transaction_abortable", "abortable"),
        ("invalid_txn_state", "fatal"),
        ("transactional_id_authorization_failed", "fatal"),
    ],
)
def test_what_a_code_means(code, expected):
    assert ruling(ErrorCode[code]) == expected


def test_what_is_final_decides_about_an_answer():
    none, again, final = ErrorCode.none, ErrorCode.concurrent_transactions, ErrorCode.stale_member_epoch
    assert first_refusal([none, none]) == none
    assert first_refusal([none, again, final]) == final
    assert first_refusal([none, again, none]) == again


def test_a_round_ends_with_an_outcome_for_each():
    round_ = Round(what="to commit", api="EndTxn", ids=("a", "b", "c", "d"))
    round_.answered("a", ErrorCode.none, 1)
    round_.answered("b", ErrorCode.concurrent_transactions, 2)
    round_.answered("c", ErrorCode.producer_fenced, 3)
    round_.unheard("d")
    assert round_.due == ("b", "d")
    assert round_.moved == {"d"}
    round_.answered("d", ErrorCode.not_coordinator, 4)
    round_.unheard("d")
    round_.give_up(CannotConnect("broker-unreachable", "no answer"))
    assert round_.due == ()
    assert round_.outcomes["a"] == 1
    assert isinstance(round_.outcomes["b"], BrokerError)
    assert isinstance(round_.outcomes["c"], Fenced)
    assert isinstance(round_.outcomes["d"], CannotConnect)


def test_who_may_not_write_for_an_id_is_told_what_to_grant():
    config = {"authorizer.class.name": "on", "super.users": "User:root"}
    with (
        EmbeddedBroker(config=config) as broker,
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=60_000) as client,
    ):
        refused = Transactions(client).initialise(["delays-x-0"])["delays-x-0"]
    assert isinstance(refused, BrokerError)
    assert refused.code == "not-authorized"
    assert "WRITE on the transactional id" in refused.fix


def after_the_first_look(monkeypatch, happens):
    """`happens` between the first DescribeTransactions and whatever follows it."""
    real = Transactions.describe

    def describe(self, transactional_ids, **given):
        found = real(self, transactional_ids, **given)
        monkeypatch.setattr(Transactions, "describe", real)
        happens()
        return found

    monkeypatch.setattr(Transactions, "describe", describe)


def test_a_commit_that_comes_behind_the_look_at_an_ongoing_transaction_counts(client, transactions, monkeypatch):
    """The EndTxn of a driver that was killed may lie in a broken connection while others look at its transactions."""
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("a", 0): ["kept"]})
    after_the_first_look(monkeypatch, lambda: transactions.end([identity], commit=True))
    known = {}
    told = resolve_transactions(
        client, ["x"], group_id="readers", topics=["a"], committed=known, transaction_timeout_ms=10_000
    )
    assert (told, known) == ({"x": None}, {"x": True})
    assert read(client, ("a", 0)) == {("a", 0): ["kept"]}


def test_a_commit_that_comes_behind_the_abort_of_an_ongoing_transaction_is_refused(client, transactions):
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("a", 0): ["not to be"]})
    known = {}
    assert note_decisions(transactions, ["x", "never used"], known) == {}
    assert known == {"x": False}
    late = transactions.end([identity], commit=True)["x"]
    assert isinstance(late, BrokerError)
    assert read(client, ("a", 0)) == {("a", 0): []}


def test_an_id_whose_state_is_not_known_is_not_initialised(client, transactions, monkeypatch):
    """An InitProducerId would wipe out the only trace of its decision."""
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("a", 0): ["kept"]})
    transactions.end([identity], commit=True)
    away = CannotConnect("broker-unreachable", "no answer")
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "describe", lambda _self, tids, **_given: dict.fromkeys(tids, away))
        told = resolve_transactions(client, ["x"], group_id="readers", topics=["a"], transaction_timeout_ms=10_000)
    assert told == {"x": away}
    assert transactions.describe(["x"])["x"].state == "CompleteCommit"


def test_a_reader_that_waits_for_a_transaction_is_told_which_one(client, transactions):
    identity = transactions.initialise(["flights-x-0"])["flights-x-0"]
    write(client, transactions, identity, {("a", 1): ["open"]})
    with pytest.raises(
        BrokerError, match="nothing is returned from 0 on: a transaction of flights-x-0 is open"
    ) as caught:
        list(Fetcher(client).fetch_ranges({("a", 1): (0, 1)}, timeout_ms=200))
    assert caught.value.code == "range-unreachable"
    assert caught.value.retriable
    assert caught.value.facts["producer_id"] == identity.producer_id
    assert (
        f"producer id {identity.producer_id}, epoch {identity.producer_epoch}; its coordinator has it as Ongoing"
        in (caught.value.message)
    )
    assert caught.value.fix.startswith("Wait: ")


def test_an_offset_fetch_that_waits_for_a_transaction_names_it(client, transactions):
    identity = transactions.initialise(["flights-x-0"])["flights-x-0"]
    told = transactions.commit_offsets("readers", {identity: {("a", 0): 5}}, member_id="", member_epoch=-1)
    assert told == {"flights-x-0": None}
    with pytest.raises(BrokerError, match="the offset fetch of readers with UNSTABLE_OFFSET_COMMIT") as caught:
        fetch_offsets(client, "readers", [("a", 0)], require_stable=True, timeout_ms=200)
    assert caught.value.code == "offsets-unstable"
    assert "a transaction of flights-x-0 is open there since offset" in caught.value.facts["why"]
    assert caught.value.facts["transactional_id"] == "flights-x-0"
    assert caught.value.fix.startswith("Wait: ")


def views_in_turn(monkeypatch, *changed):
    """The next looks at leaders see each of these changes to the real view; later ones the real view."""
    real, left = transaction_resolution.read_leader_views, list(changed)

    def read(*args, **given):
        change = left.pop(0) if left else {}
        return {node: replace(view, **change) for node, view in real(*args, **given).items()}

    monkeypatch.setattr(transaction_resolution, "read_leader_views", read)
    return left


LEADERLESS = {"leaderless": (("a", 0),)}


def test_nothing_is_resolved_while_a_written_partition_has_no_leader(client, transactions, monkeypatch, caplog):
    """Its marker would be left out again, and InitProducerId would wipe out the coordinator's decision."""
    identity = transactions.initialise(["x"])["x"]
    write(client, transactions, identity, {("a", 0): ["kept"]})
    transactions.end([identity], commit=True)
    given = {"group_id": "readers", "topics": ["a"], "transaction_timeout_ms": 10_000}
    views_in_turn(monkeypatch, LEADERLESS)
    with pytest.raises(BrokerError, match="a-0") as caught:
        resolve_transactions(client, ["x"], leader_wait_ms=0, **given)
    assert caught.value.retriable
    assert transactions.describe(["x"])["x"].state == "CompleteCommit"
    caplog.clear()
    left = views_in_turn(monkeypatch, LEADERLESS, LEADERLESS)
    with caplog.at_level(logging.WARNING, "headrace.client"):
        assert resolve_transactions(client, ["x"], **given) == {"x": None}
    assert left == []
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["Waiting for a leader of a-0"]
    assert read(client, ("a", 0)) == {("a", 0): ["kept"]}


def test_resolving_is_repeated_when_a_leader_changed_meanwhile(client, transactions, monkeypatch):
    transactions.initialise(["x"])
    given = {"group_id": "readers", "topics": ["a"], "transaction_timeout_ms": 10_000}
    left = views_in_turn(monkeypatch, {}, LEADERLESS, {}, {})
    assert resolve_transactions(client, ["x"], **given) == {"x": None}
    assert left == [], "two rounds of two looks"
    views_in_turn(monkeypatch, *({}, {"hosts": frozenset()}) * transaction_resolution.ROUNDS)
    told = resolve_transactions(client, ["x"], **given)["x"]
    assert isinstance(told, CannotConnect), "leaders that change for ever are a reason to try again later"
