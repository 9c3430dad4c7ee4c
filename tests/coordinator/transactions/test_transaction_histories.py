"""Random histories of several owners of two transactional ids, with restarts and markers that take their time.

After each step: live state is replayed state; nobody's identity was given to somebody else; epochs never go back; the
last owner can always go on.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.transactions.transaction_shard import Shard, identity

from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.transactions.transaction_log import encode_key, encode_value
from headrace.coordinator.transactions.transitions import (
    MAX_EPOCH,
    Answer,
    ProducerIdentity,
    TransactionLogKey,
    TransactionState,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

TIDS = ("a", "b")
OWNERS = 3
ACTS = "init init bump add add commit commit abort retry complete complete restart sleep expire late"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTS.split()), st.sampled_from(TIDS), st.integers(0, OWNERS - 1), st.sampled_from([0, 2])
    ),
    max_size=40,
)


class History:
    def __init__(self) -> None:
        self.shard = Shard(TransactionConfiguration(id_expiration_ms=1_000_000, expiry_interval_ms=1_000))
        self.held: dict[tuple[str, int], ProducerIdentity] = {}
        self.given: dict[tuple[int, int], tuple[str, int]] = {}
        self.epochs: dict[int, int] = {}
        self.committed_with: dict[tuple[str, int], tuple[ProducerIdentity, bool, int]] = {}

    def step(self, what: str, tid: str, owner: int, client_version: int) -> None:
        shard, mine = self.shard, self.held.get((tid, owner))
        if what == "init":
            self.take(tid, owner, shard.init(tid=tid, timeout_ms=5_000))
        elif what == "restart":
            shard.restart()
        elif what == "sleep":
            shard.sleep(6_000)
        elif what == "expire":
            shard.sleep(1_100_000)
        elif what == "complete":
            shard.complete(tid)
        elif what == "late":
            self.exhaust(tid)
        elif mine is not None:
            self.with_identity(what, tid, owner, mine, client_version)

    def with_identity(self, what: str, tid: str, owner: int, mine: ProducerIdentity, client_version: int) -> None:
        shard = self.shard
        if what == "bump":
            self.take(tid, owner, shard.init(mine, tid=tid, timeout_ms=5_000))
        elif what == "add":
            shard.add(mine, ("t", owner), client_version=client_version, tid=tid)
        elif what in ("commit", "abort"):
            committed = what == "commit"
            answer = shard.end(mine, committed=committed, client_version=client_version, tid=tid)
            if answer.code is ErrorCode.none and client_version == 2:
                self.committed_with[tid, owner] = mine, committed, client_version
                self.take(tid, owner, answer)
        elif what == "retry" and (tid, owner) in self.committed_with:
            before, committed, version = self.committed_with[tid, owner]
            answer = shard.end(before, committed=committed, client_version=version, tid=tid)
            if answer.code is ErrorCode.none:
                self.take(tid, owner, answer)

    def exhaust(self, tid: str) -> None:
        """The id comes near the end of its epochs, as after 32,000 transactions."""
        value = self.shard.rules.transaction(tid)
        if value is None or state_of(value) is not TransactionState.EMPTY or value.producer_epoch >= MAX_EPOCH - 3:
            return
        late = replace(value, producer_epoch=MAX_EPOCH - 3)
        self.shard.log.written.append((encode_key(TransactionLogKey(transactional_id=tid)), encode_value(late, 1)))
        self.shard.restart()

    def take(self, tid: str, owner: int, answer: Answer) -> None:
        if answer.code is not ErrorCode.none:
            return
        mine = identity(answer)
        key = mine.producer_id, mine.producer_epoch
        assert self.given.setdefault(key, (tid, owner)) == (tid, owner), "two producers share an identity"
        self.held[tid, owner] = mine

    def check(self) -> None:
        replayed = self.shard.replayed()
        for tid in TIDS:
            value = self.shard.rules.transaction(tid)
            assert replayed.transaction(tid) == value
            if value is None:
                continue
            assert self.epochs.get(value.producer_id, -1) <= value.producer_epoch, "an epoch went back"
            self.epochs[value.producer_id] = value.producer_epoch
        assert set(replayed.prepared()) == set(self.shard.rules.prepared())

    def owner_goes_on(self, tid: str) -> None:
        """Whatever happened: who initialises, waits for markers and begins, commits."""
        shard = self.shard
        for _ in range(3):
            shard.complete(tid)
            answer = shard.init(tid=tid, timeout_ms=5_000)
            if answer.code is ErrorCode.none:
                break
            assert answer.code is ErrorCode.concurrent_transactions
        mine = identity(answer)
        assert shard.add(mine, ("t", 0), tid=tid).code is ErrorCode.none
        assert shard.end(mine, tid=tid).code is ErrorCode.none


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_random_histories(steps: list[tuple[str, str, int, int]]) -> None:
    history = History()
    for what, tid, owner, client_version in steps:
        history.step(what, tid, owner, client_version)
        history.check()
    for tid in TIDS:
        history.owner_goes_on(tid)
