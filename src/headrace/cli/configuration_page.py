"""The page docs/configuration.md, written from the tables of settings that the broker itself goes by."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.configuration import BROKER_SETTINGS
from headrace.broker.topic_configuration import TOPIC_SETTINGS
from headrace.client.client_settings import ClientSetting
from headrace.client.consumer.consumer_settings import CONSUMER_SETTINGS
from headrace.coordinator.settings import GROUP_SETTINGS, GroupSetting
from headrace.settings import Setting, render_value

__all__ = ["configuration_page"]

_HEAD = """# Configuration

This page is written by `python -m headrace.cli.docs --write` from the tables the broker goes by. Names, types, defaults
and bounds are Apache Kafka's; those of our own begin with `headrace.`. An unknown name is refused with the nearest one.

Where a value comes from, highest first: the topic's or group's own (`headrace configs --alter --topic …`,
`--group …`), this broker's (`--broker 1`), that of all brokers (`--broker-defaults`), the one the broker was started
with (`headrace broker --config NAME=VALUE`), the default. What is changed while the broker runs lies in
`headrace-configs.json` and `headrace-topics.json` of the data directory, is on the disk before it counts, and survives
a kill -9. `headrace configs --describe … --all` shows every value with its sources.

A changed setting of a group counts from its next heartbeat on; `streams.num.standby.replicas` and
`streams.rack.aware.assignment.tags` make a new assignment at once. A stored value that the broker's bounds no longer
allow counts as the bound.

Which kinds of groups are served is decided in two places: `group.coordinator.rebalance.protocols`, and the features
`streams.version` and `group.version` (`headrace features describe`). With `streams.version` at 0 every heartbeat and
description of a streams group is refused with UNSUPPORTED_VERSION; groups and offsets stay.
"""


_CONSUMER = """Of `Consumer` and `AsyncConsumer` ([page](consumer.md)): as arguments with underscores, in `config`, in a
properties file, or in the environment as `HEADRACE_GROUP_ID` and so on. What only means something to the Java client
or to librdkafka is passed over; an unknown name is refused with the nearest one.
"""
_BROKER_TITLES = ("setting", "type", "default", "bounds", "dynamic", "meaning")


def configuration_page() -> str:
    """The whole page."""
    return "\n".join(
        [
            _HEAD,
            "## Broker\n",
            'Only those marked "dynamic" can be changed while the broker runs; a change of another one is refused.\n',
            *_table(_BROKER_TITLES, map(_broker, BROKER_SETTINGS.values())),
            "\n## Group\n",
            "All can be changed at any time, also before the group exists. Bounds with a name are the broker's.\n",
            *_table(("setting", "type", "default", "bounds", "meaning"), map(_group, GROUP_SETTINGS.values())),
            "\n## Topic\n",
            "All can be given when a topic is created, and be changed at any time.\n",
            *_table(("setting", "type", "default", "bounds", "falls back to"), map(_topic, TOPIC_SETTINGS.values())),
            "\n## Consumer\n",
            _CONSUMER,
            *_table(("setting", "type", "default", "bounds", "meaning"), map(_consumer, CONSUMER_SETTINGS.values())),
            "",
        ]
    )


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines]


def _broker(setting: Setting) -> tuple[str, ...]:
    dynamic = "dynamic" if setting.dynamic else ""
    return f"`{setting.name}`", setting.kind, _default(setting), _bounds(setting), dynamic, _meaning(setting)


def _group(row: GroupSetting) -> tuple[str, ...]:
    setting = row.setting
    default = f"`{setting.synonym}`" if setting.synonym is not None else _default(setting)
    limits = [_bounds(setting), *(f"`{name}`" for name in (row.lowest, row.highest) if name is not None)]
    return f"`{setting.name}`", setting.kind, default, ", ".join(part for part in limits if part), _meaning(setting)


def _topic(setting: Setting) -> tuple[str, ...]:
    synonym = f"`{setting.synonym}`" if setting.synonym is not None else ""
    return f"`{setting.name}`", setting.kind, _default(setting), _bounds(setting), synonym


def _consumer(setting: ClientSetting) -> tuple[str, ...]:
    default = ",".join(setting.default) if isinstance(setting.default, tuple) else render_value(setting.default)
    bounds = f"≥ {setting.lowest}" if setting.lowest is not None else ""
    if setting.choices:
        bounds = f"one of {', '.join(setting.choices)}"
    return f"`{setting.name}`", setting.kind, default or "empty", bounds, setting.meaning


def _meaning(setting: Setting) -> str:
    return setting.documentation + (" (internal)" if setting.internal else "")


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "none"
    return render_value(setting.default) or "empty"


def _bounds(setting: Setting) -> str:
    parts = []
    if setting.minimum is not None:
        parts.append(f"≥ {setting.minimum}")
    if setting.maximum is not None:
        parts.append(f"≤ {setting.maximum}")
    if setting.choices:
        parts.append(f"{'of' if setting.kind == 'list' else 'one of'} {', '.join(setting.choices)}")
    return ", ".join(parts)
