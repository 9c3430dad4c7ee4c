"""Settings of topics, brokers, groups and client metrics are changed: AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_SETTINGS
from headrace.broker.config.dynamic_settings import SettingsRefused
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, topic_setting
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.metadata.topic_administration import TopicRefused
from headrace.broker.requests.partial_response import (
    Api,
    require_resources,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.settings import COORDINATOR_SETTINGS, GROUP_SETTINGS
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import Setting, list_of, render_value

__all__ = ["APIS", "handle_alter_configs", "handle_incremental_alter_configs"]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
# Operations of KIP-339 that change a list instead of replacing it.
_WORDS = {APPEND: "append", SUBTRACT: "subtract"}
Resource = TypeVar("Resource", bound=Any)
_UNCHANGEABLE = {BROKER_LOGGER: "This broker's loggers cannot be changed while it runs."}


class Change(NamedTuple):
    """One of IncrementalAlterConfigs' operations."""

    name: str
    operation: int
    value: str | None


def outcomes(
    resources: Sequence[Resource], alter: Callable[[Resource], None]
) -> Iterable[tuple[Resource, ErrorCode, str | None]]:
    """Return the outcome for each resource; one refusal does not stop the others. A resource that is named twice is
    refused."""
    named = Counter((int(each.resource_type), each.resource_name) for each in resources)
    for each in resources:
        # A resource that is named twice is refused each time, as in Kafka: the order of its changes would decide.
        try:
            if named[int(each.resource_type), each.resource_name] > 1:
                raise SettingsRefused(ErrorCode.invalid_request, "Each resource must appear at most once.")
            _check_values(each)
            alter(each)
        except (SettingsRefused, TopicRefused) as refusal:
            yield each, refusal.code, refusal.message
        else:
            yield each, ErrorCode.none, None


