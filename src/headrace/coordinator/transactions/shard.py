"""TransactionCoordinatorShard, the interface of the rules: transactional ids of one partition of `__transaction_state`.

A write returns a `CoordinatorResult` with one record at most, whose reply is an `Answer`; the runner appends and calls
`replay`, the only writer of hard state. Refusals are answers too: a refused InitProducerId may still write (it aborts
the open transaction first).

One thing is soft, as in Kafka, because its record has no field for it: the epoch before the present one, by which a
producer that missed the reply to its own bump is distinguished from one that was fenced. It is valid only for the
identity it was noted with, so a failed append cannot falsify it; after a restart such a retry is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
    TimerKey,
    TimerQueue,
)
from headrace.coordinator.transactions.producer_requests import (
    add_partitions,
    end_transaction,
    init_producer_id,
    missing_partitions,
    producer_refusal,
)
from headrace.coordinator.transactions.transaction_log import value_version
from headrace.coordinator.transactions.transitions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    STATE_NAMES,
    Answer,
    ProducerIdentity,
    Step,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
    completed,
    fenced,
    last_epoch_of_fenced,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["TransactionCoordinatorShard", "TransactionFilter", "unknown_states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Empty collections filter nothing, nor does a negative `longer_than_ms`. Names of states are Kafka's."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    matches: Callable[[str], bool] | None = None

    def takes(self, transactional_id: str, value: TransactionLogValue, *, now_ms: int) -> bool:
        """A transactional id without a transaction began at -1, which is long ago, as in Kafka."""
        if self.producer_ids and value.producer_id not in self.producer_ids:
            return False
        if self.states and not self._takes_state(state_of(value)):
            return False
        age_ms = now_ms - value.transaction_start_timestamp_ms
        if self.longer_than_ms >= 0 and age_ms <= self.longer_than_ms:
            return False
        return self.matches is None or self.matches(transactional_id)

    def _takes_state(self, state: TransactionState) -> bool:
        return any(STATE_NAMES.get(name) is state for name in self.states)


def unknown_states(names: Iterable[str]) -> tuple[str, ...]:
    """Return the unknown names of state filters, in their order."""
    return tuple(name for name in names if name not in STATE_NAMES)


_EXPIRY = TimerKey(kind="transactional-id-expiry", group_id="")
_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TransactionCoordinatorShard:
    """Mutable: `replay` writes hard state, and only it does."""

    def __init__(
        self,
        configuration: TransactionConfiguration,
        *,
        transaction_version: Callable[[], int],
        new_producer_id: Callable[[], int],
    ) -> None:
        """`transaction_version`: the finalised feature; `new_producer_id` returns an id that was never used."""
        self._configuration = configuration
        self._transaction_version = transaction_version
        self._new_producer_id = new_producer_id
        self._transactions: dict[str, TransactionLogValue] = {}
        # A dictionary as an ordered set: oldest decision first, removal in O(1).
        self._prepared: dict[str, None] = {}
        # Transactional id → (producer id, epoch, epoch before). A producer whose reply was lost may repeat its request
        # with the epoch before. Not in the record, as in Kafka (TransactionMetadata.lastProducerEpoch): after a move of
        # the coordinator such a producer is fenced.
        self._last: dict[str, tuple[int, int, int]] = {}
        self._timers = TimerQueue()

    # --- writes ---

    def init_producer_id(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None, now_ms: int
    ) -> CoordinatorResult:
        """Process InitProducerId (API 22)."""
        if not 0 < timeout_ms <= self._configuration.max_timeout_ms:
            return _reply(Answer(code=ErrorCode.invalid_transaction_timeout))
        known = self._transactions.get(transactional_id)
        step = init_producer_id(
            known,
            expected=expected,
            last_producer_epoch=self._last_producer_epoch(transactional_id),
            timeout_ms=timeout_ms,
            transaction_version=self._transaction_version(),
            new_producer_id=self._new_producer_id,
            now_ms=now_ms,
        )
        return self._result(transactional_id, step)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[tuple[str, int]],
        *,
        client_version: int,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process AddPartitionsToTxn and AddOffsetsToTxn (APIs 24 and 25)."""
        known = self._transactions.get(transactional_id)
        step = add_partitions(known, producer, frozenset(partitions), client_version=client_version, now_ms=now_ms)
        return self._result(transactional_id, step)

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        committed: bool,
        client_version: int,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process EndTxn (API 26)."""
        step = end_transaction(
            self._transactions.get(transactional_id),
            producer,
            committed=committed,
            client_version=client_version,
            last_producer_epoch=self._last_producer_epoch(transactional_id),
            new_producer_id=self._new_producer_id,
            now_ms=now_ms,
        )
        return self._result(transactional_id, step)

    def complete(self, transactional_id: str, *, now_ms: int) -> CoordinatorResult:
        """Complete a prepared transaction whose markers are all written.

        Nothing is done if it is not prepared any more.
        """
        known = self._transactions.get(transactional_id)
        done = Answer(code=ErrorCode.none)
        if known is None or state_of(known) not in _PREPARED:
            return _reply(done)
        last = self._last_producer_epoch(transactional_id)
        step = Step(answer=done, value=completed(known, now_ms=now_ms), last_producer_epoch=last)
        return self._result(transactional_id, step)

    # --- reads ---

    @property
    def transactional_id_count(self) -> int:
        return len(self._transactions)

    def transaction(self, transactional_id: str) -> TransactionLogValue | None:
        return self._transactions.get(transactional_id)

    def transactions(self) -> Iterator[tuple[str, TransactionLogValue]]:
        return iter(self._transactions.items())

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[tuple[str, int]]
    ) -> tuple[ErrorCode, frozenset[tuple[str, int]]]:
        """Whether the producer has all these partitions in its open transaction; those that are missing."""
        known = self._transactions.get(transactional_id)
        code = producer_refusal(known, producer)
        if code is not None or known is None:
            return code or ErrorCode.invalid_producer_id_mapping, frozenset()
        missing = missing_partitions(known, frozenset(partitions))
        return (ErrorCode.transaction_abortable if missing else ErrorCode.none), missing

    def list_transactions(self, wanted: TransactionFilter, *, now_ms: int) -> Iterator[tuple[str, TransactionLogValue]]:
        """List transactions (API 66)."""
        for transactional_id, value in self._transactions.items():
            if wanted.takes(transactional_id, value, now_ms=now_ms):
                yield transactional_id, value

    def prepared(self) -> tuple[str, ...]:
        """Return the ids whose end is decided and whose markers are being written, oldest first."""
        return tuple(self._prepared)

    # --- what happens by itself ---

    def on_timers(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        """Fire each due timer once."""
        while (key := self._timers.pop_due(now_ms)) is not None:
            if key == _EXPIRY:
                yield from self._expire(now_ms)
                continue
            value = self._transactions.get(key.group_id)
            if value is not None and state_of(value) is TransactionState.ONGOING:
                yield self._abort_overdue(key.group_id, value, now_ms)

    def on_metadata_image(self, _image: object, *, now_ms: int) -> Iterator[CoordinatorResult]:  # noqa: ARG002
        """Do nothing: markers skip deleted topics."""
        return iter(())

    def on_configuration(self, _configuration: object, *, now_ms: int) -> Iterator[CoordinatorResult]:  # noqa: ARG002
        """Do nothing: none of the settings can change while the broker runs."""
        return iter(())

    def on_loaded(self, *, now_ms: int) -> CoordinatorResult:
        """Return the timers after a replay: open transactions have what is left of their time."""
        # The deadline follows from the recorded start, so moving the coordinator does not lengthen a transaction.
        # Prepared ones need no timer: their markers are written again (`prepared`).
        timers: list[SetTimer | CancelTimer] = [self._next_expiry(now_ms)]
        for transactional_id, value in self._transactions.items():
            if state_of(value) is TransactionState.ONGOING:
                timers.append(SetTimer(key=_timeout(transactional_id), deadline_ms=_deadline_ms(value)))
        return CoordinatorResult(timers=tuple(timers))

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def apply_timers(self, timers: tuple[SetTimer | CancelTimer, ...]) -> None:
        self._timers.apply(timers)

    # --- hard state ---

    def replay(self, record: CoordinatorRecord) -> None:
        """Replay a record. Raises CorruptRecord for what is no record of a transaction."""
        key, value = record.key, record.value
        if not isinstance(key, TransactionLogKey):
            raise CorruptRecord(f"{type(key).__name__} is not a key of __transaction_state")
        transactional_id = key.transactional_id
        self._prepared.pop(transactional_id, None)
        if value is None:
            self._transactions.pop(transactional_id, None)
            self._last.pop(transactional_id, None)
            return
        if not isinstance(value, TransactionLogValue) or not 0 <= value.transaction_status < TransactionState.DEAD:
            raise CorruptRecord(f"the transactional id {transactional_id!r} has an impossible value")
        self._transactions[transactional_id] = value
        if state_of(value) in _PREPARED:
            self._prepared[transactional_id] = None

    def _result(self, transactional_id: str, step: Step) -> CoordinatorResult:
        if step.value is None:
            return _reply(step.answer)
        value = step.value
        if value_version(self._transaction_version()) < 1:
            if value.client_transaction_version > 0:
                return _reply(Answer(code=ErrorCode.unsupported_version))  # its record could not be written
            value = _as_version_0(value)
        self._last[transactional_id] = (value.producer_id, value.producer_epoch, step.last_producer_epoch)
        key = TransactionLogKey(transactional_id=transactional_id)
        return CoordinatorResult(
            records=(CoordinatorRecord(key=key, value=value),),
            replies=(Reply(token=0, response=step.answer),),
            timers=self._timers_after(transactional_id, value),
        )

    def _timers_after(self, transactional_id: str, value: TransactionLogValue) -> tuple[SetTimer | CancelTimer, ...]:
        key = _timeout(transactional_id)
        if state_of(value) is TransactionState.ONGOING:
            return (SetTimer(key=key, deadline_ms=_deadline_ms(value)),)
        return (CancelTimer(key=key),)

    def _last_producer_epoch(self, transactional_id: str) -> int:
        value, noted = self._transactions.get(transactional_id), self._last.get(transactional_id)
        # The note is taken before the record is appended. If the log refuses the record, the note is about an identity
        # that never came to be, and comparing both parts makes it void.
        if value is None or noted is None or noted[:2] != (value.producer_id, value.producer_epoch):
            return NO_PRODUCER_EPOCH
        return noted[2]

    def _abort_overdue(self, transactional_id: str, value: TransactionLogValue, now_ms: int) -> CoordinatorResult:
        version = self._transaction_version()
        step = Step(
            answer=Answer(code=ErrorCode.none),
            value=fenced(value, transaction_version=version, now_ms=now_ms),
            last_producer_epoch=last_epoch_of_fenced(value, transaction_version=version),
        )
        return self._result(transactional_id, step)

    def _expire(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Yield tombstones for transactional ids that were idle for `transactional.id.expiration.ms`."""
        latest_ms = now_ms - self._configuration.id_expiration_ms
        yield CoordinatorResult(timers=(self._next_expiry(now_ms),))
        # A copy: replaying a tombstone between two results removes its entry. Open and prepared transactions never
        # expire, however old: partitions wait for their markers.
        for transactional_id, value in tuple(self._transactions.items()):
            idle = state_of(value) not in (TransactionState.ONGOING, *_PREPARED)
            if idle and value.transaction_last_update_timestamp_ms <= latest_ms:
                key = TransactionLogKey(transactional_id=transactional_id)
                yield CoordinatorResult(records=(CoordinatorRecord(key=key, value=None),))

    def _next_expiry(self, now_ms: int) -> SetTimer:
        return SetTimer(key=_EXPIRY, deadline_ms=now_ms + self._configuration.expiry_interval_ms)


def _reply(answer: Answer) -> CoordinatorResult:
    return CoordinatorResult(replies=(Reply(token=0, response=answer),))


def _timeout(transactional_id: str) -> TimerKey:
    return TimerKey(kind="transaction-timeout", group_id=transactional_id)


def _deadline_ms(value: TransactionLogValue) -> int:
    """The first moment at which it has lasted too long."""
    # +1 because Kafka compares with `<`: a transaction that lasted exactly its timeout is still in time
    # (TransactionStateManager.timedOutTransactions).
    return value.transaction_start_timestamp_ms + value.transaction_timeout_ms + 1


def _as_version_0(value: TransactionLogValue) -> TransactionLogValue:
    """Drop what the record's version has no field for, so that memory is what a restart will find."""
    return replace(value, previous_producer_id=NO_PRODUCER_ID, next_producer_id=NO_PRODUCER_ID)
