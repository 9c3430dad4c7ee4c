"""ApiVersions: what is served, unknown versions, names of client software."""

from __future__ import annotations

import pytest
from tests.broker.network.request_frames import API_VERSIONS, framed, header
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.requests.api_table import SERVED
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey, advertised_range
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.request_codec import decode_response


def test_unknown_api_versions_version_is_answered_as_version_0(broker: EmbeddedBroker, connect: Connect) -> None:
    client = connect(broker)
    client.socket.sendall(framed(header(ApiKey.API_VERSIONS, 77)))
    correlation_id, answer = decode_response(ApiKey.API_VERSIONS, 0, client.read_frame())
    assert correlation_id == 7
    assert isinstance(answer, m.api_versions_response.ApiVersionsResponse)
    assert answer.error_code is ErrorCode.unsupported_version
    assert [(api.api_key, api.max_version) for api in answer.api_keys] == [(18, SUPPORTED[ApiKey.API_VERSIONS].highest)]
    assert client.call(ApiKey.API_VERSIONS, API_VERSIONS).error_code is ErrorCode.none


@pytest.mark.parametrize("version", range(5))
def test_api_versions_names_what_is_served_and_nothing_else(
    version: int, broker: EmbeddedBroker, connect: Connect
) -> None:
    answer = connect(broker).call(ApiKey.API_VERSIONS, API_VERSIONS, version)
    assert {api.api_key for api in answer.api_keys} == set(SERVED)
    for api in answer.api_keys:
        assert (api.min_version, api.max_version) == tuple(advertised_range(ApiKey(api.api_key)))
    # KAFKA-17011: clients of version 3 choke on a feature whose minimum is 0.
    zero_based = ["group.version", "streams.version", "transaction.version"] if version >= 4 else []
    supported = sorted(feature.name for feature in answer.supported_features)
    assert supported == sorted([*zero_based, *(["metadata.version"] if version >= 3 else [])])
    finalized = [(feature.name, feature.max_version_level) for feature in answer.finalized_features]
    levels = [("group.version", 1), ("metadata.version", 30), ("streams.version", 1), ("transaction.version", 2)]
    assert finalized == (levels if version >= 3 else [])


def test_api_versions_refuses_a_senseless_software_name(broker: EmbeddedBroker, connect: Connect) -> None:
    odd = m.api_versions_request.ApiVersionsRequest(client_software_name="-odd-", client_software_version="")
    assert connect(broker).call(ApiKey.API_VERSIONS, odd, 3).error_code is ErrorCode.invalid_request
