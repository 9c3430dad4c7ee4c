"""First requests of a connection: ApiVersions, SaslHandshake, SaslAuthenticate. None of them needs a right.

The SASL login itself is `sasl_authenticator`'s, in front of the handlers.
"""

from __future__ import annotations

import re

from kio.static.primitive import i16, i64

from headrace.broker.metadata.features import SUPPORTED_FEATURES, Features
from headrace.broker.requests.api_table import SERVED
from headrace.broker.requests.partial_response import (
    Api,
)
from headrace.broker.requests.request_context import ClientInformation, RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey, advertised_range
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "answer_versions", "handle_api_versions", "handle_sasl_authenticate", "handle_sasl_handshake"]

# `ClientSoftwareName` and `-Version` as KIP-511 limits them; `\Z` and not `$`, which would accept a line end.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def handle_api_versions(
    request: m.api_versions_request.ApiVersionsRequest,
    context: RequestContext,
    broker: Services,
) -> m.api_versions_response.ApiVersionsResponse:
    """ApiVersions (API 18): which APIs and versions are spoken here, answered from the API table.

    Version notes: v3 flexible, tagged features (KIP-584); v3 clients choke on a feature whose minimum is 0
    (KAFKA-17011), so those are named from v4 on. The answer's header is v0 for ever; an unknown version is answered in
    v0's layout.
    """
    named = (request.client_software_name, request.client_software_version)
    # The software's name ends up in metrics and logs, so its characters are limited (KIP-511).
    if context.api_version >= 3 and not all(_SOFTWARE.match(text) for text in named):
        return answer_versions(context.api_version, code=ErrorCode.invalid_request)
    if context.api_version >= 3:
        context.client_information = ClientInformation(*named)
    return answer_versions(context.api_version, features=broker.features)


def answer_versions(
    api_version: int, *, code: ErrorCode = ErrorCode.none, features: Features | None = None
) -> m.api_versions_response.ApiVersionsResponse:
    """Build the response of ApiVersions.

    An error has no APIs, except UNSUPPORTED_VERSION: it names ApiVersions, so that the client can ask again."""
    r = m.api_versions_response
    # 1. Which APIs: all on success, none with an error.
    keys = tuple(sorted(SERVED)) if code is ErrorCode.none else ()
    # KIP-511: a newer client learns from this one entry which version of ApiVersions to speak.
    if code is ErrorCode.unsupported_version:
        keys = (ApiKey.API_VERSIONS,)
    shown = features if code is ErrorCode.none and api_version >= 3 else None
    return r.ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(_version_range(key) for key in keys),
        throttle_time=NO_THROTTLE,
        supported_features=tuple(
            r.SupportedFeatureKey(name=name, min_version=i16(levels.lowest), max_version=i16(levels.highest))
            for name, levels in SUPPORTED_FEATURES.items()
            # KAFKA-17011: clients of version 3 fail to parse a feature whose minimum is 0.
            if shown is not None and (levels.lowest > 0 or api_version >= 4)
        ),
        finalized_features_epoch=i64(shown.epoch if shown is not None else -1),
        finalized_features=tuple(
            r.FinalizedFeatureKey(name=name, max_version_level=i16(level), min_version_level=i16(level))
            for name, level in (shown.finalized() if shown is not None else {}).items()
        ),
    )


def _version_range(key: ApiKey) -> m.api_versions_response.ApiVersion:
    served = advertised_range(key)
    return m.api_versions_response.ApiVersion(
        api_key=i16(key), min_version=i16(served.lowest), max_version=i16(served.highest)
    )


def handle_sasl_handshake(
    _request: m.sasl_handshake_request.SaslHandshakeRequest, _context: RequestContext, broker: Services
) -> m.sasl_handshake_response.SaslHandshakeResponse:
    """SaslHandshake (API 17) behind the login, or where there is none: it comes at the wrong time.

    The login itself is `sasl_session`, in front of the handlers. Version notes: v0 is followed by bare tokens, v1 by
    SaslAuthenticate.
    """
    del broker
    return m.sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())


def handle_sasl_authenticate(
    _request: m.sasl_authenticate_request.SaslAuthenticateRequest, _context: RequestContext, broker: Services
) -> m.sasl_authenticate_response.SaslAuthenticateResponse:
    """SaslAuthenticate (API 36) behind the login, or where there is none: it comes at the wrong time.

    The login itself is `sasl_session`, in front of the handlers. Version notes: v1 session lifetime (KIP-368); v2
    flexible.
    """
    del broker
    return m.sasl_authenticate_response.SaslAuthenticateResponse(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


APIS = {
    ApiKey.API_VERSIONS: Api(handle_api_versions),
    ApiKey.SASL_HANDSHAKE: Api(handle_sasl_handshake),
    ApiKey.SASL_AUTHENTICATE: Api(handle_sasl_authenticate),
}
