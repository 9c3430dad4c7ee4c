"""Transactions of many transactional ids at once: identities, offsets, ends. Records are written by other processes.

A runtime keeps producer identities in one place and passes them to its writers (`Sender` with a
`TransactionalIdentity`); here transactions begin and end. All ids of a call are requested at the same time, each with
an outcome of its own. Rules (`transaction_rules`): CONCURRENT_TRANSACTIONS and moved coordinators are retried; EndTxn
may be sent twice; an end without an answer is *unknown*, and only the group's committed offsets show its outcome.

With `transaction.version` 2 (KIP-890) partitions and the group join a transaction with the first request that names
them, and EndTxn returns the identity of the next transaction. Below that, AddPartitionsToTxn and AddOffsetsToTxn are
sent, and the next transaction needs an InitProducerId, so that sequence numbers begin at 0 for a new writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i64

from headrace.client.admin_cluster import describe_features
from headrace.client.broker_errors import refusal
from headrace.client.connection import ConnectionLost, PendingReply, Response
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.sender import TransactionalIdentity
from headrace.client.transaction_rules import Round, first_refusal
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = ["TransactionDescription", "Transactions", "describe_request", "transaction_version"]

TopicPartition = tuple[str, int]
Reply = TypeVar("Reply")
Result = TypeVar("Result")

TRANSACTION_KEY_TYPE: Final = 1
GROUP_KEY_TYPE: Final = 0
SEVERAL_KEYS_VERSION: Final = 4


def transaction_version(client: NetworkClient) -> int:
    """Return the finalised level of the feature `transaction.version`; from 2 on the second part of KIP-890 applies."""
    found = describe_features(client).get("transaction.version")
    return 0 if found is None else found.level


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A coordinator's description of one transactional id; `state`: Empty, Ongoing, PrepareCommit, CompleteCommit …"""

    state: str
    identity: TransactionalIdentity


class _Identified(Protocol):
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


