"""AlterConfigs (API 33): all settings of a topic are replaced by the ones given.

Version notes: v2 flexible. Older clients use it where newer ones use IncrementalAlterConfigs.
"""

from __future__ import annotations

from penstock.broker.call import Call
from penstock.broker.handlers.incremental_alter_configs import topic_to_alter
from penstock.broker.services import NO_THROTTLE, Services
from penstock.broker.topic_administration import TopicRefused
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode


def handle(
    request: m.alter_configs_request.AlterConfigsRequest, _call: Call, broker: Services
) -> m.alter_configs_response.AlterConfigsResponse:
    r = m.alter_configs_response
    results = []
    for asked in request.resources:
        code, message = _alter(asked, broker, validate_only=request.validate_only)
        results.append(
            r.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
        )
    return r.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


def _alter(
    asked: m.alter_configs_request.AlterConfigsResource, broker: Services, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    try:
        topic = topic_to_alter(asked.resource_type, asked.resource_name, broker)
        configs = {config.name: config.value for config in asked.configs}
        broker.topics.alter_configs(topic, configs, validate_only=validate_only)
    except TopicRefused as refusal:
        return refusal.code, refusal.message
    return ErrorCode.none, None
