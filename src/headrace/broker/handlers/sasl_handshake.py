"""SaslHandshake (API 17) behind the login, or where there is none: it comes at the wrong time.

The login itself is `sasl_session`, in front of the handlers. Version notes: v0 is followed by bare tokens, v1 by
SaslAuthenticate.
"""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    _request: m.sasl_handshake_request.SaslHandshakeRequest, _call: RequestContext, broker: Services
) -> m.sasl_handshake_response.SaslHandshakeResponse:
    """Answer one SaslHandshake request."""
    del broker
    return m.sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
