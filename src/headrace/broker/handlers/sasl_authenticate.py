"""SaslAuthenticate (API 36) behind the login, or where there is none: it comes at the wrong time.

The login itself is `sasl_session`, in front of the handlers. Version notes: v1 session lifetime (KIP-368); v2
flexible.
"""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    _request: m.sasl_authenticate_request.SaslAuthenticateRequest, _call: RequestContext, broker: Services
) -> m.sasl_authenticate_response.SaslAuthenticateResponse:
    """Answer one SaslAuthenticate request."""
    del broker
    return m.sasl_authenticate_response.SaslAuthenticateResponse(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
