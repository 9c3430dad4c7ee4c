"""AlterConfigs (API 33): all own settings of a topic, broker or group are replaced by the ones given.

Version notes: v2 flexible. Older clients use it where newer ones use IncrementalAlterConfigs.
"""

from __future__ import annotations

from headrace.broker.config.alter_configs import outcomes, replace_settings
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m


def handle(
    request: m.alter_configs_request.AlterConfigsRequest, _call: RequestContext, broker: Services
) -> m.alter_configs_response.AlterConfigsResponse:
    """Answer one AlterConfigs request."""
    r = m.alter_configs_response

    def alter(asked: m.alter_configs_request.AlterConfigsResource) -> None:
        settings = {config.name: config.value or "" for config in asked.configs}
        replace_settings(
            int(asked.resource_type), asked.resource_name, settings, broker, validate_only=request.validate_only
        )

    return r.AlterConfigsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            r.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked, code, message in outcomes(request.resources, alter)
        ),
    )
