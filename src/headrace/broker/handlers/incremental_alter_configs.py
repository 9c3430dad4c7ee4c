"""IncrementalAlterConfigs (API 44): single settings of topics, brokers and groups are set, deleted, added to, reduced.

Version notes: v1 flexible. What may be changed while the broker runs, and how, is `dynamic_settings`'.
"""

from __future__ import annotations

from headrace.broker.config.alter_configs import Change, applied, outcomes, replace_settings
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m


def handle(
    request: m.incremental_alter_configs_request.IncrementalAlterConfigsRequest, _call: RequestContext, broker: Services
) -> m.incremental_alter_configs_response.IncrementalAlterConfigsResponse:
    """Answer one IncrementalAlterConfigs request."""
    r = m.incremental_alter_configs_response

    def alter(asked: m.incremental_alter_configs_request.AlterConfigsResource) -> None:
        changes = [Change(config.name, int(config.config_operation), config.value) for config in asked.configs]
        kind, name = int(asked.resource_type), asked.resource_name
        settings = applied(kind, name, changes, broker)
        replace_settings(kind, name, settings, broker, validate_only=request.validate_only)

    return r.IncrementalAlterConfigsResponse(
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
