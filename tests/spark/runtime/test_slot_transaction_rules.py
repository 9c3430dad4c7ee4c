"""The transactions of slots against a scripted cluster: which identities are used, kept, taken away, settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.client.sender import TransactionalIdentity
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.slots import slot_transactions
from headrace.spark.runtime.slots.slot_transactions import SlotTransactions
from headrace.spark.runtime.stores.store import BatchKey

AWAY = CannotConnect("broker-unreachable", "away")
REFUSED = BrokerError("broker-refused", "no")
Offsets = dict[int, dict[tuple[str, int], int]]


@dataclass
class Cluster:
    """Stands for the client, its Transactions and `settle`: each identity it gives has an epoch of its own.

    `refuses`: (step, transactional id) → the error of its next time. `calls`: what was asked for, in order.
    """

    version: int = 2
    reconnects: int = 0
    epoch: int = 0
    refuses: dict[tuple[str, str], HeadraceError] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    reconnects_while_initialising: bool = False
    unchecked: set[str] = field(default_factory=set)
    asked_ahead: list[frozenset[str]] = field(default_factory=list)  # what was unchecked when questions were sent
    suspicious: list[str | None] = field(default_factory=list)  # what the next checks of markers find

    # Stands for MarkerCheck.

    def marker_check(self, client: object, topics: tuple[str, ...], group_id: str) -> Cluster:
        assert (client, topics, group_id) == (self, ("out",), "delays")
        return self

    def begin(self, coordinators: Mapping[str, int]) -> None:
        assert not self.unchecked & coordinators.keys(), "an id is used again without a check"
        assert set(coordinators.values()) <= {7}

    def ask(self) -> None:
        self.asked_ahead.append(frozenset(self.unchecked))

    def check(self, coordinators: Mapping[str, int], *, needed: Iterable[str], timeout_ms: float) -> str | None:
        assert (coordinators.keys(), timeout_ms) == (self.unchecked, 5000)
        self.calls.append(("check", sorted(needed)))
        if reason := self.suspicious.pop(0) if self.suspicious else None:
            return reason
        self.unchecked.clear()
        return None

    def clear(self) -> None:
        self.unchecked.clear()

    def coordinators(self, tids: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(tids, 7)

    def transactions(self, client: object, *, transaction_timeout_ms: int, version: int) -> Cluster:
        assert (client, transaction_timeout_ms, version) == (self, 700, self.version)
        self.calls.append(("transactions",))
        return self

    @property
    def renews_identities(self) -> bool:
        return self.version >= 2

    def answer(self, step: str, tid: str, otherwise: Any) -> Any:
        return self.refuses.pop((step, tid), otherwise)

    def fresh(self, tid: str) -> TransactionalIdentity:
        self.epoch += 1
        return TransactionalIdentity(transactional_id=tid, producer_id=50, producer_epoch=self.epoch)

    def initialise(self, tids: Iterable[str]) -> dict[str, Any]:
        tids = list(tids)
        self.calls.append(("initialise", tids))
        self.reconnects += self.reconnects_while_initialising
        return {tid: self.answer("initialise", tid, self.fresh(tid)) for tid in tids}

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TransactionalIdentity, Any], **given: Any
    ) -> dict[str, HeadraceError | None]:
        found = {identity.transactional_id: (identity.producer_epoch, at) for identity, at in offsets.items()}
        self.calls.append(("commit_offsets", group_id, found, given))
        return {tid: self.answer("commit_offsets", tid, None) for tid in found}

    def end(self, ended: Iterable[Any], *, commit: bool | None = None, **given: Any) -> dict[str, Any]:
        """EndTxn of identities; MarkerCheck's `end` of ids."""
        identities = list(ended)
        if commit is None:
            self.unchecked |= set(identities)
            return {}
        assert {each.producer_id for each in identities} <= {50}
        tids = [each.transactional_id for each in identities]
        self.calls.append(("end", [(each.transactional_id, each.producer_epoch) for each in identities], commit, given))
        if isinstance(error := self.refuses.pop(("end", "*"), None), HeadraceError):
            raise error
        return {tid: self.answer("end", tid, self.fresh(tid)) for tid in tids}

    def settle(self, client: object, tids: Iterable[str], **given: Any) -> dict[str, HeadraceError | None]:
        assert client is self
        tids = list(tids)
        self.calls.append(("settle", tids, {**given, "committed": dict(given["committed"])}))
        return {tid: self.answer("settle", tid, None) for tid in tids}

    def steps(self) -> list[str]:
        """The names of what was asked for since the last look."""
        names = [call[0] for call in self.calls]
        self.calls.clear()
        return names


