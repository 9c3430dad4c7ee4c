"""DescribeConfigs (API 32): the settings of topics, of this broker, of groups, with where each value comes from.

Version notes: v1 synonyms and sources instead of is_default; v3 types and documentation; v4 flexible. Resource types:
2 topic, 4 broker, 8 broker logger (there are none: an empty list), 32 group. A null or empty list of keys asks for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kio.static.primitive import i8

from penstock.broker.call import Call
from penstock.broker.configuration import BROKER_SETTINGS
from penstock.broker.services import NO_THROTTLE, Services
from penstock.broker.settings import Setting, Value, render_value
from penstock.broker.topic_administration import TopicRefused
from penstock.broker.topic_configuration import TOPIC_SETTINGS, broker_default
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5
CONFIG_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
GROUP_SETTINGS = {
    f"streams.{name}": f"group.streams.{name}"
    for name in (
        "assignment.interval.ms",
        "heartbeat.interval.ms",
        "initial.rebalance.delay.ms",
        "num.standby.replicas",
        "session.timeout.ms",
    )
}

# (name, value, source) from the most special to the most general: the first one is in force.
Synonyms = list[tuple[str, Value | None, int]]


def handle(
    request: m.describe_configs_request.DescribeConfigsRequest, _call: Call, broker: Services
) -> m.describe_configs_response.DescribeConfigsResponse:
    return m.describe_configs_response.DescribeConfigsResponse(
        throttle_time=NO_THROTTLE, results=tuple(_resource(asked, request, broker) for asked in request.resources)
    )


def _resource(
    asked: m.describe_configs_request.DescribeConfigsResource,
    request: m.describe_configs_request.DescribeConfigsRequest,
    broker: Services,
) -> m.describe_configs_response.DescribeConfigsResult:
    code, message = ErrorCode.none, None
    configs: tuple[m.describe_configs_response.DescribeConfigsResourceResult, ...] = ()
    try:
        entries = _DESCRIBERS.get(asked.resource_type, _unknown_type)(asked.resource_name, broker)
        wanted = set(asked.configuration_keys or ())
        configs = tuple(
            _entry(setting, synonyms, request) for setting, synonyms in entries if not wanted or setting.name in wanted
        )
    except TopicRefused as refusal:
        code, message = refusal.code, refusal.message
    return m.describe_configs_response.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=configs,
    )


def _topic(name: str, broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    topic = broker.metadata.topic(name)
    if topic is None:
        raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return _topic_entries(topic.configs, broker)


def _topic_entries(own: Mapping[str, str], broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    for name, setting in TOPIC_SETTINGS.items():
        synonyms: Synonyms = [(name, own[name], DYNAMIC_TOPIC)] if name in own else []
        value, set_by = broker_default(name, broker.configuration)
        if set_by is not None:
            synonyms.append((set_by, value, STATIC_BROKER))
        if setting.synonym is not None:
            synonyms.append((setting.synonym, setting.default, DEFAULT))
        elif not synonyms:
            synonyms.append((name, setting.default, DEFAULT))
        yield setting, synonyms


def _broker(name: str, broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    if name == "":
        return iter(())  # the cluster-wide dynamic settings: there are none
    if name != str(broker.node_id):
        raise TopicRefused(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
    return _broker_entries(broker)


def _broker_entries(broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    given = broker.configuration.values
    for name, setting in BROKER_SETTINGS.items():
        synonyms: Synonyms = [(name, given[name], STATIC_BROKER)] if name in given else []
        yield setting, [*synonyms, (name, setting.default, DEFAULT)]


def _group(name: str, broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    if not name:
        raise TopicRefused(ErrorCode.invalid_request, "Default group resources are not allowed.")
    given = broker.configuration.values
    for own_name, broker_name in GROUP_SETTINGS.items():
        of_broker = BROKER_SETTINGS[broker_name]
        setting = Setting(name=own_name, kind=of_broker.kind, default=of_broker.default)
        synonyms: Synonyms = [(own_name, given[broker_name], STATIC_BROKER)] if broker_name in given else []
        yield setting, [*synonyms, (own_name, of_broker.default, DEFAULT)]


def _nothing(_name: str, _broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    return iter(())


def _unknown_type(_name: str, _broker: Services) -> Iterator[tuple[Setting, Synonyms]]:
    raise TopicRefused(ErrorCode.invalid_request, "This type of resource is not known here.")


_DESCRIBERS: Mapping[int, Callable[[str, Services], Iterator[tuple[Setting, Synonyms]]]] = {
    TOPIC: _topic,
    BROKER: _broker,
    BROKER_LOGGER: _nothing,
    CLIENT_METRICS: _nothing,
    GROUP: _group,
}


def _entry(
    setting: Setting, synonyms: Synonyms, request: m.describe_configs_request.DescribeConfigsRequest
) -> m.describe_configs_response.DescribeConfigsResourceResult:
    r = m.describe_configs_response
    _, value, source = synonyms[0]
    return r.DescribeConfigsResourceResult(
        name=setting.name,
        value=render_value(value),
        read_only=setting.name in BROKER_SETTINGS,
        config_source=i8(source),
        is_sensitive=False,
        synonyms=tuple(
            r.DescribeConfigsSynonym(name=name, value=render_value(value), source=i8(source))
            for name, value, source in synonyms
        )
        if request.include_synonyms
        else (),
        config_type=i8(CONFIG_TYPES[setting.kind]),
        documentation=setting.documentation or None if request.include_documentation else None,
    )
