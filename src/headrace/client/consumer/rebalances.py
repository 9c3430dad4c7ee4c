"""Rebalances on the application's side: commit, call the listener, update positions, acknowledge."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headrace.client.consumer.commits import OffsetCommits
from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_types import RebalanceListener, TopicPartition
from headrace.client.consumer.group_runner import GroupRunner
from headrace.client.consumer.subscription_state import SubscriptionState
from headrace.client.membership.group_events import GroupFatal, PartitionsLost, Rebalance
from headrace.errors import HeadraceError, MaxPollExceeded, UserCodeError

__all__ = ["Rebalances"]

log = logging.getLogger("headrace.client")


class Rebalances:
    """Carries out the events of the membership, on the thread that polls.

    Attributes:
        count: Number of completed rebalances.
        ended: The error that ended the membership; every poll raises it until a new subscription.
    """

    def __init__(
        self,
        positions: SubscriptionState,
        commits: OffsetCommits,
        *,
        group_id: str,
        listener: RebalanceListener,
        listener_timeout_ms: int,
        auto_commit: bool,
        max_poll_interval_ms: int,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self._metrics = metrics or ConsumerMetrics()
        self._positions = positions
        self._commits = commits
        self._group_id = group_id
        self._listener = listener
        self._listener_timeout_ms = listener_timeout_ms
        self._auto_commit = auto_commit
        self._max_poll_interval_ms = max_poll_interval_ms
        self.count = 0
        self.ended: HeadraceError | None = None

    def drive(self, around: Callable[[RebalanceListener], RebalanceListener]) -> None:
        """Stop automatic commits and call another listener: a driver takes over."""
        self._auto_commit = False
        self._listener = around(self._listener)

    def run_callbacks(self, runner: GroupRunner) -> None:
        """Carry out all events that wait.

        Raises:
            HeadraceError: The error that ended the membership.
            MaxPollExceeded: The member left because polls took too long.
            Exception: Whatever the listener raised, after the events were carried out.
        """
        if self.ended is not None:
            raise self.ended
        # What a listener raises is raised after all events were carried out: a rebalance that stops half-way would hold
        # up the group.
        failure: BaseException | None = None
        while (event := runner.next_event()) is not None:
            match event:
                case Rebalance():
                    # Acknowledged even after a failure, for the same reason.
                    failure = self._rebalance(event) or failure
                    runner.acknowledge(event)
                case PartitionsLost():
                    failure = self._lost() or failure
                    runner.acknowledge(event)
                    if event.reason == "max-poll-exceeded":
                        raise self._overrun(event)
                    log.warning("The consumer of %s lost its partitions (%s); joining again", self._group_id, event.why)
                case GroupFatal():
                    # Kept: each further poll raises it again, until the application subscribes anew.
                    self.ended = event.error
                    self._lost()
                    raise event.error
                case _:
                    pass
        if failure is not None:
            raise failure

    def give_back_all(self) -> None:
        """Revoke everything before leaving. Raises what the listener raised."""
        everything = self._positions.assigned
        if everything:
            failure = self._revoke(everything)
            if failure is not None:
                raise failure

    def begin_anew(self, partitions: Sequence[TopicPartition]) -> None:
        """Replace partitions of topics that were deleted and created again: the listener loses the old and gets the new
        ones.

        Raises what the listener raised, after the positions were reset.
        """
        named = tuple(partitions)
        if not named:
            return
        log.warning(
            "%s deleted and created again: the consumer of %s reads the new topic from its committed offset, or else "
            "from its beginning",
            ", ".join(f"{topic}-{partition}" for topic, partition in named) + (" was" if len(named) == 1 else " were"),
            self._group_id or "no group",
        )
        # The positions still name the old topic while on_lost runs: a commit in there is refused, not stored for the
        # new topic.
        failure = self._call("on_lost", self._listener.on_lost, named)
        self._commits.drain()
        for each in named:
            self._positions[each].begin_at("committed")
        failure = self._call("on_assigned", self._listener.on_assigned, named) or failure
        if failure is not None:
            raise failure

    def _rebalance(self, event: Rebalance) -> BaseException | None:
        failure = None
        # Only what this consumer still has: `on_lost` may have come first.
        revoked = tuple(TopicPartition(*each) for each in event.revoked if TopicPartition(*each) in self._positions)
        if event.all_revoked:
            revoked = self._positions.assigned
        if revoked or event.all_revoked:
            failure = self._revoke(revoked)
        if event.assigned is not None:
            self.count += 1
            assigned = tuple(TopicPartition(*each) for each in event.assigned)
            self._positions.add(assigned)
            failure = self._call("on_assigned", self._listener.on_assigned, assigned) or failure
        return failure

    def _revoke(self, revoked: tuple[TopicPartition, ...]) -> BaseException | None:
        failure: BaseException | None = None
        if self._auto_commit:
            # Without a commit of the rest: those partitions stay, and their next automatic commit is due anyway.
            done = {each: at for each, at in self._positions.consumed().items() if each in set(revoked)}
            try:
                self._commits.commit(done)
            except HeadraceError as error:
                log.warning(
                    "Offset commit of %s before a rebalance failed; records are read again: %s", self._group_id, error
                )
        # The order matters. The listener may still commit, also in the background. `drain` waits for those commits: one
        # that arrives after the acknowledgement could overwrite what the next owner committed, and for a classic group
        # nothing fences it while the generation is the same. Only then do the positions go.
        failure = self._call("on_revoked", self._listener.on_revoked, revoked)
        self._commits.drain()
        self._positions.remove(revoked)
        return failure

    def _lost(self) -> BaseException | None:
        lost = self._positions.assigned
        # No commit and no drain: the partitions may have another owner already, and the coordinator would refuse.
        failure = self._call("on_lost", self._listener.on_lost, lost) if lost else None
        self._positions.remove(lost)
        return failure

    def _call(
        self, name: str, callback: Callable[[Sequence[TopicPartition]], None], partitions: tuple[TopicPartition, ...]
    ) -> BaseException | None:
        began = time.monotonic()
        try:
            callback(partitions)
        except Exception as error:  # noqa: BLE001 - the rebalance goes on; the poll raises it afterwards
            return error
        took_ms = round((time.monotonic() - began) * 1000)
        self._metrics.record_callback(name, took_ms)
        if took_ms <= self._listener_timeout_ms:
            return None
        return UserCodeError(
            "user-code",
            f"{name} of the rebalance listener of {self._group_id} took {took_ms} ms, longer than the limit of "
            f"{self._listener_timeout_ms} ms",
            "Do less in the listener, or raise its time limit (and max.poll.interval.ms).",
        )

    def _overrun(self, event: PartitionsLost) -> MaxPollExceeded:
        return MaxPollExceeded(
            "max-poll-exceeded",
            f"the consumer of {self._group_id} did not poll for {event.after_ms} ms and has left its group; "
            f"max.poll.interval.ms is {self._max_poll_interval_ms}",
            "The next poll joins again. Take fewer records per poll (max.poll.records), or raise max.poll.interval.ms.",
            group_id=self._group_id,
            took_ms=event.after_ms,
        )
