"""The check for markers that were left out: which views of leaders are doubt, and what it asks of whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.client.cluster_metadata import ClusterMetadata, TopicMetadata
from headrace.client.connection import BrokerAddress, ConnectionLost
from headrace.client.transaction_markers import LeaderView, MarkerCheck, compare_views, leader_view
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

OUT = ("out", 0)


def view(epoch: int = 3, *, leaderless: bool = False) -> LeaderView:
    return LeaderView(epochs={OUT: epoch}, leaderless=(OUT,) if leaderless else ())


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (view(), view(), None),
        (view(3), view(4), "the leader epoch of out-0 changed from 3 to 4"),
        (view(3), view(4, leaderless=True), "out-0 has no leader"),
        (view(3, leaderless=True), view(3), "out-0 had no leader"),
        (view(), LeaderView(epochs={}), "the leader epoch of out-0 changed from 3 to None"),
        (LeaderView(epochs={}), view(), "the leader epoch of out-0 changed from None to 3"),
    ],
)
def test_a_leader_that_was_away_is_a_doubt(before: LeaderView, after: LeaderView, reason: str | None) -> None:
    assert compare_views(before, after) == reason


def test_a_view_is_of_the_written_partitions_and_of_the_groups_offsets() -> None:
    def topic(name: str, leaders: dict[int, int], epoch: int) -> TopicMetadata:
        return TopicMetadata(
            name=name,
            topic_id=None,
            partitions=leaders,
            replicas={partition: (partition,) for partition in leaders},
            leader_epochs=dict.fromkeys(leaders, epoch),
        )

    offsets = topic("__consumer_offsets", {number: number if number != 3 else -1 for number in range(6)}, 9)
    cluster = ClusterMetadata(brokers={}, topics={"out": topic("out", {0: 0, 1: -1}, 4), offsets.name: offsets})
    # Java: "test".hashCode() is 3556498, and 3556498 mod 6 is 4
    assert leader_view(cluster, "test") == LeaderView(
        epochs={("__consumer_offsets", 4): 9, ("out", 0): 4, ("out", 1): 4},
        leaderless=(("out", 1),),
        hosts=frozenset({0, 1, 4}),
    )


@dataclass
class Brokers:
    """Stands for a NetworkClient of brokers that answer DescribeTransactions and Metadata from a script."""

    states: dict[str, list[str | ErrorCode]] = field(default_factory=dict)  # by id, one after the other, the last stays
    epochs: dict[int, int] = field(default_factory=dict)  # what each node says of out-0
    replicas: tuple[int, ...] = (1, 2, 3)
    away: set[int] = field(default_factory=set)
    asked: list[tuple[int, str]] = field(default_factory=list)
    request_timeout_ms: int = 30_000

    def start(self, request: Any, *, node: int) -> Any:
        """Answered at once; the answer is read later."""
        answer = self.answer(node, request)
        if isinstance(answer, ConnectionLost):
            raise answer
        return SimpleNamespace(result=lambda: answer)

    def attempt_all(self, requests: Iterable[tuple[int, Any]], *, timeout_ms: float | None) -> list[Any]:
        assert timeout_ms is None
        return [self.answer(node, request) for node, request in requests]

    def answer(self, node: int, request: Any) -> Any:
        if node in self.away:
            return ConnectionLost(BrokerAddress("away", node), "reset")
        if isinstance(request, m.metadata_request.MetadataRequest):
            self.asked.append((node, "leaders"))
            return metadata(self.epochs.get(node, 3), self.replicas)
        (tid,) = request.transactional_ids
        self.asked.append((node, tid))
        script = self.states.get(tid, ["CompleteCommit"])
        state = script.pop(0) if len(script) > 1 else script[0]
        error = state if isinstance(state, ErrorCode) else ErrorCode.none
        told = "" if isinstance(state, ErrorCode) else state
        return SimpleNamespace(transaction_states=(SimpleNamespace(error_code=error, transaction_state=told),))


def metadata(epoch: int, replicas: tuple[int, ...]) -> Any:
    partition = SimpleNamespace(
        partition_index=0, leader_id=1, leader_epoch=epoch, replica_nodes=replicas, isr_nodes=replicas
    )
    topic = SimpleNamespace(
        name="out", error_code=ErrorCode.none, topic_id=None, is_internal=False, partitions=(partition,)
    )
    return SimpleNamespace(brokers=(), topics=(topic,), controller_id=1, cluster_id="x")


NODES = {"a": 1, "b": 2}


def begun(brokers: Brokers, *ended: str) -> MarkerCheck:
    found = MarkerCheck(brokers, ["out"], "group")  # type: ignore[arg-type]
    found.begin(NODES)
    found.end(ended)
    brokers.asked.clear()
    return found


def test_one_round_trip_checks_all_that_ended() -> None:
    brokers = Brokers()
    check = begun(brokers, "a", "b")
    assert check.check(NODES, timeout_ms=0) is None
    assert brokers.asked == [(1, "a"), (2, "b"), (1, "leaders"), (2, "leaders")], "states before leaders"
    assert check.unchecked == frozenset()
    assert check.check(NODES, timeout_ms=0) is None
    assert len(brokers.asked) == 4, "nothing ended since"


def test_each_coordinator_is_compared_with_itself() -> None:
    """Metadata reaches brokers at different times: what another one knows proves nothing."""
    brokers = Brokers(epochs={1: 3, 2: 5})
    check = begun(brokers, "a", "b")
    assert check.check(NODES, timeout_ms=0) is None
    check.end(["a"])
    brokers.epochs[2] = 7
    assert check.check(NODES, timeout_ms=0) is None, "nothing that ended is coordinated there"
    brokers.epochs[1] = 5
    check.end(["a"])
    assert check.check(NODES, timeout_ms=0) == "the leader epoch of out-0 changed from 3 to 5"
    assert check.unchecked == {"a"}


def test_a_transaction_whose_markers_are_under_way_is_checked_next_time() -> None:
    brokers = Brokers(states={"a": ["PrepareCommit", "CompleteCommit"]})
    check = begun(brokers, "a", "b")
    assert check.check(NODES, timeout_ms=0) is None
    assert check.unchecked == {"a"}
    brokers.epochs[1] = 4
    assert check.check(NODES, timeout_ms=0) is not None, "the leader changed before the transaction was complete"


def test_an_id_that_is_needed_is_waited_for() -> None:
    brokers = Brokers(states={"a": ["PrepareCommit", "PrepareCommit", "CompleteCommit"]})
    check = begun(brokers, "a")
    assert check.check(NODES, needed=["a"], timeout_ms=10_000) is None
    assert brokers.asked.count((1, "a")) == 3
    brokers.states["b"] = ["PrepareAbort"]
    check.end(["b"])
    with pytest.raises(BrokerError) as caught:
        check.check(NODES, needed=["b"], timeout_ms=0)
    assert (caught.value.retriable, caught.value.facts["kafka_name"]) == (True, "CONCURRENT_TRANSACTIONS")


@pytest.mark.parametrize("state", ["Ongoing", ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress])
def test_incomplete_transaction_state_is_unknown(state: str | ErrorCode) -> None:
    reason = begun(Brokers(states={"a": [state]}), "a").check(NODES, timeout_ms=0)
    assert reason is not None
    assert reason.startswith("the transaction of a is not over")


@pytest.mark.parametrize("state", ["Empty", "CompleteAbort", ErrorCode.transactional_id_not_found])
def test_finished_transactions_are_not_checked_again(state: str | ErrorCode) -> None:
    assert begun(Brokers(states={"a": [state]}), "a").check(NODES, timeout_ms=0) is None


def test_a_coordinator_that_moved_or_is_away_is_a_doubt() -> None:
    brokers = Brokers()
    check = begun(brokers, "a")
    assert check.check({"a": 2}, timeout_ms=0) == "the coordinator of a moved"
    brokers.away.add(1)
    assert check.check(NODES, timeout_ms=0) == "a coordinator did not answer (reset)"


def test_no_marker_check_with_all_replicas_on_the_coordinator() -> None:
    brokers = Brokers(replicas=(1,))
    check = begun(brokers, "a", "b")
    assert check.unchecked == {"b"}


def test_ids_that_are_given_up_are_not_checked() -> None:
    brokers = Brokers()
    check = begun(brokers, "a")
    check.clear()
    check.end(["a"])
    assert check.unchecked == frozenset()
    check.begin(NODES)
    assert brokers.asked == [(1, "leaders"), (2, "leaders")], "the view from before is not trusted"


def test_answers_that_were_asked_for_ahead_are_used_once() -> None:
    brokers = Brokers()
    check = begun(brokers, "a")
    check.ask()
    check.ask()
    assert brokers.asked == [(1, "a"), (1, "leaders")]
    brokers.epochs[1] = 5
    check.end(["b"])
    assert check.check(NODES, needed=["a"], timeout_ms=0) is None
    assert brokers.asked == [(1, "a"), (1, "leaders")]
    assert check.unchecked == {"b"}, "it ended behind the question"
    assert check.check(NODES, needed=["b"], timeout_ms=0) is None
    check.end(["a"])
    assert check.check(NODES, timeout_ms=0) == "the leader epoch of out-0 changed from 3 to 5"


def test_an_answer_that_came_too_early_is_asked_for_again() -> None:
    brokers = Brokers(states={"a": ["PrepareCommit", "CompleteCommit"]})
    check = begun(brokers, "a")
    check.ask()
    assert check.check(NODES, needed=["a"], timeout_ms=10_000) is None
    assert brokers.asked.count((1, "a")) == 2
    check.ask()
    assert len(brokers.asked) == 4, "nothing ended since"


def test_a_connection_that_broke_after_the_question_is_a_doubt() -> None:
    brokers = Brokers()
    check = begun(brokers, "a")
    brokers.away.add(1)
    check.ask()
    assert check.check(NODES, timeout_ms=0) == "a coordinator did not answer (reset)"
