"""The settings of the group coordinator and of single groups as tables: Kafka's names, types, defaults, bounds.

Source: the configuration definitions of Apache Kafka 4.3.1 (`group.*`, `offsets.*`, group resources), and those of
4.4.0 that this coordinator honours. Settings of groups that are not streams groups are here because they belong to the
same resource: an operator may set them before the group exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.settings import Kind, Setting, Value

__all__ = ["ASSIGNORS", "COORDINATOR_SETTINGS", "GROUP_SETTINGS", "REBALANCE_PROTOCOLS", "GroupSetting"]

REBALANCE_PROTOCOLS = ("consumer", "classic", "share", "streams")
ASSIGNORS = ("sticky",)
CONSUMER_ASSIGNORS = ("uniform", "range")
_INT_MAX = 2**31 - 1
_UNUSED = "Accepted as Kafka does; nothing here depends on it."
_LATER = "Accepted and kept as Kafka does; groups of this kind are not served yet."


def _row(
    name: str, kind: Kind, default: Value | None, minimum: int | None, text: str, **more: Any
) -> tuple[str, Setting]:
    return name, Setting(name=name, kind=kind, default=default, minimum=minimum, documentation=text, **more)


def _family(kind: str, what: str, note: str = "") -> Iterable[tuple[str, Setting]]:
    """The settings that consumer, share and streams groups have alike."""
    # Name, default, least and greatest default of the bounds, floor. As in Kafka's `GroupCoordinatorConfig`: the bounds
    # limit what a group may set for itself, the floor what the broker may.
    timings = (
        (
            "session.timeout.ms",
            45_000,
            45_000,
            60_000,
            1,
            f"A silent member of a {what} is removed after so long.",
        ),
        (
            "heartbeat.interval.ms",
            5_000,
            5_000,
            15_000,
            1,
            f"How often members of a {what} shall send heartbeats.",
        ),
        (
            "assignment.interval.ms",
            1_000,
            0,
            15_000,
            0,
            f"At least so long lies between two computed assignments of a {what}.",
        ),
    )
    for name, default, lowest, highest, minimum, text in timings:
        dynamic = name == "assignment.interval.ms"
        full = f"group.{kind}.{name}"
        yield _row(full, "int", default, minimum, f"{text}{note}", dynamic=dynamic)
        yield _row(f"group.{kind}.min.{name}", "int", lowest, minimum, f"The least value of {full}.")
        yield _row(f"group.{kind}.max.{name}", "int", highest, minimum, f"The greatest value of {full}.")


def _streams() -> Iterable[tuple[str, Setting]]:
    yield from _family("streams", "streams group")
    yield _row("group.streams.max.size", "int", _INT_MAX, 1, "How many members a streams group may have.")
    yield _row("group.streams.num.standby.replicas", "int", 0, 0, "How many standby tasks each stateful task has.")
    yield _row("group.streams.max.standby.replicas", "int", 2, 0, "The greatest value of streams.num.standby.replicas.")
    yield _row(
        "group.streams.initial.rebalance.delay.ms",
        "int",
        3_000,
        0,
        "The first assignment of an empty group waits so long for more members.",
    )
    yield _row(
        # KIP-1357. Kafka takes class names here as well, which a broker without Java cannot load.
        "group.streams.assignors",
        "list",
        "sticky",
        None,
        "The task assignors, the default first (Kafka 4.4). There is one.",
        choices=ASSIGNORS,
        may_be_empty=False,
    )
    yield _row(
        "group.streams.rack.aware.assignment.tags",
        "list",
        "",
        None,
        "Client tags that every member should bring (Kafka 4.4); a missing one is reported in heartbeat statuses.",
    )
    yield _row(
        "group.streams.task.offset.interval.ms",
        "int",
        60_000,
        1,
        "How often members report the offsets of their tasks (Kafka 4.4).",
        internal=True,
    )
    yield _row(
        "group.streams.min.task.offset.interval.ms",
        "int",
        15_000,
        1,
        "The least value of group.streams.task.offset.interval.ms.",
        internal=True,
    )
    # Kafka 4.4 has the settings, and a refiner that returns the target unchanged: no warm-up task is assigned there
    # either.
    yield _row("group.streams.num.warmup.replicas", "int", 2, 0, f"Warm-up tasks. {_UNUSED}", internal=True)
    yield _row(
        "group.streams.max.warmup.replicas",
        "int",
        20,
        0,
        "The greatest value of streams.num.warmup.replicas.",
        internal=True,
    )
    yield _row(
        "group.streams.acceptable.recovery.lag",
        "long",
        10_000,
        0,
        "A task that lags no more than this counts as caught up; heartbeat replies carry it (Kafka 4.4).",
        internal=True,
    )
    yield _row("group.streams.assignor.offload.enable", "boolean", True, None, _UNUSED, internal=True, dynamic=True)


def _consumer() -> Iterable[tuple[str, Setting]]:
    yield from _family("consumer", "consumer group")
    yield _row("group.consumer.max.size", "int", _INT_MAX, 1, "How many members a consumer group may have.")
    yield _row(
        "group.consumer.assignors",
        "list",
        "uniform,range",
        None,
        "The server-side assignors that members may choose from, the default first.",
        choices=CONSUMER_ASSIGNORS,
        may_be_empty=False,
    )
    yield _row(
        "group.consumer.migration.policy",
        "string",
        "bidirectional",
        None,
        "In which direction a group with members may move between the classic and the consumer protocol, when a member "
        "joins or leaves. Empty groups always may.",
        choices=("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        any_case=True,
    )
    yield _row(
        "group.consumer.regex.refresh.interval.ms",
        "int",
        600_000,
        10_000,
        "How often topics are compared with the regular expressions of a consumer group, though none was created.",
        internal=True,
    )
    yield _row(
        "group.initial.rebalance.delay.ms",
        "int",
        3_000,
        None,
        "The first rebalance of an empty classic group waits so long for more members, anew with each.",
    )
    yield _row("group.min.session.timeout.ms", "int", 6_000, None, "The least session timeout of classic members.")
    yield _row("group.max.session.timeout.ms", "int", 1_800_000, None, "The greatest one.")
    yield _row("group.max.size", "int", _INT_MAX, 1, "How many members a classic group may have.")
    yield _row(
        # Kafka's own bounds are 2^31 - 1. A heartbeat of a group of n members may cost O(n), so without a bound of its
        # own any client could make it arbitrarily expensive.
        "headrace.max.group.members",
        "int",
        5_000,
        1,
        "How many members a group of any kind may have; the smaller of this and group.max.size, "
        "group.consumer.max.size or group.streams.max.size counts. One more is refused (GROUP_MAX_SIZE_REACHED).",
    )


def _share() -> Iterable[tuple[str, Setting]]:
    yield from _family("share", "share group", f" {_LATER}")
    yield _row("group.share.assignors", "list", "simple", None, f"Server-side assignors. {_LATER}")
    yield _row("group.share.max.size", "int", 200, 1, f"Members of a share group at most. {_LATER}", maximum=1000)
    yield _row("group.share.initialize.retry.interval.ms", "int", 30_000, 1, _LATER, internal=True)
    # Share groups are not served. The settings are known, so that a configuration written for Kafka is accepted and
    # DescribeConfigs shows what an operator set.
    bounds = (
        ("delivery.count.limit", (5, 2, 10), (2, 2, 5), (10, 5, 25)),
        ("record.lock.duration.ms", (30_000, 1_000, 3_600_000), (15_000, 1_000, 30_000), (60_000, 30_000, 3_600_000)),
        ("partition.max.record.locks", (2_000, 100, 10_000), (100, 100, 2_000), (4_000, 2_000, 10_000)),
    )
    for name, own, lowest, highest in bounds:
        for prefix, (default, minimum, maximum) in (("", own), ("min.", lowest), ("max.", highest)):
            yield _row(f"group.share.{prefix}{name}", "int", default, minimum, _LATER, maximum=maximum)
    yield _row("group.share.max.share.sessions", "int", 2_000, 1, _LATER)


def _coordinator() -> Iterable[tuple[str, Setting]]:
    yield _row(
        "group.coordinator.rebalance.protocols",
        "list",
        "classic,consumer,streams",
        None,
        "The kinds of groups that are served; without `streams`, heartbeats of streams groups are refused.",
        choices=REBALANCE_PROTOCOLS,
        may_be_empty=False,
    )
    yield _row("group.coordinator.threads", "int", 4, 1, f"One event loop serves all groups. {_UNUSED}")
    yield _row("group.coordinator.background.threads", "int", 2, 1, _UNUSED)
    yield _row("group.coordinator.append.linger.ms", "int", -1, -1, f"Records are appended at once. {_UNUSED}")
    yield _row("group.coordinator.cached.buffer.max.bytes", "int", 1_048_588, 524_288, _UNUSED, dynamic=True)
    yield _row("offset.metadata.max.bytes", "int", 4_096, None, "The longest metadata of a committed offset.")
    yield _row("offsets.commit.timeout.ms", "int", 5_000, 1, f"There are no replicas to wait for. {_UNUSED}")
    yield _row("offsets.load.buffer.size", "int", 5_242_880, 1, _UNUSED)
    yield _row(
        "offsets.retention.minutes",
        "int",
        10_080,
        1,
        "Committed offsets of an empty group are dropped after so long.",
    )
    yield _row("offsets.retention.check.interval.ms", "long", 600_000, 1, "How often expired offsets are looked for.")
    yield _row(
        "offsets.topic.compression.codec",
        "int",
        0,
        0,
        f"The records of groups are not compressed. {_UNUSED}",
        maximum=4,
    )
    yield _row(
        "offsets.topic.num.partitions", "int", 50, 1, "Partitions of __consumer_offsets, fixed at the first start."
    )
    yield _row(
        "offsets.topic.replication.factor", "short", 1, 1, f"There is one replica (Kafka's default is 3). {_UNUSED}"
    )
    yield _row("offsets.topic.segment.bytes", "int", 104_857_600, 1, "Segment size of __consumer_offsets.")


COORDINATOR_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    dict([*_coordinator(), *_streams(), *_consumer(), *_share()])
)


class GroupSetting(NamedTuple):
    """`lowest`, `highest`: the broker settings that bound it, or nothing. `setting.synonym`: where it falls back to."""

    setting: Setting
    lowest: str | None = None
    highest: str | None = None


def _of_group(
    name: str, *, bounded: bool = False, lowest: str | None = None, highest: str | None = None
) -> GroupSetting:
    """`streams.session.timeout.ms` from `group.streams.session.timeout.ms`; `bounded` by its `min.` and `max.`."""
    kind, _, rest = name.partition(".")
    broker = COORDINATOR_SETTINGS[f"group.{name}"]
    # The group's own definition has Kafka's floor only: how high is the broker's `max.` to say.
    minimum = broker.minimum
    if bounded:
        lowest, highest = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
    setting = Setting(
        name=name,
        kind=broker.kind,
        default=broker.default,
        minimum=minimum,
        choices=broker.choices,
        synonym=broker.name,
        dynamic=True,
        internal=broker.internal,
        documentation=broker.documentation,
    )
    return GroupSetting(setting, lowest, highest)


def _own(name: str, kind: Kind, default: Value, text: str, **more: Any) -> GroupSetting:
    """A setting of groups that the broker has no default for."""
    return GroupSetting(Setting(name=name, kind=kind, default=default, dynamic=True, documentation=text, **more))


# ISO 8601 durations of `java.time.Duration`: days, hours, minutes, seconds with up to nine digits; the look-aheads
# demand at least one part.
_RESET = (
    r"latest|earliest|by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d{1,9})?S)?)?",
    (
        "Invalid value `{value}` for configuration share.auto.offset.reset. The value must be either 'earliest', "
        "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    ),
)


def _group_settings() -> Iterable[GroupSetting]:
    for kind in ("consumer", "share", "streams"):
        for name in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms"):
            yield _of_group(f"{kind}.{name}", bounded=True)
    for name in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms"):
        yield _of_group(f"share.{name}", bounded=True)
    yield _own(
        "share.auto.offset.reset", "string", "latest", f"Where a share group starts to read. {_LATER}", pattern=_RESET
    )
    levels = ("read_committed", "read_uncommitted")
    yield _own("share.isolation.level", "string", "read_uncommitted", _LATER, choices=levels)
    yield _own("share.renew.acknowledge.enable", "boolean", True, _LATER)
    # Not bounded by the broker: Kafka has no min. and max. of these.
    yield _of_group("streams.initial.rebalance.delay.ms")
    yield _of_group("streams.num.standby.replicas", highest="group.streams.max.standby.replicas")
    yield _of_group("streams.rack.aware.assignment.tags")
    yield _of_group("streams.task.offset.interval.ms", lowest="group.streams.min.task.offset.interval.ms")
    yield _of_group("streams.num.warmup.replicas", highest="group.streams.max.warmup.replicas")
    yield _of_group("streams.acceptable.recovery.lag")
    yield _of_group("streams.assignor.offload.enable")
    yield GroupSetting(
        Setting(
            name="streams.assignor.name",
            kind="string",
            default="sticky",
            synonym="group.streams.assignors",
            dynamic=True,
            documentation="The task assignor of this group (Kafka 4.4). There is one.",
        )
    )


GROUP_SETTINGS: Mapping[str, GroupSetting] = MappingProxyType(
    {row.setting.name: row for row in sorted(_group_settings(), key=lambda row: row.setting.name)}
)
