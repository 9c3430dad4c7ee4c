"""The answer that refuses: for every API and version the code arrives, with the request's own names and indexes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.protocol.message_samples import sample

from headrace.broker.requests.error_responses import error_answer
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import RequestHeader, decode_response, encode_response
from headrace.protocol.version_conversion import message_class, upgrade_request

CODE = ErrorCode.not_coordinator


def codes_in(message: Any) -> set[ErrorCode]:
    if isinstance(message, ErrorCode):
        return {message}
    if isinstance(message, tuple):
        return {code for each in message for code in codes_in(each)}
    if hasattr(message, "__dataclass_fields__"):
        return {code for name in message.__dataclass_fields__ for code in codes_in(getattr(message, name))}
    return set()


@pytest.mark.parametrize("api_key", SUPPORTED, ids=lambda key: key.stem)
def test_every_api_can_be_refused_in_every_version(api_key: ApiKey) -> None:
    for version in range(SUPPORTED[api_key].lowest, SUPPORTED[api_key].highest + 1):
        chance = random.Random(f"{api_key} {version}")
        told = 0
        for _ in range(10):
            request = upgrade_request(api_key, version, sample(message_class(api_key, version, "request"), chance))
            header = RequestHeader(api_key=api_key, api_version=version, correlation_id=7, client_id=None)
            frame = encode_response(header, error_answer(api_key, request, CODE))
            _, answer = decode_response(api_key, version, frame[4:])
            told += CODE in codes_in(answer)
        assert told, f"version {version} tells nobody"


def test_the_answer_names_what_was_asked() -> None:
    p = m.produce_request
    request = p.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=from_ms(1000),
        topic_data=(
            p.TopicProduceData(name="a", partition_data=(p.PartitionProduceData(index=0, records=b""),)),
            p.TopicProduceData(
                name="b",
                partition_data=tuple(p.PartitionProduceData(index=index, records=b"") for index in (3, 5)),
            ),
        ),
    )
    answer: Any = error_answer(ApiKey.PRODUCE, request, ErrorCode.not_leader_or_follower)
    told = {
        (topic.name, partition.index): (partition.error_code, partition.base_offset)
        for topic in answer.responses
        for partition in topic.partition_responses
    }
    assert told == dict.fromkeys((("a", 0), ("b", 3), ("b", 5)), (ErrorCode.not_leader_or_follower, -1))


def test_bare_names_are_answered_one_by_one() -> None:
    asked = m.find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g1", "g2"))
    answer: Any = error_answer(ApiKey.FIND_COORDINATOR, asked, CODE)
    assert [(each.key, each.error_code, each.node_id) for each in answer.coordinators] == [
        ("g1", CODE, -1),
        ("g2", CODE, -1),
    ]
    describe = m.describe_groups_request.DescribeGroupsRequest(groups=("g1",), include_authorized_operations=False)
    described: Any = error_answer(ApiKey.DESCRIBE_GROUPS, describe, CODE)
    assert [(each.group_id, each.error_code) for each in described.groups] == [("g1", CODE)]