def _check_values(resource: Any) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise SettingsRefused(ErrorCode.invalid_request, "Error due to duplicate config keys")
    # Only a deletion may come without a value.
    nulls = [c.name for c in resource.configs if c.value is None and getattr(c, "config_operation", SET) != DELETE]
    if nulls:
        raise SettingsRefused(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")


def own_settings(resource_type: int, name: str, broker: Services) -> Mapping[str, str]:
    """Return the settings of the resource itself, without defaults. Raises SettingsRefused."""
    match resource_type:
        case 2:
            return _topic(name, broker).configs
        case 4:
            return broker.settings.of_broker(name)
        case 16:
            return broker.settings.client_metrics.get(name, {})
        case 32:
            return broker.settings.groups.get(name, {})
        case _:
            raise SettingsRefused(ErrorCode.invalid_request, _UNCHANGEABLE.get(resource_type, _unknown(resource_type)))


def replace_settings(
    resource_type: int, name: str, settings: Mapping[str, str], broker: Services, *, validate_only: bool
) -> None:
    """Replace all own settings of a resource. Raises SettingsRefused, TopicRefused."""
    match resource_type:
        case 2:
            broker.topics.alter_configs(_topic(name, broker), settings, validate_only=validate_only)
        case 4:
            broker.settings.replace_broker(name, settings, validate_only=validate_only)
        case 16:
            broker.settings.replace_client_metrics(name, settings, validate_only=validate_only)
        case 32:
            broker.settings.replace_group(name, settings, validate_only=validate_only)
        case _:
            raise SettingsRefused(ErrorCode.invalid_request, _UNCHANGEABLE.get(resource_type, _unknown(resource_type)))


def _unknown(resource_type: int) -> str:
    return f"Unknown resource type {resource_type}"


def _topic(name: str, broker: Services) -> TopicDescription:
    topic = broker.metadata.topic(name)
    if topic is None:
        raise SettingsRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic


def applied(resource_type: int, name: str, changes: Iterable[Change], broker: Services) -> dict[str, str]:
    """Return all own settings of the resource after these changes. Raises SettingsRefused."""
    own = own_settings(resource_type, name, broker)
    changed = dict(own)
    # In the order of the request: the same list may be appended to and reduced.
    for change in changes:
        if change.operation == SET:
            changed[change.name] = change.value or ""
        elif change.operation == DELETE:
            # Deleting what is not set succeeds, as in Kafka: the outcome, "not set", is what was asked for.
            changed.pop(change.name, None)
        elif change.operation in _WORDS:
            changed[change.name] = _merged(resource_type, own, change, broker)
        else:
            raise SettingsRefused(ErrorCode.invalid_request, f"Unknown config operation {change.operation}.")
    return changed


def _merged(resource_type: int, own: Mapping[str, str], change: Change, broker: Services) -> str:
    """The list that is in force, with the given parts added or taken away."""
    setting = _setting(resource_type, change.name)
    if setting is None or setting.kind != "list":
        word = _WORDS[change.operation]
        raise SettingsRefused(
            ErrorCode.invalid_config,
            f"Config value {word} is not allowed for config key: {change.name}"
            if resource_type == BROKER
            else f"Can't {word.upper()} to key {change.name} because its type is not LIST.",
        )
    # APPEND and SUBTRACT start from the value in force, defaults included, not from the resource's own
    # (ConfigAdminManager).
    parts = list_of(_in_force(resource_type, own, setting, broker))
    given = list_of(change.value or "")
    if change.operation == SUBTRACT:
        return ",".join(part for part in parts if part not in given)
    return ",".join([*parts, *(part for part in given if part not in parts)])


def _setting(resource_type: int, name: str) -> Setting | None:
    if resource_type == GROUP:
        return GROUP_SETTINGS[name].setting if name in GROUP_SETTINGS else None
    if resource_type == CLIENT_METRICS:
        return CLIENT_METRICS_SETTINGS.get(name)
    return (TOPIC_SETTINGS if resource_type == TOPIC else BROKER_SETTINGS).get(name)


def _in_force(resource_type: int, own: Mapping[str, str], setting: Setting, broker: Services) -> str:
    if setting.name in own:
        return own[setting.name]
    if resource_type == TOPIC:
        return render_value(topic_setting(setting.name, own, broker.configuration).value) or ""
    if resource_type == CLIENT_METRICS:
        return render_value(setting.default) or ""
    # A group's setting inherits from a broker setting of another name (`streams.session.timeout.ms` from
    # `group.streams.session.timeout.ms`).
    inherited = setting.synonym if resource_type == GROUP and setting.synonym else setting.name
    return render_value(broker.configuration.get(inherited)) or ""


def record_changes(
    resource_type: int, name: str, before: Mapping[str, str], context: RequestContext, request: str, broker: Services
) -> None:
    """Pass changed settings of groups, and of the broker those that groups inherit, to the recorder of groups."""
    if broker.recorder is None or resource_type not in (BROKER, GROUP):
        return
    after = own_settings(resource_type, name, broker)
    changes = [
        f"{setting}={after.get(setting, '(default)')}, was {before.get(setting, '(default)')}"
        for setting in sorted({*before, *after})
        if before.get(setting) != after.get(setting) and (resource_type == GROUP or setting in COORDINATOR_SETTINGS)
    ]
    if changes:
        group_id = name if resource_type == GROUP else ""
        broker.recorder.observe_settings(group_id, "; ".join(changes), context.coordinator, request)


def handle_alter_configs(
    request: m.alter_configs_request.AlterConfigsRequest, context: RequestContext, broker: Services
) -> m.alter_configs_response.AlterConfigsResponse:
    """AlterConfigs (API 33): all own settings of a topic, broker or group are replaced by the ones given.

    Version notes: v2 flexible. Older clients use it where newer ones use IncrementalAlterConfigs.
    """
    r = m.alter_configs_response

    def alter(asked: m.alter_configs_request.AlterConfigsResource) -> None:
        # AlterConfigs replaces: a setting that is not named returns to its default. That loses concurrent changes of
        # others, for which KIP-339 deprecated it.
        settings = {config.name: config.value or "" for config in asked.configs}
        kind, name = int(asked.resource_type), asked.resource_name
        before = own_settings(kind, name, broker)
        replace_settings(kind, name, settings, broker, validate_only=request.validate_only)
        if not request.validate_only:
            record_changes(kind, name, before, context, "AlterConfigs", broker)

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


def handle_incremental_alter_configs(
    request: m.incremental_alter_configs_request.IncrementalAlterConfigsRequest,
    context: RequestContext,
    broker: Services,
) -> m.incremental_alter_configs_response.IncrementalAlterConfigsResponse:
    """IncrementalAlterConfigs (API 44): single settings of topics, brokers and groups are set, deleted, added to,
    reduced.

    Version notes: v1 flexible. What may be changed while the broker runs, and how, is `dynamic_settings`'.
    """
    r = m.incremental_alter_configs_response

    def alter(asked: m.incremental_alter_configs_request.AlterConfigsResource) -> None:
        changes = [Change(config.name, int(config.config_operation), config.value) for config in asked.configs]
        kind, name = int(asked.resource_type), asked.resource_name
        before = own_settings(kind, name, broker)
        settings = applied(kind, name, changes, broker)
        replace_settings(kind, name, settings, broker, validate_only=request.validate_only)
        if not request.validate_only:
            record_changes(kind, name, before, context, "IncrementalAlterConfigs", broker)

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


APIS = {
    ApiKey.ALTER_CONFIGS: Api(handle_alter_configs, require_resources(Operation.ALTER_CONFIGS)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(handle_incremental_alter_configs, require_resources(Operation.ALTER_CONFIGS)),
}
