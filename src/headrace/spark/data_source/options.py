"""Options of the data source, under the names of Spark's Kafka source.

Every option has an effect or is refused: an option that is ignored reads other records than its user expects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from headrace.client.client_settings import CLIENT_SETTINGS, SECURITY_SETTINGS, parsed
from headrace.client.cluster_metadata import parse_bootstrap_servers
from headrace.client.fetch_loop import IsolationLevel
from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = [
    "EARLIEST",
    "LATEST",
    "ClientOptions",
    "Position",
    "SourceOptions",
    "TopicChoice",
    "bad_option",
    "boolean_option",
    "client_options",
    "known_options",
    "number_option",
    "refuse_options",
]

TopicPartition = tuple[str, int]

# Numbers that stand for ends of the log in the JSON form of offsets, as in Spark.
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2

_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_BOTH = (
    "assign",
    "failOnDataLoss",
    "group.id",
    "includeHeaders",
    "maxRecordsPerPartition",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    _STRATEGY,
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
_KAFKA = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "group.id",
        "isolation.level",
        "max.partition.fetch.bytes",
        "request.timeout.ms",
        *SECURITY_SETTINGS,
    }
)
OPTIONS: Final = (*_BOTH, *BATCH_ONLY, *STREAM_ONLY, *sorted(f"kafka.{name}" for name in _KAFKA))

_REFUSED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "fetchOffset.numRetries": (
            "requests are repeated until a time is up, not a number of times",
            "Set kafka.default.api.timeout.ms.",
        ),
        "fetchOffset.retryIntervalMs": (
            "the time between two attempts grows by itself",
            "Set kafka.default.api.timeout.ms.",
        ),
        "groupIdPrefix": (
            "reading joins no consumer group, so there is no group to name",
            "Set group.id to commit offsets to a group.",
        ),
        "kafka.auto.offset.reset": ("startingOffsets decides where reading begins", "Set startingOffsets."),
        "kafka.enable.auto.commit": (
            "offsets are committed after each micro-batch of a stream, and never in between",
            "Set group.id, and leave kafka.enable.auto.commit out.",
        ),
        "kafka.interceptor.classes": (
            "classes of the JVM cannot run here",
            "Leave it out, or transform the DataFrame.",
        ),
        "kafka.key.deserializer": ("keys are always binary", "Leave it out, and cast the column."),
        "kafka.value.deserializer": ("values are always binary", "Leave it out, and cast the column."),
        "kafkaConsumer.pollTimeoutMs": (
            "records are not polled by a Kafka consumer",
            "Set kafka.default.api.timeout.ms, the longest time without progress.",
        ),
        "path": ("a topic has no path", "Set subscribe, and call load() without an argument."),
        "topic": ("it is an option of Kafka sinks", "Set subscribe."),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """The topics to read: exactly one of `names`, `pattern` and `partitions` is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in every partition.

    Attributes:
        kind: "offsets" and "timestamps" have `by_partition`, "timestamp" has `timestamp_ms`.
        by_partition: Offsets, or times in milliseconds.
        timestamp_ms: The time for all partitions.
        option: The option that it was read from.
        or_latest: A partition without a record at or after the time is read from, or up to, its end.
    """

    kind: Literal["earliest", "latest", "committed", "offsets", "timestamp", "timestamps"]
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    option: str = field(default="", compare=False)
    or_latest: bool = True


EARLIEST: Final = Position(kind="earliest")
LATEST: Final = Position(kind="latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Settings of the clients in the driver and in the executors. Contains secrets."""

    bootstrap_servers: str
    client_id: str
    security: ClientSecurity = field(repr=False)
    isolation_level: IsolationLevel
    request_timeout_ms: int
    api_timeout_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options, checked. `given` holds the names of those that were set, as Spark spells them."""

    client: ClientOptions
    topics: TopicChoice
    group_id: str
    starting: Position | None
    ending: Position | None
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int
    max_records_per_partition: int
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay_ms: int
    given: frozenset[str]
    columns: tuple[str, ...] = ()
    """Columns of the query in their order; empty: all of them."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read options in any case, as Spark does.

        Raises:
            ConfigError: `unknown-setting`, `bad-value`, `not-supported-here`.
        """
        given = known_options(options, OPTIONS, _REFUSED)
        group_id = _group_id(given)
        starting = _position(given, "starting")
        if starting is not None and starting.kind == "committed" and not group_id:
            raise bad_option("startingOffsets", "committed", "the option group.id beside it", "Set group.id.")
        if _STRATEGY in given and not {"startingTimestamp", "startingOffsetsByTimestamp"} & given.keys():
            raise bad_option(_STRATEGY, given[_STRATEGY], "a starting time beside it", f"Leave {_STRATEGY} out.")
        most = number_option(given, "maxOffsetsPerTrigger", 0)
        least = number_option(given, "minOffsetsPerTrigger", 0)
        if most and least > most:
            raise bad_option("minOffsetsPerTrigger", least, f"at most maxOffsetsPerTrigger ({most})", "Lower it.")
        return cls(
            client=client_options(given),
            topics=_topics(given),
            group_id=group_id,
            starting=starting,
            ending=_position(given, "ending"),
            fail_on_data_loss=boolean_option(given, "failOnDataLoss", True),
            include_headers=boolean_option(given, "includeHeaders", False),
            min_partitions=number_option(given, "minPartitions", 0),
            max_records_per_partition=number_option(given, "maxRecordsPerPartition", 0),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", 900_000),
            given=frozenset(given),
        )

    def refuse(self, names: tuple[str, ...], query: str) -> None:
        """Refuse options that have no meaning in a query of this kind.

        Raises:
            ConfigError: `bad-value`.
        """
        refuse_options(self.given, names, query)


def known_options(
    options: Mapping[str, str], names: Iterable[str], refused: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """Return options by their spelling in `names`, which Spark does not keep.

    Args:
        options: As Spark passes them.
        names: The options that have an effect.
        refused: Those that a user may expect to have one: the reason and the fix by name.

    Raises:
        ConfigError: `unknown-setting`, `not-supported-here`.
    """
    own = tuple(names)
    spelling = {name.lower(): name for name in (*own, *refused)}
    given = {}
    for option, value in options.items():
        proper = spelling.get(option.lower())
        if proper is None:
            raise _unknown(option.lower(), spelling, [name for name in own if not name.startswith("kafka.")])
        if proper in refused:
            why, fix = refused[proper]
            raise ConfigError("not-supported-here", f"The option {proper} is not supported: {why}.", fix, key=proper)
        given[proper] = str(value)
    return given


def refuse_options(given: Iterable[str], names: Iterable[str], query: str) -> None:
    """Refuse options that have no meaning in a query of this kind.

    Args:
        given: The options that were set.
        names: Those to refuse.
        query: The kind of query, for the message.

    Raises:
        ConfigError: `bad-value`.
    """
    for name in names:
        if name in given:
            raise ConfigError("bad-value", f"{name} has no meaning in {query}.", f"Leave {name} out.", key=name)


def _unknown(name: str, spelling: Mapping[str, str], plain: Iterable[str]) -> ConfigError:
    near = nearest(name, spelling)
    if near is not None:
        fix = f"Did you mean {spelling[near]}?"
    elif name.startswith("kafka."):
        fix = "Leave it out: settings of Kafka's Java clients that are not listed have no effect here."
    else:
        fix = f"Known options: {', '.join(plain)}."
    return ConfigError("unknown-setting", f'Unknown option "{name}" of format("headrace").', fix, key=name)


def bad_option(name: str, value: object, expected: str, fix: str) -> ConfigError:
    """Return the error for a value of an option."""
    return ConfigError("bad-value", f"Invalid {name} {str(value)!r}: expected {expected}.", fix, key=name)


def _group_id(given: Mapping[str, str]) -> str:
    plain, kafka = given.get("group.id", "").strip(), given.get("kafka.group.id", "").strip()
    if plain and kafka and plain != kafka:
        raise bad_option("group.id", plain, f"the same group as kafka.group.id ({kafka})", "Set one of the two.")
    return plain or kafka


def client_options(given: Mapping[str, str]) -> ClientOptions:
    """Return the settings of clients among known options.

    Raises:
        ConfigError: `bad-value`.
    """
    kafka = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    servers = kafka.get("bootstrap.servers", "")
    if not servers.strip():
        raise ConfigError(
            "bad-value",
            "The option kafka.bootstrap.servers is missing.",
            'Add .option("kafka.bootstrap.servers", "host:port").',
            key="kafka.bootstrap.servers",
        )
    parse_bootstrap_servers(servers)

    def setting(name: str, default: Any = None) -> Any:
        known = CLIENT_SETTINGS[name]
        if name not in kafka:
            return known.default if default is None else default
        return parsed(known, kafka[name])

    return ClientOptions(
        bootstrap_servers=servers,
        client_id=setting("client.id", "headrace-spark"),
        security=ClientSecurity.from_settings(kafka),
        # The default of Kafka's consumer, and so of Spark's Kafka source.
        isolation_level=setting("isolation.level", "read_uncommitted"),
        request_timeout_ms=setting("request.timeout.ms"),
        api_timeout_ms=setting("default.api.timeout.ms"),
        fetch_max_bytes=setting("fetch.max.bytes"),
        max_partition_fetch_bytes=setting("max.partition.fetch.bytes"),
    )


def _topics(given: Mapping[str, str]) -> TopicChoice:
    names = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(names) != 1:
        found = "none of them" if not names else " and ".join(names)
        raise ConfigError(
            "bad-value",
            f"Exactly one of subscribe, subscribePattern and assign is required, got {found}.",
            'Add .option("subscribe", "topic").' if not names else "Keep one of them.",
        )
    [name] = names
    value = given[name].strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise bad_option(name, value, "names of topics, separated by commas", "Name a topic.")
        return TopicChoice(names=topics)
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise bad_option(name, value, f"a regular expression ({error})", "Correct the pattern.") from error
        if not value:
            raise bad_option(name, value, "a regular expression", "Set a pattern.")
        return TopicChoice(pattern=value)
    example = '{"orders":[0,1]}'
    assigned = _json(name, value, example)
    if not all(isinstance(n, list) and n and all(_is_index(i) for i in n) for n in assigned.values()):
        raise bad_option(name, value, f"JSON such as {example}", "Name the partitions of each topic.")
    partitions = {(topic, number) for topic, numbers in assigned.items() for number in numbers}
    return TopicChoice(partitions=tuple(sorted(partitions)))


def _position(given: Mapping[str, str], side: Literal["starting", "ending"]) -> Position | None:
    """Return the position, None without an option. The first of several options counts, in Spark's order."""
    or_latest = side == "ending" or _strategy(given)
    at, by_time, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if at in given:
        time_ms = number_option(given, at, 0, lowest=0)
        return Position(kind="timestamp", timestamp_ms=time_ms, or_latest=or_latest, option=at)
    if by_time in given:
        times = _by_partition(by_time, given[by_time], lowest=0)
        return Position(kind="timestamps", by_partition=times, or_latest=or_latest, option=by_time)
    if offsets not in given:
        return None
    value = given[offsets].strip()
    words = ("earliest", "latest", "committed") if side == "starting" else ("latest",)
    if value.lower() in words:
        return Position(kind=value.lower(), option=offsets)  # type: ignore[arg-type]
    if not value.startswith("{"):
        raise bad_option(offsets, value, f"{', '.join(words)} or JSON", f"Set {words[0]}, or offsets as JSON.")
    found = _by_partition(offsets, value, lowest=EARLIEST_OFFSET if side == "starting" else LATEST_OFFSET)
    return Position(kind="offsets", by_partition=found, option=offsets)


