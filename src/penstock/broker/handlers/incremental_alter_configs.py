"""IncrementalAlterConfigs (API 44): single settings of topics are set, deleted, appended to, subtracted from.

Version notes: v1 flexible. Only topics can be changed while the broker runs; brokers and groups say so.
"""

from __future__ import annotations

from penstock.broker.call import Call
from penstock.broker.cluster_metadata import TopicDescription
from penstock.broker.handlers.describe_configs import TOPIC
from penstock.broker.services import NO_THROTTLE, Services
from penstock.broker.settings import render_value
from penstock.broker.topic_administration import TopicRefused
from penstock.broker.topic_configuration import TOPIC_SETTINGS, effective_value
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def handle(
    request: m.incremental_alter_configs_request.IncrementalAlterConfigsRequest, _call: Call, broker: Services
) -> m.incremental_alter_configs_response.IncrementalAlterConfigsResponse:
    r = m.incremental_alter_configs_response
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
    return r.IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))


def topic_to_alter(resource_type: int, resource_name: str, broker: Services) -> TopicDescription:
    """The topic meant; raises TopicRefused for any other kind of resource."""
    if resource_type != TOPIC:
        raise TopicRefused(
            ErrorCode.invalid_request, "Only the settings of topics can be changed while this broker runs."
        )
    topic = broker.metadata.topic(resource_name)
    if topic is None:
        raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{resource_name}' does not exist.")
    return topic


def _alter(
    asked: m.incremental_alter_configs_request.AlterConfigsResource, broker: Services, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    try:
        topic = topic_to_alter(asked.resource_type, asked.resource_name, broker)
        names = [config.name for config in asked.configs]
        if len(set(names)) < len(names):
            raise TopicRefused(ErrorCode.invalid_request, "Error due to duplicate config keys")
        configs: dict[str, str | None] = dict(topic.configs)
        for change in asked.configs:
            _apply(change, topic, configs, broker)
        broker.topics.alter_configs(topic, configs, validate_only=validate_only)
    except TopicRefused as refusal:
        return refusal.code, refusal.message
    return ErrorCode.none, None


def _apply(
    change: m.incremental_alter_configs_request.AlterableConfig,
    topic: TopicDescription,
    configs: dict[str, str | None],
    broker: Services,
) -> None:
    if change.config_operation == SET:
        configs[change.name] = change.value
    elif change.config_operation == DELETE:
        configs.pop(change.name, None)
    elif change.config_operation in (APPEND, SUBTRACT):
        setting = TOPIC_SETTINGS.get(change.name)
        if setting is None or setting.kind != "list":
            raise TopicRefused(
                ErrorCode.invalid_config, f"Config value append is not allowed for config key: {change.name}"
            )
        present = render_value(effective_value(change.name, topic.configs, broker.configuration)) or ""
        kept = [part for part in present.split(",") if part]
        given = [part for part in (change.value or "").split(",") if part]
        if change.config_operation == APPEND:
            kept += [part for part in given if part not in kept]
        else:
            kept = [part for part in kept if part not in given]
        configs[change.name] = ",".join(kept)
    else:
        raise TopicRefused(ErrorCode.invalid_request, f"Unknown config operation {change.config_operation}.")