class Driver:
    """SlotTransactions on a scripted cluster, and which ids it announced and forgot."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.announced: list[list[str]] = []
        self.forgotten: list[list[str]] = []
        self.transactions = SlotTransactions(
            cluster,  # type: ignore[arg-type]
            group_id="delays",
            incarnation="m1",
            subtopology_id="by-id",
            topics=("out",),
            timeout_ms=700,
            announce=self.announced.append,
            forget=self.forgotten.append,
        )

    def begin(self, *slots: int) -> tuple[SlotPlan, ...]:
        return self.transactions.begin(tuple(SlotPlan(slot=slot, tasks=()) for slot in slots))

    def commit(
        self, slots: tuple[SlotPlan, ...], *, only: tuple[int, ...] | None = None, metadata: str = "note"
    ) -> dict[int, HeadraceError | None]:
        wanted = [slot.slot for slot in slots] if only is None else only
        plan = MicroBatchPlan(
            subtopology_id="by-id",
            batch=BatchKey(incarnation="m1", batch_id=0),
            member_id="member",
            member_epoch=5,
            bootstrap_servers="",
            state_dir="",
            slots=slots,
            topic_ids={},
        )
        return self.transactions.commit(plan, {slot: {("in", slot): 9} for slot in wanted}, metadata=metadata)


Started = Callable[..., Driver]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    def start(**given: Any) -> Driver:
        cluster = Cluster(**given)
        monkeypatch.setattr(slot_transactions, "Transactions", cluster.transactions)
        monkeypatch.setattr(slot_transactions, "transaction_version", lambda client: client.version)
        monkeypatch.setattr(slot_transactions, "resolve_transactions", cluster.settle)
        monkeypatch.setattr(slot_transactions, "MarkerCheck", cluster.marker_check)
        return Driver(cluster)

    return start


def identities(slots: Iterable[SlotPlan]) -> list[tuple[str, int, int]]:
    return [(slot.transactional_id, slot.producer_id, slot.producer_epoch) for slot in slots]


def test_ids_are_announced_and_used_in_turn(started: Started) -> None:
    driver = started()
    assert driver.transactions.version == 0
    first = driver.begin(0, 4)
    assert identities(first) == [("delays-m1-by-id-0-0", 50, 1), ("delays-m1-by-id-4-2", 50, 2)]
    assert [slot.slot for slot in first] == [0, 4]
    assert driver.announced == [["delays-m1-by-id-0-0", "delays-m1-by-id-4-2"]]
    assert driver.transactions.version == 2
    assert driver.commit(first) == {0: None, 4: None}
    second = driver.begin(0, 4)
    assert identities(second) == [("delays-m1-by-id-0-1", 50, 5), ("delays-m1-by-id-4-3", 50, 6)]
    driver.commit(second)
    assert identities(driver.begin(0, 4)) == [("delays-m1-by-id-0-0", 50, 3), ("delays-m1-by-id-4-2", 50, 4)]
    assert len(driver.announced) == 2, "the identity of the last EndTxn is used"
    assert driver.forgotten == []
    assert driver.cluster.steps().count("transactions") == 1


def test_without_renewed_identities_each_transaction_asks_for_its_own(started: Started) -> None:
    driver = started(version=1)
    for number in (0, 1, 0):
        slots = driver.begin(0)
        assert slots[0].transactional_id == f"delays-m1-by-id-0-{number}"
        driver.commit(slots)
    assert len(driver.announced) == 3


def test_a_commit_sends_offsets_and_ends_the_transactions_of_its_slots(started: Started) -> None:
    driver = started()
    slots = driver.begin(0, 1, 2)
    driver.cluster.calls.clear()
    assert driver.commit(slots, only=(0, 2)) == {0: None, 2: None}
    a, c = slots[0].transactional_id, slots[2].transactional_id
    given = {"member_id": "member", "member_epoch": 5, "metadata": "note"}
    assert driver.cluster.calls == [
        ("commit_offsets", "delays", {a: (1, {("in", 0): 9}), c: (3, {("in", 2): 9})}, given),
        ("end", [(a, 1), (c, 3)], True, {}),
    ]


@pytest.mark.parametrize("step", ["commit_offsets", "end"])
def test_a_refused_slot_is_in_doubt_and_the_others_are_committed(started: Started, step: str) -> None:
    driver = started()
    slots = driver.begin(0, 1)
    a, b = (slot.transactional_id for slot in slots)
    driver.cluster.refuses[step, b] = REFUSED
    driver.cluster.calls.clear()
    assert driver.commit(slots) == {0: None, 1: REFUSED}
    assert [tid for tid, _ in driver.cluster.calls[1][1]] == ([a] if step == "commit_offsets" else [a, b])
    driver.cluster.calls.clear()
    driver.transactions.resolve_unknown()
    ((name, tids, given),) = driver.cluster.calls
    prefix = "delays-m1-by-id-"
    assert (name, tids) == ("settle", [f"{prefix}0-1", f"{prefix}0-0", f"{prefix}1-2", f"{prefix}1-3"])
    assert given == {"group_id": "delays", "topics": ("out",), "committed": {a: True}, "transaction_timeout_ms": 700}
    assert driver.forgotten == [tids]
    driver.cluster.calls.clear()
    driver.transactions.resolve_unknown()
    assert driver.cluster.calls == [], "one doubt, one settling"
    assert [slot.transactional_id for slot in driver.begin(0, 1)] == [f"{prefix}0-4", f"{prefix}1-6"]


def test_the_outcome_of_a_transaction_counts_until_its_id_is_used_again(started: Started) -> None:
    driver = started()
    first = driver.begin(0)
    driver.commit(first)
    second = driver.begin(0)
    driver.commit(second)
    driver.begin(0)
    driver.transactions.mark_unknown()
    driver.cluster.calls.clear()
    driver.transactions.resolve_unknown()
    assert driver.cluster.calls[0][2]["committed"] == {second[0].transactional_id: True}


def test_renewing_one_slot_keeps_the_known_outcomes_of_the_others(started: Started) -> None:
    driver = started()
    slots = driver.begin(0, 1)
    driver.commit(slots, only=(0,))
    driver.transactions.renew(slots[1:])
    driver.transactions.mark_unknown()
    driver.cluster.calls.clear()
    driver.transactions.resolve_unknown()
    a, b = (slot.transactional_id for slot in slots)
    assert driver.cluster.calls[0][2]["committed"] == {a: True, b: False}


@pytest.mark.parametrize("how", ["doubt", "reconnect"])
def test_a_broker_that_was_away_is_a_doubt_once(started: Started, how: str) -> None:
    driver = started(reconnects=3)
    driver.transactions.resolve_unknown()
    assert driver.cluster.steps() == []
    driver.begin(0)
    driver.cluster.calls.clear()
    if how == "doubt":
        driver.transactions.mark_unknown()
    else:
        driver.cluster.reconnects += 1
    again = driver.begin(0)
    assert driver.cluster.steps() == ["settle", "initialise"]
    assert again[0].transactional_id == "delays-m1-by-id-0-2"
    driver.begin(0)
    assert driver.cluster.steps() == []


def test_a_doubt_before_the_first_batch_has_nothing_to_settle(started: Started) -> None:
    driver = started()
    driver.transactions.mark_unknown()
    driver.transactions.resolve_unknown()
    assert (driver.cluster.steps(), driver.forgotten) == ([], [])


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [
        (AWAY, True),
        (BrokerError("broker-refused", "later", retriable=True), True),
        (BrokerError("broker-refused", "never", retriable=False), False),
        (Fenced("member-fenced", "other"), False),
    ],
)
def test_a_settling_is_repeated_where_another_try_helps(
    started: Started, error: HeadraceError, is_raised: bool
) -> None:
    driver = started()
    slots = driver.begin(0)
    driver.commit(slots)
    tid = slots[0].transactional_id
    driver.transactions.mark_unknown()
    driver.cluster.refuses["settle", tid] = error
    driver.cluster.calls.clear()
    if is_raised:
        with pytest.raises(type(error)):
            driver.transactions.resolve_unknown()
        assert driver.forgotten == []
        driver.transactions.resolve_unknown()
        assert [call[2]["committed"] for call in driver.cluster.calls] == [{tid: True}] * 2, "it knows what it knew"
    else:
        driver.transactions.resolve_unknown()
    assert len(driver.forgotten) == 1
    assert driver.begin(0)[0].transactional_id == "delays-m1-by-id-0-2"


def test_renewed_slots_keep_their_ids_with_fresh_identities(started: Started) -> None:
    driver = started()
    first = driver.begin(0, 1)
    driver.cluster.calls.clear()
    driver.transactions.renew(first[1:])
    assert driver.cluster.calls == [("initialise", [first[1].transactional_id])]
    assert driver.announced[-1] == [first[1].transactional_id]
    again = driver.begin(0, 1)
    assert again[0] == first[0]
    assert identities(again)[1] == (first[1].transactional_id, 50, 3)
    driver.cluster.calls.clear()
    driver.transactions.renew([])
    assert driver.cluster.calls == []


def test_a_doubt_that_renewing_finds_is_settled(started: Started) -> None:
    driver = started()
    first = driver.begin(0)
    driver.cluster.calls.clear()
    driver.cluster.reconnects_while_initialising = True
    driver.transactions.renew(first)
    assert driver.cluster.steps() == ["initialise", "settle"]
    driver.cluster.reconnects_while_initialising = False
    driver.transactions.mark_unknown()
    driver.begin(0)
    driver.transactions.mark_unknown()
    driver.cluster.calls.clear()
    driver.transactions.renew(first)
    assert driver.cluster.steps() == ["settle"], "settling asks for identities itself"


def test_a_slot_without_an_identity_is_not_stamped(started: Started) -> None:
    driver = started()
    prefix = "delays-m1-by-id-"
    driver.cluster.refuses["initialise", f"{prefix}0-0"] = REFUSED
    with pytest.raises(BrokerError):
        driver.begin(0, 1)
    driver.cluster.calls.clear()
    slots = driver.begin(0, 1)
    assert driver.cluster.calls == [("initialise", [f"{prefix}0-0"])], "the other one has its own"
    driver.cluster.refuses["initialise", f"{prefix}0-0"] = REFUSED
    with pytest.raises(BrokerError):
        driver.transactions.renew(slots)
    driver.cluster.calls.clear()
    driver.begin(0)
    assert driver.cluster.calls == [("initialise", [f"{prefix}0-0"])], "the old identity is gone"


def test_an_abort_is_a_last_word(started: Started) -> None:
    driver = started()
    driver.transactions.abort([SlotPlan(slot=0, tasks=())])
    driver.transactions.abort([SlotPlan(slot=0, tasks=(), transactional_id="x")])
    assert driver.cluster.steps() == [], "nothing was begun"
    slots = driver.begin(0, 1)
    a, b = (slot.transactional_id for slot in slots)
    driver.cluster.calls.clear()
    driver.transactions.abort([*slots, SlotPlan(slot=2, tasks=())])
    assert driver.cluster.calls == [("end", [(a, 1), (b, 2)], False, {"timeout_ms": 2000})]
    driver.cluster.calls.clear()
    driver.transactions.abort([SlotPlan(slot=2, tasks=())])
    assert driver.cluster.calls == []
    driver.cluster.refuses["end", "*"] = AWAY
    driver.transactions.abort(slots)
    driver.cluster.calls.clear()
    driver.begin(0, 1)
    asked = [("check", [a, b]), ("initialise", [a, b])]
    assert driver.cluster.calls == asked, "the identity of what was aborted is not used again"


# Markers that a broker may have left out.


def test_an_id_is_checked_before_it_is_used_again(started: Started) -> None:
    driver = started()
    first, second = driver.begin(0), None
    driver.commit(first)
    driver.cluster.calls.clear()
    second = driver.begin(0)
    assert "check" not in driver.cluster.steps(), "the other id of the slot was not used yet"
    driver.commit(second)
    driver.cluster.calls.clear()
    driver.begin(0)
    assert driver.cluster.calls == [("check", [first[0].transactional_id])]
    driver.cluster.calls.clear()
    driver.begin(0)
    assert driver.cluster.calls == [], "one check for all that ended"
    a = first[0].transactional_id
    assert driver.cluster.asked_ahead == [frozenset(), {a}, frozenset(), frozenset()], "asked a batch ahead"


def test_a_changed_leader_is_a_doubt_about_all_ids(started: Started) -> None:
    """The committed transaction of the first id may be open somewhere: its next one would decide about both."""
    driver = started()
    used = []
    for _ in range(2):
        slots = driver.begin(0)
        driver.commit(slots)
        used.append(slots[0].transactional_id)
    driver.cluster.suspicious = ["the leader epoch of out-1 changed from 3 to 5"]
    driver.cluster.calls.clear()
    third = driver.begin(0)
    assert driver.cluster.steps() == ["check", "settle", "initialise"]
    assert third[0].transactional_id not in used
    assert driver.forgotten == [used]


def test_ended_transactions_are_checked_between_batches(started: Started) -> None:
    driver = started()
    driver.transactions.check_ended()
    assert driver.cluster.steps() == []
    slots = driver.begin(0)
    tid = slots[0].transactional_id
    driver.commit(slots)
    driver.cluster.calls.clear()
    driver.transactions.check_ended()
    driver.transactions.check_ended()
    assert driver.cluster.calls == [("check", [])], "nothing waits for markers, and what was checked is checked once"
    driver.commit(driver.begin(0))
    driver.cluster.suspicious = ["out-1 has no leader"]
    driver.cluster.calls.clear()
    driver.transactions.check_ended(wait=True)
    (check, settled) = driver.cluster.calls
    assert check == ("check", ["delays-m1-by-id-0-1"])
    assert settled[2]["committed"] == {tid: True, "delays-m1-by-id-0-1": True}


@pytest.mark.parametrize("how", ["renew", "abort"])
def test_aborted_transactions_are_checked_and_stay_aborted(started: Started, how: str) -> None:
    """The id's next transaction would commit what an abort without a marker left open."""
    driver = started()
    slots = driver.begin(0)
    if how == "renew":
        driver.transactions.renew(slots)
    else:
        driver.transactions.abort(slots)
    driver.cluster.suspicious = ["the leader epoch of out-1 changed from 3 to 5"]
    driver.cluster.calls.clear()
    again = driver.begin(0)
    assert [call[0] for call in driver.cluster.calls] == ["check", "settle", "initialise"]
    known = {slots[0].transactional_id: False} if how == "renew" else {}
    assert driver.cluster.calls[1][2]["committed"] == known, "the coordinator itself tells of an EndTxn"
    assert again[0].transactional_id != slots[0].transactional_id


