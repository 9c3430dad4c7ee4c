"""AddOffsetsToTxn (API 25): the group's partition of `__consumer_offsets` becomes part of the transaction.

Version notes: v2 knows PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE. Clients at transaction version 2
do not send it: TxnOffsetCommit adds the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace.broker.coordinators.transaction_requests import answered, for_client
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.transactions.transaction_state import ProducerIdentity
from headrace.coordinator.transactions.transitions import Answer
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

Response = m.add_offsets_to_txn_response.AddOffsetsToTxnResponse
FENCED_SINCE = 2


def handle(
    request: m.add_offsets_to_txn_request.AddOffsetsToTxnRequest, call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one AddOffsetsToTxn request; the response is awaitable where it has to wait."""

    def respond(answer: Answer) -> Response:
        return Response(throttle_time=NO_THROTTLE, error_code=for_client(answer.code, call.api_version, FENCED_SINCE))

    transactional_id = request.transactional_id
    if not transactional_id:
        return respond(Answer(code=ErrorCode.invalid_request))
    producer = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    partition = GROUP_METADATA_TOPIC, broker.coordinator.partition_of(request.group_id)
    return answered(
        broker,
        transactional_id,
        lambda: broker.transactions.add_partitions(transactional_id, producer, (partition,), client_version=0),
        respond,
    )
