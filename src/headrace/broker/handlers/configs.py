"""Settings and where their values come from: DescribeConfigs, ListConfigResources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from kio.static.primitive import i8

from headrace.broker.config.dynamic_settings import ALL_BROKERS, SettingsRefused
from headrace.broker.config.topic_configuration import (
    DescribedSetting,
    broker_settings,
    client_metrics_settings,
    cluster_settings,
    group_settings,
    topic_settings,
)
from headrace.broker.metadata.topic_administration import illegal_topic_name
from headrace.broker.requests.partial_response import (
    Api,
    require_cluster,
    require_resources,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import render_value

__all__ = ["APIS", "handle_describe_configs", "handle_list_config_resources"]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_TYPES = ("boolean", "string", "int", "short", "long", "double", "list", "class", "password")
CONFIG_TYPES = {name: number for number, name in enumerate(_TYPES, 1)}
# 600 resources of 55 KB are 33 MB of response in memory. Admin clients of Kafka's tools ask for one broker or topic at
# a time; a dashboard that asks for more splits its request.
MOST_RESOURCES = 600
# 50 × 0.2 ms: at most 10 ms between two heartbeats of other clients.
RESOURCES_A_TURN = 50


def handle_describe_configs(
    request: m.describe_configs_request.DescribeConfigsRequest, _context: RequestContext, broker: Services
) -> (
    m.describe_configs_response.DescribeConfigsResponse | Awaitable[m.describe_configs_response.DescribeConfigsResponse]
):
    """DescribeConfigs (API 32): the settings of topics, of this broker, of groups, with where each value comes from.

    Version notes: v1 synonyms and sources instead of is_default; v3 types and documentation; v4 flexible. Resource
    types: 2 topic, 4 broker, 8 broker logger (there are none: an empty list), 16 client metrics subscription,
    32 group. A null or empty list of keys asks for all. A group need not exist, as in Kafka.

    All settings of a resource take 0.2 ms and, encoded, 55 KB of memory. So resources are described over several turns
    of the event loop, and those beyond the bound of one request are refused one by one.
    """
    if len(request.resources) > RESOURCES_A_TURN:
        return _describe_in_steps(request, broker)
    return _describe_response([_describe_resource(asked, request, broker) for asked in request.resources])


async def _describe_in_steps(
    request: m.describe_configs_request.DescribeConfigsRequest, broker: Services
) -> m.describe_configs_response.DescribeConfigsResponse:
    results: list[m.describe_configs_response.DescribeConfigsResult] = []
    # A pause every few resources, so that a request for hundreds does not hold up the heartbeats of other clients.
    for asked in request.resources[:MOST_RESOURCES]:
        results.append(_describe_resource(asked, request, broker))
        if len(results) % RESOURCES_A_TURN == 0:
            await asyncio.sleep(0)
    too_many = f"A request describes at most {MOST_RESOURCES} resources: ask for the others in another one."
    # Each of them is answered: a client matches results to what it asked for.
    beyond = request.resources[MOST_RESOURCES:]
    results.extend(_describe_result(asked, ErrorCode.invalid_request, too_many, ()) for asked in beyond)
    return _describe_response(results)


def _describe_response(
    results: Iterable[m.describe_configs_response.DescribeConfigsResult],
) -> m.describe_configs_response.DescribeConfigsResponse:
    return m.describe_configs_response.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _describe_resource(
    asked: m.describe_configs_request.DescribeConfigsResource,
    request: m.describe_configs_request.DescribeConfigsRequest,
    broker: Services,
) -> m.describe_configs_response.DescribeConfigsResult:
    code, message = ErrorCode.none, ""
    configs: tuple[m.describe_configs_response.DescribeConfigsResourceResult, ...] = ()
    try:
        described = _DESCRIBERS.get(asked.resource_type, _unknown_type)(asked.resource_name, broker)
        # Unknown keys are left out, not refused, as in Kafka.
        wanted = set(asked.configuration_keys or ())
        configs = tuple(_entry(each, request) for each in described if not wanted or each.setting.name in wanted)
    except SettingsRefused as refusal:
        code, message = refusal.code, refusal.message
    return _describe_result(asked, code, message, configs)


def _describe_result(
    asked: m.describe_configs_request.DescribeConfigsResource,
    code: ErrorCode,
    message: str,
    configs: tuple[m.describe_configs_response.DescribeConfigsResourceResult, ...],
) -> m.describe_configs_response.DescribeConfigsResult:
    return m.describe_configs_response.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=configs,
    )


def _topic_settings(name: str, broker: Services) -> Iterable[DescribedSetting]:
    illegal = illegal_topic_name(name)
    if illegal is not None:
        raise SettingsRefused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {illegal}")
    topic = broker.metadata.topic(name)
    if topic is None:
        raise SettingsRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic_settings(topic.configs, broker.configuration)


def _broker_settings(name: str, broker: Services) -> Iterable[DescribedSetting]:
    if name == ALL_BROKERS:
        return cluster_settings(broker.configuration)
    _check_broker(name, broker, "Unexpected broker id, expected {} or empty string, but received {}")
    return broker_settings(broker.configuration)


def _logger_settings(name: str, broker: Services) -> Iterable[DescribedSetting]:
    _check_broker(name, broker, "Unexpected broker id, expected {} but received {}")
    return ()


def _check_broker(name: str, broker: Services, unexpected: str) -> None:
    # Kafka has two messages: for a name that is not a number, and for the number of another broker.
    if not name.removeprefix("-").isdigit():
        raise SettingsRefused(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
    if name != str(broker.node_id):
        raise SettingsRefused(ErrorCode.invalid_request, unexpected.format(broker.node_id, name))


def _group_settings(name: str, broker: Services) -> Iterable[DescribedSetting]:
    if not name:
        raise SettingsRefused(ErrorCode.invalid_request, "Group name must not be empty")
    return group_settings(broker.settings.groups.get(name, {}), broker.configuration)


def _client_metrics_settings(name: str, broker: Services) -> Iterable[DescribedSetting]:
    if not name:
        raise SettingsRefused(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")
    return client_metrics_settings(broker.settings.client_metrics.get(name, {}))


def _unknown_type(_name: str, _broker_settings: Services) -> Iterable[DescribedSetting]:
    raise SettingsRefused(ErrorCode.invalid_request, "This type of resource is not known here.")


_DESCRIBERS: Mapping[int, Callable[[str, Services], Iterable[DescribedSetting]]] = {
    TOPIC: _topic_settings,
    BROKER: _broker_settings,
    BROKER_LOGGER: _logger_settings,
    CLIENT_METRICS: _client_metrics_settings,
    GROUP: _group_settings,
}


def _entry(
    described: DescribedSetting, request: m.describe_configs_request.DescribeConfigsRequest
) -> m.describe_configs_response.DescribeConfigsResourceResult:
    r = m.describe_configs_response
    setting = described.setting
    secret = setting.kind == "password"  # its value is never returned, as in Kafka
    return r.DescribeConfigsResourceResult(
        name=setting.name,
        value=None if secret else render_value(described.value),
        read_only=described.read_only,
        config_source=i8(described.source),
        is_sensitive=secret,
        synonyms=tuple(
            r.DescribeConfigsSynonym(
                name=each.name, value=None if secret else render_value(each.value), source=i8(each.source)
            )
            for each in described.synonyms
        )
        if request.include_synonyms
        else (),
        config_type=i8(CONFIG_TYPES[setting.kind]),
        documentation=setting.documentation or None if request.include_documentation else None,
    )


_NAMES_OF: Mapping[int, Callable[[Services], Iterable[str]]] = {
    GROUP: lambda broker: sorted(broker.settings.groups),
    CLIENT_METRICS: lambda broker: sorted(broker.settings.client_metrics),
    BROKER_LOGGER: lambda broker: (str(broker.node_id),),
    BROKER: lambda broker: (str(broker.node_id),),
    TOPIC: lambda broker: (topic.name for topic in broker.metadata.topics()),
}


def handle_list_config_resources(
    request: m.list_config_resources_request.ListConfigResourcesRequest, context: RequestContext, broker: Services
) -> m.list_config_resources_response.ListConfigResourcesResponse:
    """ListConfigResources (API 74, KIP-1142): which resources can be described; groups only where something was set.

    Version notes: v0 lists client metrics only (it was ListClientMetricsResources); v1 has types.
    """
    r = m.list_config_resources_response
    wanted = {int(kind) for kind in request.resource_types} or set(_NAMES_OF)
    # Version 0 has no types in its layout; the decoder fills in none.
    if context.api_version == 0:
        wanted = {CLIENT_METRICS}
    if not wanted <= set(_NAMES_OF):
        return r.ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.unsupported_version, config_resources=()
        )
    return r.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        config_resources=tuple(
            r.ConfigResource(resource_name=name, resource_type=i8(kind))
            for kind, names in _NAMES_OF.items()
            if kind in wanted
            for name in names(broker)
        ),
    )


APIS = {
    ApiKey.DESCRIBE_CONFIGS: Api(handle_describe_configs, require_resources(Operation.DESCRIBE_CONFIGS)),
    ApiKey.LIST_CONFIG_RESOURCES: Api(handle_list_config_resources, require_cluster(Operation.DESCRIBE_CONFIGS)),
}