def test_offsets_have_no_metadata_unless_it_is_given(started: Started) -> None:
    driver = started()
    plan = MicroBatchPlan(
        subtopology_id="by-id",
        batch=BatchKey(incarnation="m1", batch_id=0),
        member_id="member",
        member_epoch=5,
        bootstrap_servers="",
        state_dir="",
        slots=driver.begin(0),
        topic_ids={},
    )
    driver.transactions.commit(plan, {0: {("in", 0): 9}})
    ((_, _, _, given),) = [call for call in driver.cluster.calls if call[0] == "commit_offsets"]
    assert given["metadata"] == ""


def test_a_commit_behind_an_abort_is_refused_by_the_cluster_alone(started: Started) -> None:
    driver = started()
    slots = driver.begin(0)
    driver.transactions.abort(slots)
    driver.cluster.refuses["end", slots[0].transactional_id] = REFUSED
    assert driver.commit(slots) == {0: REFUSED}


@pytest.mark.parametrize(
    ("error", "is_logged"), [(None, False), (BrokerError("broker-refused", "never", retriable=False), True)]
)
def test_an_id_that_cannot_be_settled_is_logged(
    started: Started, caplog: pytest.LogCaptureFixture, error: HeadraceError | None, is_logged: bool
) -> None:
    driver = started()
    tid = driver.begin(0)[0].transactional_id
    if error is not None:
        driver.cluster.refuses["settle", tid] = error
    driver.transactions.mark_unknown()
    driver.transactions.resolve_unknown()
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(lines) == is_logged
    assert all(tid in line and "never" in line for line in lines)


@pytest.mark.parametrize(("version", "is_logged"), [(0, True), (1, False), (2, False)])
def test_a_cluster_without_transaction_versions_is_logged_once(
    started: Started, caplog: pytest.LogCaptureFixture, version: int, is_logged: bool
) -> None:
    caplog.set_level("INFO", logger="headrace.spark")
    driver = started(version=version)
    for _ in range(2):
        driver.commit(driver.begin(0))
    assert len([each for each in caplog.records if "transaction.version" in each.getMessage()]) == is_logged
