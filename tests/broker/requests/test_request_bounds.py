"""Bounds of one request: items, created topics, repeated names; and what a client hears beyond them."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import Records, i8, i16, i32, i64
from tests.fuzz.request_cost import HALF, ROOT, STRANGER, MeteredBroker, read_frame
from tests.fuzz.wide_requests import framed, wide_request
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.storage import directory_metadata, log_directory

MEGABYTE = 1 << 20
MOST_ITEMS = 12_000


@pytest.fixture(scope="module")
def metered() -> Iterator[MeteredBroker]:
    with MeteredBroker({"open-wide": 1000, "shut": 1}) as running:
        yield running


def metadata_of(*names: str, create: bool = False) -> Any:
    return m.metadata_request.MetadataRequest(
        topics=tuple(m.metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
    )


@pytest.mark.parametrize("api_key", [ApiKey.DESCRIBE_GROUPS, ApiKey.METADATA, ApiKey.SASL_AUTHENTICATE])
def test_before_the_login_nothing_but_the_login_is_decoded(metered: MeteredBroker, api_key: ApiKey) -> None:
    """520 KB of empty group ids took 13 s of CPU and 866 MB."""
    version = {ApiKey.DESCRIBE_GROUPS: 5, ApiKey.METADATA: 13, ApiKey.SASL_AUTHENTICATE: 2}[api_key]
    body = b"\xc0\xde\x1f" + b"\x01" * 510_000 + b"\0\0"
    cost = metered.cost(framed(api_key, version, body), STRANGER, memory=True)
    assert cost.answer_bytes < 100
    assert cost.peak_bytes < 5 * MEGABYTE
    assert metered.least_cpu_ms(framed(api_key, version, body), STRANGER) < 50


def test_a_topic_that_is_named_many_times_is_answered_once(metered: MeteredBroker) -> None:
    for user, seen in ((ROOT, ["open-wide", "shut"]), (HALF, ["open-wide", "shut"])):
        answer = metered.call(user, ApiKey.METADATA, metadata_of(*["open-wide", "shut"] * 500))
        assert [topic.name for topic in answer.topics] == seen
        codes = {topic.name: topic.error_code for topic in answer.topics}
        assert codes["open-wide"] is ErrorCode.none
        assert (codes["shut"] is ErrorCode.topic_authorization_failed) == (user == HALF)


def test_a_group_that_is_named_many_times_is_described_once(metered: MeteredBroker) -> None:
    request = m.describe_groups_request.DescribeGroupsRequest(
        groups=(GroupId("open-g"), GroupId("shut-g")) * 100, include_authorized_operations=True
    )
    for user in (ROOT, HALF):
        answer = metered.call(user, ApiKey.DESCRIBE_GROUPS, request)
        assert [group.group_id for group in answer.groups] == ["open-g", "shut-g"]


def test_beyond_the_bound_a_request_is_refused_as_a_whole(metered: MeteredBroker) -> None:
    names = [f"open-{number}" for number in range(MOST_ITEMS + 1)]
    answer = metered.call(ROOT, ApiKey.METADATA, metadata_of(*names))
    assert (answer.error_code, answer.topics) == (ErrorCode.invalid_request, ())
    within = metered.call(ROOT, ApiKey.METADATA, metadata_of(*names[:MOST_ITEMS]))
    assert within.error_code is ErrorCode.none
    assert len(within.topics) == MOST_ITEMS


def test_oversized_request_without_error_field_closes_the_connection(metered: MeteredBroker) -> None:
    """A commit answered without its partitions would be taken for one that succeeded."""
    body = wide_request(
        ApiKey.OFFSET_COMMIT, 9, ("topics", "partitions"), words={}, items=MOST_ITEMS + 1, most_bytes=MEGABYTE
    )
    assert metered.cost(framed(ApiKey.OFFSET_COMMIT, 9, body), ROOT).answer_bytes == 0


def test_all_partitions_of_the_largest_topic_fit_in_one_request(metered: MeteredBroker) -> None:
    parts = tuple(
        m.offset_commit_request.OffsetCommitRequestPartition(
            partition_index=i32(index), committed_offset=i64(index), committed_metadata=None
        )
        for index in range(10_000)
    )
    request = m.offset_commit_request.OffsetCommitRequest(
        group_id=GroupId("open-many"),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        group_instance_id=None,
        topics=(
            m.offset_commit_request.OffsetCommitRequestTopic(
                name=TopicName("open-wide"),
                topic_id=not_none(metered.broker._call(lambda services: services.metadata.topic("open-wide"))).topic_id,
                partitions=parts,
            ),
        ),
    )
    answer = metered.call(ROOT, ApiKey.OFFSET_COMMIT, request)
    codes = {part.partition_index: part.error_code for topic in answer.topics for part in topic.partitions}
    assert len(codes) == 10_000
    assert {codes[index] for index in range(1000)} == {ErrorCode.none}
    assert {codes[index] for index in range(1000, 10_000)} == {ErrorCode.unknown_topic_or_partition}


def test_topics_are_created_by_one_write_and_so_many_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def save(*arguments: Any) -> None:
        written.append(1)
        directory_metadata.save_topics(*arguments)

    monkeypatch.setattr(log_directory, "save_topics", save)
    names = [f"new.{number}" for number in range(700)]
    with MeteredBroker({}, {"headrace.request.max.created.topics": 500}) as metered:
        written.clear()
        for created, writes in ((500, 1), (700, 2), (700, 2)):
            answer = metered.call(ROOT, ApiKey.METADATA, metadata_of(*names, create=True))
            codes = [topic.error_code for topic in answer.topics]
            assert codes.count(ErrorCode.none) == created
            assert codes.count(ErrorCode.unknown_topic_or_partition) == 700 - created
            assert len(written) == writes
        answer = metered.call(ROOT, ApiKey.CREATE_TOPICS, create(*((f"more-{number}", 1) for number in range(501))))
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.policy_violation}
        colliding = metered.call(ROOT, ApiKey.METADATA, metadata_of("new_7", "a.b", "a_b", create=True))
        assert [topic.error_code for topic in colliding.topics] == [
            ErrorCode.invalid_topic_exception,
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
        ]


def create(*topics: tuple[str, int]) -> Any:
    c = m.create_topics_request
    return c.CreateTopicsRequest(
        topics=tuple(
            c.CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(count),
                replication_factor=i16(-1),
                assignments=(),
                configs=(c.CreatableTopicConfig(name="retention.ms", value="1000"),),
            )
            for name, count in topics
        ),
    )


def test_one_request_creates_at_most_ten_thousand_partitions_as_in_kafka(metered: MeteredBroker) -> None:
    answer = metered.call(ROOT, ApiKey.CREATE_TOPICS, create(("big-1", 6000), ("big-2", 4001)))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.policy_violation}
    answer = metered.call(ROOT, ApiKey.CREATE_TOPICS, create(("big-1", 6000), ("shut", 1), ("small", 2)))
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "big-1": ErrorCode.none,
        "shut": ErrorCode.topic_already_exists,
        "small": ErrorCode.none,
    }
    assert {topic.name: topic.num_partitions for topic in answer.topics}["big-1"] == 6000
    own = [config for topic in answer.topics for config in topic.configs if config.name == "retention.ms"]
    assert [(config.value, int(config.config_source)) for config in own] == [("1000", 1)] * 2


def test_there_are_so_many_transactional_ids() -> None:
    def init(name: str) -> Any:
        return m.init_producer_id_request.InitProducerIdRequest(
            transactional_id=TransactionalId(name),
            transaction_timeout=from_ms(60_000),
            producer_id=ProducerId(-1),
            producer_epoch=i16(-1),
        )

    with MeteredBroker({}, {"headrace.max.transactional.ids": 3, "transaction.state.log.num.partitions": 2}) as metered:
        asked = [f"id-{number}" for number in (*range(5), 0, 2)]
        codes = [metered.call(ROOT, ApiKey.INIT_PRODUCER_ID, init(each)).error_code for each in asked]
        assert codes == [ErrorCode.none] * 3 + [ErrorCode.policy_violation] * 2 + [ErrorCode.none] * 2


def test_a_group_of_any_kind_has_so_many_members() -> None:
    of_broker = GroupCoordinatorConfiguration.from_settings(
        {"headrace.max.group.members": 3, "group.streams.max.size": 2}
    )
    assert of_broker.for_streams_group("g").max_size == 2
    assert of_broker.for_consumer_group("g").max_size == 3
    assert of_broker.classic_groups.max_size == 3


def test_a_new_data_directory_is_its_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with EmbeddedBroker(data_dir=directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o750)  # an operator's decision, which stays
    with EmbeddedBroker(data_dir=directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o750


def zeros(megabytes: int) -> bytes:
    return encode_batch([PlainRecord(key=None, value=bytes(megabytes << 20), timestamp_ms=1)], compression="zstd")


def produce(parts: dict[int, bytes]) -> Any:
    p = m.produce_request
    return p.ProduceRequest(
        transactional_id=None,
        acks=i16(-1),
        timeout=from_ms(1000),
        topic_data=(
            p.TopicProduceData(
                name=TopicName("open-wide"),
                topic_id=None,
                partition_data=tuple(
                    p.PartitionProduceData(index=i32(index), records=Records(records))
                    for index, records in parts.items()
                ),
            ),
        ),
    )


def test_decompression_is_bounded_and_off_the_event_loop(metered: MeteredBroker) -> None:
    """80 partitions of zeros in 169 KB held the broker for 8.7 s."""
    frame = encode_request(ApiKey.PRODUCE, 12, 1, "hostile", produce(dict.fromkeys(range(80), zeros(20))))
    assert len(frame) < 200_000
    cost = metered.cost(frame, ROOT, memory=True)
    assert cost.peak_bytes < 70 * MEGABYTE
    assert metered.least_cpu_ms(frame, ROOT) < 200
    with metered.connect(ROOT) as connection:
        connection.sendall(encode_request(ApiKey.PRODUCE, 12, 1, "hostile", produce({0: zeros(20), 1: zeros(20)})))
        _, answer = decode_response(ApiKey.PRODUCE, 12, read_frame(connection))
    codes = [part.error_code for part in answer.responses[0].partition_responses]  # type: ignore[attr-defined]
    assert codes == [ErrorCode.none, ErrorCode.message_too_large]


def test_batches_keep_their_order_during_validation_in_a_thread(metered: MeteredBroker) -> None:
    small = encode_batch([PlainRecord(key=None, value=b"small", timestamp_ms=1)], compression="zstd")
    sent = [zeros(8), small, zeros(3), small]
    with metered.connect(ROOT) as connection:
        for number, batch in enumerate(sent):
            connection.sendall(encode_request(ApiKey.PRODUCE, 12, number, "c", produce({7: batch, 8: batch})))
        answers = [decode_response(ApiKey.PRODUCE, 12, read_frame(connection)) for _ in sent]
    assert [correlation_id for correlation_id, _ in answers] == [0, 1, 2, 3]
    for partition in (0, 1):
        offsets = [answer.responses[0].partition_responses[partition].base_offset for _, answer in answers]  # type: ignore[attr-defined]
        assert offsets == [0, 1, 2, 3]
    values = [len(not_none(record.value)) for record in metered.broker.records("open-wide") if record.partition == 7]
    assert values == [8 << 20, 5, 3 << 20, 5]


def test_a_partition_that_is_asked_for_twice_has_no_offset(metered: MeteredBroker) -> None:
    """As Kafka; a look-up by time unpacks a batch each time."""
    q = m.list_offsets_request
    request = q.ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        timeout=from_ms(1000),
        topics=(
            q.ListOffsetsTopic(
                name=TopicName("open-wide"),
                partitions=tuple(
                    q.ListOffsetsPartition(partition_index=i32(each), current_leader_epoch=i32(-1), timestamp=i64(-2))
                    for each in (5, 6, 5)
                ),
            ),
        ),
    )
    codes = [part.error_code for part in metered.call(ROOT, ApiKey.LIST_OFFSETS, request).topics[0].partitions]
    assert codes == [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request]


def test_dear_requests_that_come_together_let_others_have_their_turn(metered: MeteredBroker) -> None:
    groups = tuple(GroupId(f"open-{number}") for number in range(5900))
    dear = m.describe_groups_request.DescribeGroupsRequest(groups=groups, include_authorized_operations=False)
    version = SUPPORTED[ApiKey.DESCRIBE_GROUPS].highest
    ping = m.api_versions_request.ApiVersionsRequest(client_software_name="honest", client_software_version="1")
    with metered.connect(ROOT) as hostile, metered.connect(ROOT) as honest:
        frame = encode_request(ApiKey.DESCRIBE_GROUPS, version, 1, "hostile", dear)
        sender = threading.Thread(target=hostile.sendall, args=(frame * 30,))
        sender.start()
        read_frame(hostile)
        honest.sendall(encode_request(ApiKey.API_VERSIONS, 3, 7, "honest", ping))
        read_frame(honest)
        received = 0
        hostile.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            received = len(hostile.recv(1 << 30, socket.MSG_PEEK))
        hostile.setblocking(True)
        answers = [read_frame(hostile) for _ in range(29)]
        sender.join()
    assert received < sum(map(len, answers)) / 2, "the honest one did not wait for all of them"


def test_settings_of_many_resources_are_described_up_to_a_bound(metered: MeteredBroker) -> None:
    """6,000 groups that need not exist took 2 s of CPU and 330 MB."""
    r = m.describe_configs_request
    request = r.DescribeConfigsRequest(
        resources=tuple(
            r.DescribeConfigsResource(resource_type=i8(32), resource_name=f"group-{number}", configuration_keys=None)
            for number in range(6000)
        ),
        include_synonyms=True,
        include_documentation=True,
    )
    results = metered.call(ROOT, ApiKey.DESCRIBE_CONFIGS, request).results
    assert [each.error_code for each in results] == [ErrorCode.none] * 600 + [ErrorCode.invalid_request] * 5400
    assert {len(each.configs) > 0 for each in results[:600]} == {True}
    assert [each.resource_name for each in results] == [each.resource_name for each in request.resources]
    frame = encode_request(ApiKey.DESCRIBE_CONFIGS, 4, 1, "c", request)
    assert metered.cost(frame, ROOT, memory=True).peak_bytes < 50 * MEGABYTE
    assert metered.least_cpu_ms(frame, ROOT) < 250


def acl_filter(name: str | None, operation: int = 1) -> Any:
    return m.delete_acls_request.DeleteAclsFilter(
        resource_type_filter=i8(2),
        resource_name_filter=name,
        pattern_type_filter=i8(3),
        principal_filter=None,
        host_filter=None,
        operation=i8(operation),
        permission_type=i8(1),
    )


def test_acls_are_deleted_in_one_write_and_filters_are_bounded(metered: MeteredBroker) -> None:
    """With 2,000 rules, 100 filters that fit took 2.5 s of CPU (a write each), and 1,000 that do not 1.1 s."""
    acls = m.create_acls_request
    creations = tuple(
        acls.AclCreation(
            resource_type=i8(2),
            resource_name=f"rule-{number}",
            resource_pattern_type=i8(3),
            principal="User:somebody",
            host="*",
            operation=i8(3),
            permission_type=i8(3),
        )
        for number in range(2000)
    )
    metered.call(ROOT, ApiKey.CREATE_ACLS, acls.CreateAclsRequest(creations=creations))

    def delete(*filters: Any) -> Any:
        return m.delete_acls_request.DeleteAclsRequest(filters=filters)

    frame = encode_request(ApiKey.DELETE_ACLS, 3, 1, "c", delete(*(acl_filter(f"none-{n}") for n in range(1000))))
    assert metered.least_cpu_ms(frame, ROOT) < 100
    frame = encode_request(ApiKey.DELETE_ACLS, 3, 1, "c", delete(*(acl_filter(f"rule-{n}") for n in range(100))))
    assert metered.cost(frame, ROOT).cpu_ms < 200
    # As in Kafka each filter sees the rules from before the request: one that two filters fit is named twice.
    results = metered.call(
        ROOT, ApiKey.DELETE_ACLS, delete(acl_filter("rule-100"), acl_filter("rule-0"), acl_filter("rule-100", 3))
    ).filter_results
    assert [len(each.matching_acls) for each in results] == [1, 0, 1]
    results = metered.call(ROOT, ApiKey.DELETE_ACLS, delete(*[acl_filter(None)] * 100)).filter_results
    assert len(results[0].matching_acls) == 1899
    codes = [each.error_code for each in results]
    assert codes == sorted(codes)
    assert codes[-1] is ErrorCode.invalid_request, "those beyond the bound"
    describe = m.describe_acls_request.DescribeAclsRequest(
        resource_type_filter=i8(2),
        resource_name_filter=None,
        pattern_type_filter=i8(3),
        principal_filter=None,
        host_filter=None,
        operation=i8(1),
        permission_type=i8(1),
    )
    assert metered.call(ROOT, ApiKey.DESCRIBE_ACLS, describe).resources == ()


def test_producers_of_all_partitions_are_bounded_together() -> None:
    """Producer ids are what a client says they are."""
    p = m.produce_request
    with MeteredBroker({"open": 20}, {"headrace.max.producers": 500}) as metered:
        for turn in range(50):
            parts = tuple(
                p.PartitionProduceData(
                    index=i32(index),
                    records=Records(
                        encode_batch(
                            [PlainRecord(key=None, value=b"x", timestamp_ms=1)],
                            producer_id=20 * turn + index,
                            producer_epoch=0,
                            base_sequence=0,
                        )
                    ),
                )
                for index in range(20)
            )
            topics = (p.TopicProduceData(name=TopicName("open"), topic_id=None, partition_data=parts),)
            request = p.ProduceRequest(transactional_id=None, acks=i16(1), timeout=from_ms(1000), topic_data=topics)
            frame = encode_request(ApiKey.PRODUCE, 12, 1, "c", request)
            with metered.connect(ROOT) as connection:
                connection.sendall(frame)
                answer: Any = decode_response(ApiKey.PRODUCE, 12, read_frame(connection))[1]
            assert {part.error_code for each in answer.responses for part in each.partition_responses} == {
                ErrorCode.none
            }
        d = m.describe_producers_request
        asked = d.TopicRequest(name=TopicName("open"), partition_indexes=tuple(i32(index) for index in range(20)))
        described = metered.call(ROOT, ApiKey.DESCRIBE_PRODUCERS, d.DescribeProducersRequest(topics=(asked,))).topics[0]
        known = [len(part.active_producers) for part in described.partitions]
        assert 400 <= sum(known) <= 500, known
        assert min(known) > 0