def _strategy(given: Mapping[str, str]) -> bool:
    value = given.get(_STRATEGY, "error").strip().lower()
    if value not in ("error", "latest"):
        raise bad_option(_STRATEGY, value, "error or latest", "Set error or latest.")
    return value == "latest"


def _by_partition(name: str, value: str, *, lowest: int) -> dict[TopicPartition, int]:
    example = '{"orders":{"0":23,"1":42}}'
    found = {}
    for topic, numbers in _json(name, value, example).items():
        if not isinstance(numbers, dict) or not numbers:
            raise bad_option(name, value, f"JSON such as {example}", "Name the partitions of each topic.")
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or number < lowest:
                expected = f"JSON such as {example}, with numbers from {lowest} on"
                raise bad_option(name, value, expected, f"Correct {topic}-{partition}.")
            found[topic, int(partition)] = number
    return found


def _json(name: str, value: str, example: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # A JSON reader keeps the last of two equal names, and one of the two offsets would be ignored.
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        found = json.loads(value, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise bad_option(name, value, f"JSON such as {example} ({error})", "Correct the JSON.") from error
    if not isinstance(found, dict) or not found:
        raise bad_option(name, value, f"JSON such as {example}", "Name a topic.")
    return found


def _is_index(value: object) -> bool:
    return type(value) is int and value >= 0


def boolean_option(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false among known options. Raises ConfigError: `bad-value`."""
    value = given.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise bad_option(name, given[name], "true or false", "Set true or false.")
    return value == "true"


def number_option(given: Mapping[str, str], name: str, default: int, *, lowest: int = 1) -> int:
    """Return a number among known options. Raises ConfigError: `bad-value`."""
    if name not in given:
        return default
    value = given[name].strip()
    if not re.fullmatch(r"[0-9]{1,19}", value) or not lowest <= int(value) < 1 << 63:
        raise bad_option(name, value, f"a number from {lowest} on", "Correct the number.")
    return int(value)


_UNITS_MS = MappingProxyType({"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000})


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    # Without a unit, Spark reads milliseconds (`JavaUtils.timeStringAsMs`).
    found = re.fullmatch(r"([0-9]{1,12})(ms|s|m|min|h|d)?", given[name].strip().lower())
    if found is None:
        raise bad_option(name, given[name], "a time such as 30s or 15m", "Correct the time.")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]