class Transactions:
    """Client for transaction coordinators, whose nodes it caches. Uses its client on the caller's thread. Mutable."""

    def __init__(self, client: NetworkClient, *, transaction_timeout_ms: int = 10_000, version: int = 2) -> None:
        """Args:
        client: A client of the cluster.
        transaction_timeout_ms: After this time the coordinator aborts an open transaction.
        version: The cluster's `transaction.version`.
        """
        self._client = client
        self._timeout_ms = transaction_timeout_ms
        self.version = version
        self._coordinators: dict[tuple[int, str], int] = {}

    def with_version(self, version: int) -> Transactions:
        """Return the same with the requests of another `transaction.version`."""
        return Transactions(self._client, transaction_timeout_ms=self._timeout_ms, version=version)

    @property
    def renews_identities(self) -> bool:
        """Whether EndTxn returns the identity of the next transaction."""
        return self.version >= 2

    def initialise(
        self, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionalIdentity | HeadraceError]:
        """Return fresh identities. Open transactions of the ids are aborted first, and older identities are fenced."""

        def request(tid: str) -> RequestMessage:
            return m.init_producer_id_request.InitProducerIdRequest(
                transactional_id=TransactionalId(tid),
                transaction_timeout=from_ms(self._timeout_ms),
                # -1: any producer id of this transactional id. A producer that names its own one may only continue with
                # it (KIP-360), and is fenced if another instance came in between.
                producer_id=ProducerId(-1),
                producer_epoch=i16(-1),
            )

        def read(
            tid: str, response: m.init_producer_id_response.InitProducerIdResponse
        ) -> tuple[ErrorCode, TransactionalIdentity]:
            return response.error_code, self._identity(tid, response)

        ids = {tid: tid for tid in transactional_ids}
        return self._together("InitProducerId", "an identity for", ids, request, read, timeout_ms=timeout_ms)

    def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[TransactionalIdentity, Mapping[TopicPartition, int]],
        *,
        member_id: str,
        member_epoch: int,
        metadata: str = "",
        timeout_ms: float | None = None,
    ) -> dict[str, HeadraceError | None]:
        """Add offsets to each transaction; they take effect when it commits. After any refusal the transaction must be
        aborted.

        Args:
            group_id: The group.
            offsets: Identity → offsets by partition.
            member_id: The member.
            member_epoch: The epoch captured with the assignment when the batch was planned.
            metadata: Stored with each offset.
            timeout_ms: The time for everything; the API timeout if not given.

        Returns:
            None or the error, by transactional id.
        """
        by_id = {identity.transactional_id: identity for identity in offsets}
        # Below version 2 the coordinator must first learn that the group's offsets belong to the transaction; an id
        # whose AddOffsetsToTxn failed must not commit its offsets.
        refused: dict[str, HeadraceError] = {}
        if not self.renews_identities:
            added = self.add_offsets(group_id, by_id.values(), timeout_ms=timeout_ms)
            refused = {tid: outcome for tid, outcome in added.items() if isinstance(outcome, HeadraceError)}

        def request(tid: str) -> RequestMessage:
            return _offsets_request(group_id, by_id[tid], offsets[by_id[tid]], member_id, member_epoch, metadata)

        def read(_tid: str, response: m.txn_offset_commit_response.TxnOffsetCommitResponse) -> tuple[ErrorCode, None]:
            return first_refusal(part.error_code for topic in response.topics for part in topic.partitions), None

        rest = {tid: group_id for tid in by_id if tid not in refused}
        committed = self._together(
            "TxnOffsetCommit",
            "offsets in the transaction of",
            rest,
            request,
            read,
            key_type=GROUP_KEY_TYPE,
            # TxnOffsetCommit v5 and EndTxn v5 have the semantics of transaction version 2 (KIP-890): below it, v4 is
            # the last one that means what is meant here.
            at_most=None if self.renews_identities else 4,
            timeout_ms=timeout_ms,
        )
        return {**committed, **refused}

    def end(
        self, identities: Iterable[TransactionalIdentity], *, commit: bool, timeout_ms: float | None = None
    ) -> dict[str, TransactionalIdentity | HeadraceError]:
        """Commit or abort transactions.

        Returns:
            The identities for the next transactions, by transactional id. A CannotConnect or a fenced identity among
                the outcomes of a commit means that its outcome is unknown. Below version 2 the old identity is
                returned, and must be initialised before it is used.
        """
        by_id = {identity.transactional_id: identity for identity in identities}

        def request(tid: str) -> RequestMessage:
            return m.end_txn_request.EndTxnRequest(
                transactional_id=TransactionalId(tid),
                producer_id=ProducerId(by_id[tid].producer_id),
                producer_epoch=i16(by_id[tid].producer_epoch),
                committed=commit,
            )

        def read(tid: str, response: m.end_txn_response.EndTxnResponse) -> tuple[ErrorCode, TransactionalIdentity]:
            # KIP-890: EndTxn bumps the epoch and returns it, so that a late request of the old transaction is fenced.
            # The id itself changes when its epochs are used up.
            renewed = self.renews_identities and int(response.producer_id) >= 0
            return response.error_code, self._identity(tid, response) if renewed else by_id[tid]

        return self._together(
            "EndTxn",
            f"to {'commit' if commit else 'abort'} the transaction of",
            {tid: tid for tid in by_id},
            request,
            read,
            at_most=None if self.renews_identities else 4,
            timeout_ms=timeout_ms,
        )

    def describe(
        self, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription | HeadraceError]:
        """Return state and identity of each id, as its coordinator has them."""

        def read(
            tid: str, response: m.describe_transactions_response.DescribeTransactionsResponse
        ) -> tuple[ErrorCode, TransactionDescription]:
            (state,) = response.transaction_states
            return state.error_code, TransactionDescription(state.transaction_state, self._identity(tid, state))

        ids = {tid: tid for tid in transactional_ids}
        return self._together("DescribeTransactions", "to describe", ids, describe_request, read, timeout_ms=timeout_ms)

    def coordinators(self, transactional_ids: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, int]:
        """Return the node that coordinates each id; cached until it turns out to be wrong."""
        within_ms = self._client.api_timeout_ms if timeout_ms is None else timeout_ms
        return self._nodes(transactional_ids, TRANSACTION_KEY_TYPE, Deadline.after_ms(within_ms))

    def add_offsets(
        self, group_id: str, identities: Iterable[TransactionalIdentity], *, timeout_ms: float | None = None
    ) -> dict[str, HeadraceError | None]:
        """Send AddOffsetsToTxn: the group's offsets belong to each transaction. Not needed from version 2 on."""
        by_id = {identity.transactional_id: identity for identity in identities}

        def request(tid: str) -> RequestMessage:
            return m.add_offsets_to_txn_request.AddOffsetsToTxnRequest(
                transactional_id=TransactionalId(tid),
                producer_id=ProducerId(by_id[tid].producer_id),
                producer_epoch=i16(by_id[tid].producer_epoch),
                group_id=GroupId(group_id),
            )

        def read(_tid: str, response: m.add_offsets_to_txn_response.AddOffsetsToTxnResponse) -> tuple[ErrorCode, None]:
            return response.error_code, None

        ids = {tid: tid for tid in by_id}
        return self._together(
            "AddOffsetsToTxn", "the group's offsets in the transaction of", ids, request, read, timeout_ms=timeout_ms
        )

    def add_partitions(self, identity: TransactionalIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Send AddPartitionsToTxn, for brokers below `transaction.version` 2.

        Raises:
            BrokerError: The coordinator refused.
            Fenced: The identity is no longer valid.
            CannotConnect: No answer in time.
        """
        add = m.add_partitions_to_txn_request
        by_topic: dict[str, list[i32]] = {}
        for topic, partition in sorted(partitions):
            by_topic.setdefault(topic, []).append(i32(partition))

        def request(_tid: str) -> RequestMessage:
            transaction = add.AddPartitionsToTxnTransaction(
                transactional_id=TransactionalId(identity.transactional_id),
                producer_id=ProducerId(identity.producer_id),
                producer_epoch=i16(identity.producer_epoch),
                verify_only=False,
                topics=tuple(
                    add.AddPartitionsToTxnTopic(name=TopicName(topic), partitions=tuple(listed))
                    for topic, listed in by_topic.items()
                ),
            )
            return add.AddPartitionsToTxnRequest(transactions=(transaction,))

        def read(
            _tid: str, response: m.add_partitions_to_txn_response.AddPartitionsToTxnResponse
        ) -> tuple[ErrorCode, None]:
            # v4 and later report per transaction; an error of the whole request has no results.
            codes = [response.error_code]
            for transaction in response.results_by_transaction:
                for topic in transaction.topic_results:
                    codes += [entry.partition_error_code for entry in topic.results_by_partition]
            # OPERATION_NOT_ATTEMPTED is only the consequence of another partition's error.
            telling = [code for code in codes if code != ErrorCode.operation_not_attempted]
            return first_refusal(telling), None

        tid = identity.transactional_id
        # At most v3: later versions are batched, for brokers that verify partitions, not for clients (KIP-890).
        outcome = self._together(
            "AddPartitionsToTxn", "partitions in the transaction of", {tid: tid}, request, read, at_most=3
        )[tid]
        if isinstance(outcome, HeadraceError):
            raise outcome

    # All at once.

    def _together(
        self,
        api: str,
        what: str,
        keys: Mapping[str, str],  # transactional id → the coordinator's key
        request: Callable[[str], RequestMessage],
        read: Callable[[str, Reply], tuple[ErrorCode, Result]],
        *,
        key_type: int = TRANSACTION_KEY_TYPE,
        at_most: int | None = None,
        timeout_ms: float | None = None,
    ) -> dict[str, Result | HeadraceError]:
        # 1. One lookup for all unknown coordinators, then one request per id, all in flight at the same time: an
        #    application ends dozens of transactions per micro-batch, and one after the other would cost as many round
        #    trips. Kafka's TransactionManager has one id per producer and needs no such thing.
        # 2. Each answer is judged alone. Ids with a retriable error, or without an answer, stay `due`.
        # 3. A lost answer is repeated with the same identity: EndTxn, AddPartitionsToTxn and TxnOffsetCommit are
        #    idempotent, and InitProducerId only fences once more.
        round_: Round[Result] = Round(what=what, api=api, ids=tuple(keys))
        deadline = Deadline.after_ms(self._client.api_timeout_ms if timeout_ms is None else timeout_ms)
        backoff = Backoff(first_ms=5, highest_ms=500)
        while round_.due:
            try:
                nodes = self._nodes({keys[tid] for tid in round_.due}, key_type, deadline)
            except (CannotConnect, BrokerError) as error:
                # The lookup's error is the cause for every id that is left, whatever was wrong before.
                round_.reasons.clear()
                round_.give_up(error)
                break
            sent: list[tuple[str, PendingReply | None]] = []
            for tid in round_.due:
                try:
                    sent.append((tid, self._sent(request(tid), nodes[keys[tid]], at_most, deadline)))
                except BrokerError as error:
                    # The broker does not offer the request, as DescribeTransactions before Kafka 3.0 (KIP-664). That is
                    # an outcome: what the id has open ends with its timeout.
                    round_.outcomes[tid] = error
            for tid, reply in sent:
                response = _result_or_none(reply)
                if response is None:
                    round_.note_disconnect(tid)
                else:
                    round_.apply_answer(tid, *read(tid, response))
            # Refused by a node that does not coordinate the id, or not answered: looked up again before the next
            # attempt.
            for tid in round_.moved:
                self._coordinators.pop((key_type, keys[tid]), None)
            round_.moved.clear()
            if round_.due:
                if deadline.passed:
                    round_.give_up(_no_answer_error(api))
                    break
                backoff.pause(deadline)
        return round_.outcomes

    def _sent(self, request: RequestMessage, node: int, at_most: int | None, deadline: Deadline) -> PendingReply | None:
        try:
            # At least 100 ms even at the end of the time: an end that was sent and not awaited would be unknown.
            left_ms = min(deadline.remaining_s * 1000, self._client.request_timeout_ms)
            return self._client.start(request, node=node, timeout_ms=max(left_ms, 100), at_most=at_most)
        except ConnectionLost:
            return None

    def _nodes(self, keys: Iterable[str], key_type: int, deadline: Deadline) -> dict[str, int]:
        """Return each key's coordinator; unknown ones are looked up together where the brokers take several keys."""
        wanted = set(keys)
        backoff = Backoff()
        while unknown := sorted(key for key in wanted if (key_type, key) not in self._coordinators):
            for asked in [unknown] if self._finds_several() else [[key] for key in unknown]:
                request = m.find_coordinator_request.FindCoordinatorRequest(
                    key_type=i8(key_type), coordinator_keys=tuple(asked)
                )
                response = self._client.call(request, timeout_ms=max(deadline.remaining_s, 0.1) * 1000)
                for found in response.coordinators:
                    key = found.key or asked[0]  # up to version 3 the answer does not repeat the key
                    if found.error_code == ErrorCode.none:
                        self._coordinators[key_type, key] = int(found.node_id)
                    # COORDINATOR_NOT_AVAILABLE while `__transaction_state` is created, or has no leader.
                    elif not is_retriable(found.error_code) or deadline.passed:
                        raise refusal(found.error_code, f"to name the coordinator of {key}", api="FindCoordinator")
            if any((key_type, key) not in self._coordinators for key in unknown):
                backoff.pause(deadline)
        return {key: self._coordinators[key_type, key] for key in wanted}

    def _finds_several(self) -> bool:
        """Return whether the brokers look up several keys at once: FindCoordinator v4 (KIP-699, Kafka 3.0)."""
        versions = self._client.supported_range(ApiKey.FIND_COORDINATOR)
        return versions is not None and versions.highest >= SEVERAL_KEYS_VERSION

    def _identity(self, tid: str, response: _Identified) -> TransactionalIdentity:
        return TransactionalIdentity(
            transactional_id=tid,
            producer_id=int(response.producer_id),
            producer_epoch=int(response.producer_epoch),
        )


def describe_request(transactional_id: str) -> m.describe_transactions_request.DescribeTransactionsRequest:
    """Return a DescribeTransactions request for one id."""
    return m.describe_transactions_request.DescribeTransactionsRequest(
        transactional_ids=(TransactionalId(transactional_id),)
    )


def _result_or_none(reply: PendingReply | None) -> Response:
    try:
        return None if reply is None else reply.result()
    except ConnectionLost:
        return None


def _no_answer_error(api: str) -> CannotConnect:
    return CannotConnect("broker-unreachable", f"no answer to {api} in time", "check that the broker runs")


def _offsets_request(
    group_id: str,
    identity: TransactionalIdentity,
    offsets: Mapping[TopicPartition, int],
    member_id: str,
    member_epoch: int,
    metadata: str,
) -> RequestMessage:
    request = m.txn_offset_commit_request
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append((partition, offset))
    return request.TxnOffsetCommitRequest(
        transactional_id=TransactionalId(identity.transactional_id),
        group_id=GroupId(group_id),
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.producer_epoch),
        generation_id=i32(member_epoch),
        member_id=member_id,
        topics=tuple(
            request.TxnOffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(
                    request.TxnOffsetCommitRequestPartition(
                        partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=metadata
                    )
                    for partition, offset in listed
                ),
            )
            for topic, listed in by_topic.items()
        ),
    )
