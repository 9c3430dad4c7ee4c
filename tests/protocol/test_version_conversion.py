"""Values that older versions do not have: neutral values, and fields of some versions only."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from tests.protocol.converted_messages import NO_THROTTLE, TOPIC_ID, response_at

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey


def test_null_becomes_the_neutral_value_where_an_old_version_has_no_null() -> None:
    r = m.metadata_response
    topic = r.MetadataResponseTopic(
        error_code=ErrorCode.unknown_topic_id, name=None, topic_id=TOPIC_ID, is_internal=False, partitions=()
    )
    response = r.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(),
        cluster_id=None,
        controller_id=1,
        topics=(topic,),
        error_code=ErrorCode.none,
    )
    assert response_at(ApiKey.METADATA, 9, response).topics[0].name == ""
    assert response_at(ApiKey.METADATA, 12, response).topics[0].name is None


def test_features_that_start_at_0_are_told_to_version_4_only() -> None:
    r = m.api_versions_response
    features = (
        r.SupportedFeatureKey(name="metadata.version", min_version=7, max_version=30),
        r.SupportedFeatureKey(name="streams.version", min_version=0, max_version=1),
    )
    response = r.ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(), throttle_time=NO_THROTTLE, supported_features=features
    )
    assert response_at(ApiKey.API_VERSIONS, 4, response).supported_features == features
    assert response_at(ApiKey.API_VERSIONS, 3, response).supported_features == features[:1]
