"""Sending of encoded record batches: several requests per leader in flight, one batch per partition in each.

`PartitionBatches` (pure: no socket, no clock) decides in which order a partition's batches are sent. With a producer
identity up to five are in flight, and their sequence numbers keep the order; without one, one at a time. After a
failure the partition waits for all its responses, then continues with the first batch that was not stored.

Responses are checked, not trusted: every batch must be reported as stored, and with an identity each behind the one
before. A broker that mistook a batch for a duplicate would answer with the other batch's offset, and the records would
be lost. A batch that was stored and whose response was lost is recognised by the broker if it has a producer identity
(the response is repeated, or DUPLICATE_SEQUENCE_NUMBER), and written twice without one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import Records, i16, i32

from headrace.client.broker_errors import STALE_METADATA, refusal
from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.connection import ConnectionLost, PendingReply
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, ConfigError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import assign_producer, iter_batch_headers

__all__ = ["Batch", "PartitionBatches", "ProducerIdentity", "Sender", "TransactionalIdentity"]

BATCHES_PER_PARTITION: Final = 5
_SEQUENCE_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """An encoded batch; `number` counts the batches of its partition from 0."""

    data: bytes
    records: int
    number: int


@dataclass(slots=True)
class PartitionBatches:
    """Batches of one partition. Mutable."""

    topic: str
    partition: int
    next_sequence: int = 0
    waiting: deque[Batch] = field(default_factory=deque)
    on_the_way: int = 0
    recovering: bool = False
    known_to_broker: bool = False
    registered: bool = False
    last_offset: int | None = None  # of what was stored since the last flush
    _added: int = 0
    _stored: int = 0
    _stored_to: int = -1

    def add(self, data: bytes, records: int) -> None:
        """Add a batch that carries `next_sequence`, if it has an identity."""
        self.next_sequence = (self.next_sequence + records) & _SEQUENCE_MASK
        self.waiting.append(Batch(data, records, self._added))
        self._added += 1

    def may_send(self, *, has_identity: bool) -> bool:
        """Return whether the first waiting batch may be sent."""
        # 1. After a failure all responses must be in before anything is sent: batches behind the failed one are refused
        #    with OUT_OF_ORDER_SEQUENCE_NUMBER and come back, and `put_back` restores their order.
        if self.recovering and not self.on_the_way:
            self.recovering = False
        # 2. A log that does not know the producer accepts any first sequence number. If the first batch were refused (a
        #    leader that is not ready) and the second accepted, the first could never be written. So the first batch of
        #    a partition is sent alone. Kafka's producer does not wait, and bumps its epoch in that case (KIP-360).
        # 3. Five is the number of batches that brokers remember per producer to recognise duplicates (KIP-98).
        window = BATCHES_PER_PARTITION if has_identity and self.known_to_broker else 1
        return bool(self.waiting) and not self.recovering and self.on_the_way < window

    def take(self) -> Batch:
        """Return the first waiting batch, to be sent."""
        self.on_the_way += 1
        return self.waiting.popleft()

    def put_back(self, batch: Batch) -> None:
        """Put a batch back in its place, to be sent again; its response is already counted."""
        self.recovering = True
        self.waiting.append(batch)
        self.waiting = deque(sorted(self.waiting, key=lambda waiting: waiting.number))

    def note_stored(self, batch: Batch, base_offset: int, *, is_repeat: bool, has_identity: bool) -> BrokerError | None:
        """Note that a batch was reported as stored.

        Args:
            batch: The batch.
            base_offset: The offset that the broker returned.
            is_repeat: Whether the broker reported it as a duplicate.
            has_identity: Whether batches have sequence numbers.

        Returns:
            An error if the offset contradicts an earlier response.
        """
        self._stored += 1
        end = base_offset + batch.records - 1
        # DUPLICATE_SEQUENCE_NUMBER has no usable offset for older batches: brokers remember only the last five.
        if is_repeat:
            self.last_offset = max(end, self.last_offset or -1)
            return None
        last, self._stored_to = self._stored_to, end
        self.known_to_broker, self.last_offset = True, end
        if has_identity and 0 <= base_offset <= last:
            return self._not_stored(f"a batch behind offset {last} was reported to begin at {base_offset}")
        return None

    def check_all_stored(self) -> None:
        """Raise BrokerError `not-stored` if a batch was never reported as stored."""
        if missing := self._added - self._stored:
            raise self._not_stored(f"{missing} of {self._added} batches were never reported as stored")

    def refused(self, code: ErrorCode, message: str | None) -> BrokerError:
        """Return the error for a code that is not retriable."""
        what = f"to write to {self.topic}-{self.partition}"
        return refusal(code, what, api="Produce", message=message, topic=self.topic, partition=self.partition)

    def _not_stored(self, why: str) -> BrokerError:
        return BrokerError(
            "not-stored",
            f"records for {self.topic}-{self.partition} are not certain to be stored: {why}",
            "Send them again, a transaction as a whole; if the error returns, check the broker and any proxy.",
            topic=self.topic,
            partition=self.partition,
            retriable=True,
        )


TopicPartition = tuple[str, int]

MAX_REQUEST_BYTES: Final = 8 << 20
BUFFER_BYTES: Final = 32 << 20
SEND_FROM_BYTES: Final = 1 << 20
REQUESTS_PER_NODE: Final = 5
DELIVERY_TIMEOUT_MS: Final = 120_000
PRODUCE_BEFORE_VERSION_2: Final = 11  # from 12 on the first Produce adds its partitions to the transaction (KIP-890)
_STORED: Final = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Producer id and epoch of InitProducerId: the writer, and which incarnation of it."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdentity(ProducerIdentity):
    """Identity for one transaction of a transactional id. The first sequence number in each partition is 0."""

    transactional_id: str


@dataclass(slots=True)
class _Exchange:
    node: int
    reply: PendingReply
    batches: dict[TopicPartition, Batch]
    cluster: ClusterMetadata


class Sender:
    """Batches that wait and requests in flight. Uses its client alone between `add` and `flush`. Mutable."""

    def __init__(
        self,
        client: NetworkClient,
        *,
        acks: int = -1,
        enable_idempotence: bool | None = None,
        identity: ProducerIdentity | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        delivery_timeout_ms: float = DELIVERY_TIMEOUT_MS,
        sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
        register: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        """Args:
            client: A client of the cluster.
            acks: -1 (all) or 1.
            enable_idempotence: True requires a producer id, None uses one if the broker supports it, False never.
            identity: A producer id obtained elsewhere, as for transactions.
            buffer_bytes: Bytes that may wait; `add` blocks above that.
            delivery_timeout_ms: The longest time without a successful response.
            sequences: Next sequence numbers, left by another writer with the same identity.
            register: Called with partitions before their first batch (AddPartitionsToTxn below transaction.version 2).

        Raises:
            ConfigError: Settings that contradict each other.
        """
        if acks not in {-1, 1}:
            raise ConfigError("bad-value", f"acks={acks} is not supported", "use acks=-1 (all) or acks=1")
        if acks == 1 and (enable_idempotence or identity):
            raise ConfigError("bad-value", "idempotence needs acks=-1", "leave acks alone, or switch idempotence off")
        self._client = client
        self._acks = acks
        self._identity = identity
        self._wants_identity = identity is None and acks == -1 and enable_idempotence is not False
        self._identity_required = enable_idempotence is True
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._partitions: dict[TopicPartition, PartitionBatches] = {}
        self._sequences = sequences
        self._register = register
        self._transactional_id = identity.transactional_id if isinstance(identity, TransactionalIdentity) else None
        self._exchanges: deque[_Exchange] = deque()
        self._waiting_bytes = 0
        self._errors: dict[TopicPartition, BrokerError] = {}
        self._stale = False
        self._backoff = Backoff()
        self._deadline = Deadline.after_ms(delivery_timeout_ms)

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id in use; None without idempotence, or before the first batch."""
        return self._identity

    def add(self, topic: str, partition: int, batch: bytes) -> None:
        """Queue one record batch; send once enough has come together, and wait once too much has.

        Raises:
            BrokerError: The error of an earlier batch.
            CannotConnect: No broker is reachable.
        """
        self._raise_errors()
        if self._wants_identity:
            self._wants_identity = False
            self._identity = self._init_producer_id()
        # 1. Only the header is read, for the number of records; the batch stays one block of bytes from its encoder to
        #    the socket.
        header = next(iter_batch_headers(batch))
        state = self._partitions.get((topic, partition))
        if state is None:
            state = PartitionBatches(topic, partition, self._sequences.get((topic, partition), 0))
            self._partitions[topic, partition] = state
        # 2. The producer's identity and the sequence number are written into the encoded batch, as the broker does with
        #    offsets. They belong to the batch from here on: a retry sends the same bytes, which is how the broker
        #    recognises it (KIP-98).
        if self._identity is not None:
            stamped = bytearray(batch)
            identity, transactional = self._identity, self._transactional_id is not None
            assign_producer(
                stamped,
                identity.producer_id,
                identity.producer_epoch,
                state.next_sequence,
                transactional=transactional,
            )
            batch = bytes(stamped)
        state.add(batch, header.records_count)
        # 3. The delivery timeout counts from the first batch of a quiet sender; later, every success restarts it
        #    (`_receive`).
        if not self._exchanges and not self._waiting_bytes:
            self._deadline = Deadline.after_ms(self._delivery_timeout_ms)
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= SEND_FROM_BYTES:
            self._send_ready()
        # 4. Back pressure: the caller waits for the network instead of the buffer growing (Kafka: buffer.memory,
        #    max.block.ms).
        while self._waiting_bytes > self._buffer_bytes:
            self._step()

    def next_sequences(self) -> dict[TopicPartition, int]:
        """Return the sequence numbers at which another writer with the same identity continues."""
        return {key: state.next_sequence for key, state in self._partitions.items()}

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until everything is stored.

        Returns:
            The last offset of each partition written since the last flush.

        Raises:
            BrokerError: The first error of a partition; `facts["partitions"]` lists all that failed.
        """
        # First every batch gets a response, then errors are raised, and only then the stored batches are counted: an
        # error must not be raised while batches are in flight that may still be stored.
        while self._exchanges or self._waiting_bytes:
            self._step()
        self._raise_errors()
        for state in self._partitions.values():
            state.check_all_stored()
        written: dict[TopicPartition, int] = {}
        for key in sorted(self._partitions):
            state = self._partitions[key]
            if state.last_offset is not None:
                written[key] = state.last_offset
                state.last_offset = None
        return written

    # One step: send what may be sent, then take the oldest answer.

    def _step(self) -> None:
        self._send_ready()
        if self._exchanges:
            self._receive(self._exchanges.popleft())

    def _send_ready(self) -> None:
        ready = [key for key, state in self._partitions.items() if self._may_send(state)]
        if self._register is not None:
            # Below transaction.version 2 the coordinator must know a partition before its first batch, or an abort
            # would leave that batch open for ever (KIP-98). From version 2 on Produce adds it by itself (KIP-890).
            unregistered = [key for key in ready if not self._partitions[key].registered]
            if unregistered:
                self._register(unregistered)
            for key in unregistered:
                self._partitions[key].registered = True
        # Rounds, because a partition with an identity may have several batches in flight: each round takes one batch
        # per partition, until windows or requests per node are used up.
        while ready:
            leaders = self._client.leaders(ready, refresh=self._stale)
            self._stale = False
            by_node: dict[int, list[TopicPartition]] = {}
            for key in ready:
                by_node.setdefault(leaders[key], []).append(key)
            sent = [self._send_to(node, keys) for node, keys in by_node.items() if self._has_room(node)]
            if not any(sent):
                return
            ready = [key for key, state in self._partitions.items() if self._may_send(state)]

    def _may_send(self, state: PartitionBatches) -> bool:
        return state.may_send(has_identity=self._identity is not None)

    def _has_room(self, node: int) -> bool:
        return sum(1 for exchange in self._exchanges if exchange.node == node) < REQUESTS_PER_NODE

    def _send_to(self, node: int, keys: Iterable[TopicPartition]) -> bool:
        taken: dict[TopicPartition, Batch] = {}
        size = 0
        for key in keys:
            batch = self._partitions[key].waiting[0]
            # A batch that does not fit waits for the next request, while smaller ones behind it may still go: their
            # order matters within a partition only. The first is always taken, however large.
            if taken and size + len(batch.data) > MAX_REQUEST_BYTES:
                continue
            taken[key] = self._partitions[key].take()
            size += len(batch.data)
        self._waiting_bytes -= size
        cluster = self._client.metadata({topic for topic, _ in taken})
        try:
            at_most = PRODUCE_BEFORE_VERSION_2 if self._register is not None else None
            reply = self._client.start(self._request(taken, cluster), node=node, at_most=at_most)
        except ConnectionLost as error:
            self._unanswered(taken, error)
            return False
        self._exchanges.append(_Exchange(node, reply, taken, cluster))
        return True

    def _receive(self, exchange: _Exchange) -> None:
        try:
            response = exchange.reply.result()
        except ConnectionLost as error:
            self._unanswered(exchange.batches, error)
            return
        # 1. Find each entry's batch; from Produce v13 on the response has topic ids instead of names (KIP-516).
        failed, untold = False, dict(exchange.batches)
        for topic in response.responses:
            name = topic.name or exchange.cluster.topic_name(topic.topic_id) or ""
            for entry in topic.partition_responses:
                key = (name, int(entry.index))
                failed |= not self._settle(key, untold.pop(key), entry)
        # 2. Batches missing from the response are in the state of a lost response: they may be stored or not.
        if untold:
            self._unanswered(untold, ConnectionLost(exchange.cluster.brokers[exchange.node], "it answers for a part"))
        elif failed:
            self._backoff.pause(self._deadline)
        else:
            self._backoff = Backoff()
            self._deadline = Deadline.after_ms(self._delivery_timeout_ms)

    def _settle(self, key: TopicPartition, batch: Batch, entry: m.produce_response.PartitionProduceResponse) -> bool:
        """Apply the response for one batch; return False if the batch has to be sent again."""
        # 1. A duplicate counts as stored: its earlier response was lost (KIP-98).
        state = self._partitions[key]
        state.on_the_way -= 1
        code = entry.error_code
        if code in _STORED:
            is_repeat, has_identity = code != ErrorCode.none, self._identity is not None
            wrong = state.note_stored(batch, int(entry.base_offset), is_repeat=is_repeat, has_identity=has_identity)
            if wrong is not None:
                self._errors.setdefault(key, wrong)
            return True
        # 2. Nothing of a failed partition is sent again: what follows a gap must not be written.
        if key in self._errors:
            return True
        # 3. OUT_OF_ORDER_SEQUENCE_NUMBER behind a batch that failed is only its consequence. Without such a failure the
        #    broker has lost or skipped something, and the error is final.
        behind_a_gap = code == ErrorCode.out_of_order_sequence_number and state.recovering
        again = behind_a_gap or code in STALE_METADATA or is_retriable(code)
        if again and not self._deadline.passed:
            self._put_back(state, batch)
            self._stale |= code in STALE_METADATA
            return False
        self._give_up(key, code, entry.error_message)
        return True

    def _put_back(self, state: PartitionBatches, batch: Batch) -> None:
        self._waiting_bytes += len(batch.data)
        state.put_back(batch)

    def _give_up(self, key: TopicPartition, code: ErrorCode, message: str | None) -> None:
        state = self._partitions[key]
        self._waiting_bytes -= sum(len(batch.data) for batch in state.waiting)
        state.waiting.clear()
        self._errors[key] = state.refused(code, message)

    def _unanswered(self, batches: dict[TopicPartition, Batch], error: ConnectionLost) -> None:
        if self._deadline.passed:
            raise CannotConnect(
                "broker-unreachable",
                f"the broker at {error.address} does not answer Produce requests ({error.why})",
                "Check that the broker runs. Records that were not flushed are not stored.",
                why=error.why,
            ) from error
        for key, batch in batches.items():
            self._partitions[key].on_the_way -= 1
            self._put_back(self._partitions[key], batch)
        self._stale = True
        self._backoff.pause(self._deadline)

    def _raise_errors(self) -> None:
        if self._errors:
            first = next(iter(self._errors.values()))
            first.facts["partitions"] = sorted(self._errors)
            raise first

    def _request(self, batches: dict[TopicPartition, Batch], cluster: ClusterMetadata) -> RequestMessage:
        request = m.produce_request
        by_topic: dict[str, list[tuple[int, bytes]]] = {}
        for (topic, partition), batch in batches.items():
            by_topic.setdefault(topic, []).append((partition, batch.data))
        return request.ProduceRequest(
            transactional_id=None if self._transactional_id is None else TransactionalId(self._transactional_id),
            acks=i16(self._acks),
            timeout=from_ms(self._client.request_timeout_ms),
            topic_data=tuple(
                request.TopicProduceData(
                    name=TopicName(topic),
                    topic_id=cluster.topics[topic].topic_id,
                    partition_data=tuple(
                        request.PartitionProduceData(index=i32(partition), records=Records(data))
                        for partition, data in entries
                    ),
                )
                for topic, entries in by_topic.items()
            ),
        )

    def _init_producer_id(self) -> ProducerIdentity | None:
        if not self._identity_required and self._client.supported_range(ApiKey.INIT_PRODUCER_ID) is None:
            return None
        request = m.init_producer_id_request.InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout=from_ms(60_000),
            producer_id=ProducerId(-1),
            producer_epoch=i16(-1),
        )
        deadline = Deadline.after_ms(self._client.api_timeout_ms)
        backoff = Backoff()
        while True:
            response = self._client.call(request)
            if response.error_code == ErrorCode.none:
                return ProducerIdentity(
                    producer_id=int(response.producer_id), producer_epoch=int(response.producer_epoch)
                )
            if not is_retriable(response.error_code) or deadline.passed:
                raise refusal(response.error_code, "to hand out a producer id", api="InitProducerId")
            backoff.pause(deadline)
