"""DescribeConfigs (API 32): the settings of topics, of this broker, of groups, with where each value comes from.

Version notes: v1 synonyms and sources instead of is_default; v3 types and documentation; v4 flexible. Resource types:
2 topic, 4 broker, 8 broker logger (there are none: an empty list), 16 client metrics (none are collected), 32 group. A
null or empty list of keys asks for all. A group need not exist, as in Kafka.

All settings of a resource take 0.2 ms and, encoded, 55 KB of memory. So resources are described over several turns of
the event loop, and those beyond the bound of one request are refused one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from kio.static.primitive import i8

from headrace.broker.config.config_sources import (
    DescribedSetting,
    broker_settings,
    cluster_settings,
    group_settings,
    topic_settings,
)
from headrace.broker.config.dynamic_settings import ALL_BROKERS, SettingsRefused
from headrace.broker.metadata.topic_administration import illegal_topic_name
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import render_value

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_TYPES = ("boolean", "string", "int", "short", "long", "double", "list", "class", "password")
CONFIG_TYPES = {name: number for number, name in enumerate(_TYPES, 1)}


Response = m.describe_configs_response.DescribeConfigsResponse
MOST_RESOURCES = 600
RESOURCES_A_TURN = 50


def handle(
    request: m.describe_configs_request.DescribeConfigsRequest, _call: RequestContext, broker: Services
) -> (
    m.describe_configs_response.DescribeConfigsResponse | Awaitable[m.describe_configs_response.DescribeConfigsResponse]
):
    """Answer one DescribeConfigs request; the response is awaitable where it has to wait."""
    if len(request.resources) > RESOURCES_A_TURN:
        return _over_turns(request, broker)
    return _answer([_resource(asked, request, broker) for asked in request.resources])


async def _over_turns(
    request: m.describe_configs_request.DescribeConfigsRequest, broker: Services
) -> m.describe_configs_response.DescribeConfigsResponse:
    results: list[m.describe_configs_response.DescribeConfigsResult] = []
    for asked in request.resources[:MOST_RESOURCES]:
        results.append(_resource(asked, request, broker))
        if len(results) % RESOURCES_A_TURN == 0:
            await asyncio.sleep(0)
    too_many = f"A request describes at most {MOST_RESOURCES} resources: ask for the others in another one."
    beyond = request.resources[MOST_RESOURCES:]
    results.extend(_result(asked, ErrorCode.invalid_request, too_many, ()) for asked in beyond)
    return _answer(results)


def _answer(
    results: Iterable[m.describe_configs_response.DescribeConfigsResult],
) -> m.describe_configs_response.DescribeConfigsResponse:
    return m.describe_configs_response.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _resource(
    asked: m.describe_configs_request.DescribeConfigsResource,
    request: m.describe_configs_request.DescribeConfigsRequest,
    broker: Services,
) -> m.describe_configs_response.DescribeConfigsResult:
    code, message = ErrorCode.none, ""
    configs: tuple[m.describe_configs_response.DescribeConfigsResourceResult, ...] = ()
    try:
        described = _DESCRIBERS.get(asked.resource_type, _unknown_type)(asked.resource_name, broker)
        wanted = set(asked.configuration_keys or ())
        configs = tuple(_entry(each, request) for each in described if not wanted or each.setting.name in wanted)
    except SettingsRefused as refusal:
        code, message = refusal.code, refusal.message
    return _result(asked, code, message, configs)


def _result(
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


def _topic(name: str, broker: Services) -> Iterable[DescribedSetting]:
    illegal = illegal_topic_name(name)
    if illegal is not None:
        raise SettingsRefused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {illegal}")
    topic = broker.metadata.topic(name)
    if topic is None:
        raise SettingsRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic_settings(topic.configs, broker.configuration)


def _broker(name: str, broker: Services) -> Iterable[DescribedSetting]:
    if name == ALL_BROKERS:
        return cluster_settings(broker.configuration)
    _check_broker(name, broker, "Unexpected broker id, expected {} or empty string, but received {}")
    return broker_settings(broker.configuration)


def _loggers(name: str, broker: Services) -> Iterable[DescribedSetting]:
    _check_broker(name, broker, "Unexpected broker id, expected {} but received {}")
    return ()


def _check_broker(name: str, broker: Services, unexpected: str) -> None:
    if not name.removeprefix("-").isdigit():
        raise SettingsRefused(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
    if name != str(broker.node_id):
        raise SettingsRefused(ErrorCode.invalid_request, unexpected.format(broker.node_id, name))


def _group(name: str, broker: Services) -> Iterable[DescribedSetting]:
    if not name:
        raise SettingsRefused(ErrorCode.invalid_request, "Group name must not be empty")
    return group_settings(broker.settings.groups.get(name, {}), broker.configuration)


def _client_metrics(name: str, _broker: Services) -> Iterable[DescribedSetting]:
    if not name:
        raise SettingsRefused(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")
    return ()


def _unknown_type(_name: str, _broker: Services) -> Iterable[DescribedSetting]:
    raise SettingsRefused(ErrorCode.invalid_request, "This type of resource is not known here.")


_DESCRIBERS: Mapping[int, Callable[[str, Services], Iterable[DescribedSetting]]] = {
    TOPIC: _topic,
    BROKER: _broker,
    BROKER_LOGGER: _loggers,
    CLIENT_METRICS: _client_metrics,
    GROUP: _group,
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
