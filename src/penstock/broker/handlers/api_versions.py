"""ApiVersions (API 18): which APIs and versions are spoken here, answered from the API table.

Version notes: v3 flexible, tagged features (KIP-584); v3 clients choke on a feature whose minimum is 0 (KAFKA-17011),
so those are named from v4 on. The answer's header is v0 for ever; an unknown version is answered in v0's layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kio.static.primitive import i16, i64

from penstock.broker.call import Call
from penstock.broker.services import NO_THROTTLE
from penstock.protocol import messages as m
from penstock.protocol.api_keys import ApiKey
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.supported_versions import advertised_range

# KIP-1071 is finalised on this broker; nothing else that Kafka calls a feature is there yet.
STREAMS_VERSION = 1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def handle(
    request: m.api_versions_request.ApiVersionsRequest, call: Call, *, served: Iterable[ApiKey]
) -> m.api_versions_response.ApiVersionsResponse:
    named = (request.client_software_name, request.client_software_version)
    if call.api_version >= 3 and not all(_SOFTWARE.match(text) for text in named):
        return answer(served, call.api_version, code=ErrorCode.invalid_request)
    return answer(served, call.api_version)


def answer(
    served: Iterable[ApiKey], api_version: int, *, code: ErrorCode = ErrorCode.none
) -> m.api_versions_response.ApiVersionsResponse:
    """An error names no APIs, but for UNSUPPORTED_VERSION, which names ApiVersions so that the client can ask again."""
    r = m.api_versions_response
    keys = tuple(sorted(served)) if code is ErrorCode.none else ()
    if code is ErrorCode.unsupported_version:
        keys = (ApiKey.API_VERSIONS,)
    features = code is ErrorCode.none and api_version >= 3
    return r.ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(_range(key) for key in keys),
        throttle_time=NO_THROTTLE,
        supported_features=(
            (r.SupportedFeatureKey(name="streams.version", min_version=i16(0), max_version=i16(STREAMS_VERSION)),)
            if features and api_version >= 4
            else ()
        ),
        finalized_features_epoch=i64(0 if features else -1),
        finalized_features=(
            (r.FinalizedFeatureKey(name="streams.version", max_version_level=i16(1), min_version_level=i16(1)),)
            if features
            else ()
        ),
    )


def _range(key: ApiKey) -> m.api_versions_response.ApiVersion:
    served = advertised_range(key)
    return m.api_versions_response.ApiVersion(
        api_key=i16(key), min_version=i16(served.lowest), max_version=i16(served.highest)
    )
