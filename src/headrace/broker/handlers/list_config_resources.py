"""ListConfigResources (API 74, KIP-1142): which resources can be described; groups only where something was set.

Version notes: v0 lists client metrics only (it was ListClientMetricsResources), of which there are none; v1 has types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kio.static.primitive import i8

from headrace.broker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

_NAMES: Mapping[int, Callable[[Services], Iterable[str]]] = {
    GROUP: lambda broker: sorted(broker.settings.groups),
    CLIENT_METRICS: lambda _broker: (),
    BROKER_LOGGER: lambda broker: (str(broker.node_id),),
    BROKER: lambda broker: (str(broker.node_id),),
    TOPIC: lambda broker: (topic.name for topic in broker.metadata.topics()),
}


def handle(
    request: m.list_config_resources_request.ListConfigResourcesRequest, call: RequestContext, broker: Services
) -> m.list_config_resources_response.ListConfigResourcesResponse:
    """Answer one ListConfigResources request."""
    r = m.list_config_resources_response
    wanted = {int(kind) for kind in request.resource_types} or set(_NAMES)
    if call.api_version == 0:
        wanted = {CLIENT_METRICS}
    if not wanted <= set(_NAMES):
        return r.ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.unsupported_version, config_resources=()
        )
    return r.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        config_resources=tuple(
            r.ConfigResource(resource_name=name, resource_type=i8(kind))
            for kind, names in _NAMES.items()
            if kind in wanted
            for name in names(broker)
        ),
    )
