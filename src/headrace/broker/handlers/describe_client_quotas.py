"""DescribeClientQuotas (API 48, KIP-546): the quotas whose entities a filter fits.

Version notes: v1 flexible. Match types: 0 this name, 1 the default, 2 any name or the default. `strict`: entities with
other parts than those asked for are left out.
"""

from __future__ import annotations

from kio.static.primitive import f64

from headrace.broker.requests.quotas import CLIENT, IP, USER
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


class _Refused(Exception):
    def __init__(self, message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        super().__init__(message)
        self.code = code


def handle(
    request: m.describe_client_quotas_request.DescribeClientQuotasRequest, _call: RequestContext, broker: Services
) -> m.describe_client_quotas_response.DescribeClientQuotasResponse:
    """Answer one DescribeClientQuotas request."""
    r = m.describe_client_quotas_response
    try:
        names, kinds = _filter(request)
    except _Refused as refusal:
        return r.DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE, error_code=refusal.code, error_message=str(refusal), entries=None
        )
    found = []
    for entity, values in broker.quotas.table.items():
        parts = dict(entity)
        fits = all(kind in parts and parts[kind] == name for kind, name in names.items())
        if fits and all(kind in parts for kind in kinds):
            if request.strict and len(parts) != len(names) + len(kinds):
                continue
            found.append((entity, values))
    return r.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message="",
        entries=tuple(
            r.EntryData(
                entity=tuple(r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
                values=tuple(r.ValueData(key=key, value=f64(values[key])) for key in sorted(values)),
            )
            for entity, values in found
        ),
    )


def _filter(
    request: m.describe_client_quotas_request.DescribeClientQuotasRequest,
) -> tuple[dict[str, str | None], list[str]]:
    """(Kind → name that it has to have, kinds that have to be there). Raises _Refused, in Kafka's words."""
    names: dict[str, str | None] = {}
    kinds: list[str] = []
    for part in request.components:
        kind = part.entity_type
        if not kind:
            raise _Refused("Invalid empty entity type.")
        if kind in names or kind in kinds:
            raise _Refused(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT, IP):
            raise _Refused(f"Unsupported entity type {kind}", ErrorCode.unsupported_version)
        if part.match_type == EXACT:
            if part.match is None:
                raise _Refused("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            names[kind] = part.match
        elif part.match_type == DEFAULT:
            if part.match is not None:
                raise _Refused("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            names[kind] = None
        elif part.match_type == SPECIFIED:
            if part.match is not None:
                raise _Refused("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            kinds.append(kind)
        else:
            raise _Refused(f"Unknown match type {part.match_type}")
    if (IP in names or IP in kinds) and len(names) + len(kinds) > 1:
        raise _Refused(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId "
            "filter component."
        )
    return names, kinds
