"""The broker's settings: Kafka's names and defaults, plus our own, which begin with `headrace.`.

An unknown name is an error that names the nearest one: a setting that silently does nothing is worse than none. Those
that are marked dynamic may be changed while the broker runs; the changes lie over what it was started with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from headrace.broker.config.kafka_setting_names import SETTINGS_WITHOUT_EFFECT
from headrace.broker.config.listener_configuration import (
    SECURITY_SETTINGS,
    ListenerConfiguration,
    listeners_of,
    prefixed_setting,
)
from headrace.coordinator.configuration import check_bounds
from headrace.coordinator.settings import COORDINATOR_SETTINGS
from headrace.errors import ConfigError
from headrace.settings import Kind, Setting, Value, parse_value, unknown_setting

__all__ = ["BROKER_SETTINGS", "BrokerConfiguration", "ChangedValues", "FlushPolicy"]

FlushPolicy = Literal["never", "interval", "always"]

_DAY_MS = 24 * 60 * 60 * 1000
_DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"  # loopback only, unless told otherwise


def _row(
    name: str, kind: Kind, default: Value | None, minimum: int | None = None, **more: object
) -> tuple[str, Setting]:
    choices = cast("tuple[str, ...]", more.get("choices", ()))
    return name, Setting(
        name=name,
        kind=kind,
        default=default,
        minimum=minimum,
        choices=choices,
        dynamic=bool(more.get("dynamic", False)),
        internal=bool(more.get("internal", False)),
        maximum=cast("int | None", more.get("maximum")),
        documentation=str(more.get("doc", "")),
    )


def _changeable(
    name: str, kind: Kind, default: Value | None, minimum: int | None = None, **more: object
) -> tuple[str, Setting]:
    """Kafka marks it dynamic, and a change counts here at once."""
    return _row(name, kind, default, minimum, dynamic=True, **more)


BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    dict(
        (
            *SETTINGS_WITHOUT_EFFECT.items(),
            _row("node.id", "int", 1, 0),
            _row("listeners", "string", _DEFAULT_LISTENERS),
            _row("advertised.listeners", "string", None),
            _row("log.dirs", "string", None),
            _row("num.partitions", "int", 1, 1),
            _row("default.replication.factor", "int", 1, 1),
            _row("auto.create.topics.enable", "boolean", True),
            _row("delete.topic.enable", "boolean", True),
            _changeable("message.max.bytes", "int", 1048588, 0),
            _changeable(
                "telemetry.max.bytes", "int", 1048576, 1, doc="The largest PushTelemetry of a client, in bytes."
            ),
            _row("socket.request.max.bytes", "int", 104857600, 1),
            _row("connections.max.idle.ms", "long", 600000, 1),
            _changeable("max.connections", "int", 2147483647, 0),
            _changeable("max.connections.per.ip", "int", 2147483647, 0),
            _changeable("max.connections.per.ip.overrides", "string", "", doc="Other numbers: 10.0.0.7:100,host:20"),
            _changeable("max.connection.creation.rate", "int", 2147483647, 0),
            _row(
                "headrace.max.topics",
                "int",
                100000,
                1,
                doc="So many topics there may be; one more is refused (POLICY_VIOLATION).",
            ),
            _row(
                "headrace.max.partitions",
                "int",
                200000,
                1,
                doc="So many partitions all topics together may have; more are refused (POLICY_VIOLATION).",
            ),
            _row(
                "headrace.max.groups",
                "int",
                100000,
                1,
                doc="So many groups there may be; the first heartbeat or position of one more is refused "
                "(POLICY_VIOLATION).",
            ),
            _row(
                "headrace.group.history.records",
                "int",
                0,
                0,
                doc="The recorder of groups keeps so many entries of each group in the topic __headrace_group_history: "
                "changes with their authors, standstill by partition, rates. 0: nothing is recorded.",
                maximum=1_000_000,
            ),
            _row(
                "headrace.max.transactional.ids",
                "int",
                100000,
                1,
                doc="So many transactional ids there may be; the first InitProducerId of one more is refused "
                "(POLICY_VIOLATION).",
            ),
            _row(
                "headrace.max.producers.per.partition",
                "int",
                5000,
                1,
                doc="So many idempotent producers a partition knows besides those with an open transaction. Those that "
                "wrote longest ago are forgotten first, as if producer.id.expiration.ms had passed.",
            ),
            _row(
                "headrace.max.producers",
                "int",
                100000,
                1,
                doc="So many idempotent producers all partitions know together, besides those with an open "
                "transaction; 1 KiB of memory each. Beyond it the partitions that know the most forget those that "
                "wrote longest ago.",
            ),
            _row(
                "headrace.response.cache.max.bytes",
                "long",
                67108864,
                0,
                doc="Answers to heartbeats that are kept to be repeated, all connections together; at most 512 KiB of "
                "one connection.",
            ),
            _row(
                "headrace.request.max.items",
                "int",
                12000,
                1000,
                doc="So many items the arrays of one request may have together: names, partitions, settings. A larger "
                "one is answered INVALID_REQUEST where its answer has a code for the whole, else its connection is "
                "closed. Clients split what they ask for; the default names all partitions of the largest topic.",
            ),
            _row(
                "headrace.request.max.unpacked.bytes",
                "int",
                25165824,
                1048576,
                doc="So many bytes the compressed batches of one Produce request may unpack to, all together; the "
                "partitions beyond that are refused (MESSAGE_TOO_LARGE).",
            ),
            _row(
                "headrace.request.max.created.topics",
                "int",
                1000,
                1,
                doc="So many topics one request creates. CreateTopics with more is refused (POLICY_VIOLATION). "
                "Metadata with auto.create.topics.enable creates so many and answers "
                "UNKNOWN_TOPIC_OR_PARTITION for the others: clients ask for them again.",
            ),
            _row(
                "headrace.receiving.max.bytes",
                "long",
                1073741824,
                1048576,
                doc="Requests that have come only in part may hold so much memory, all connections together; the "
                "connection that would take more is closed.",
            ),
            _row(
                "authorizer.class.name",
                "string",
                "",
                choices=("", "off", "on", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
                doc="Access rules are asked when this names Kafka's StandardAuthorizer, or says on.",
            ),
            _row("quota.window.num", "int", 11, 1),
            _row("quota.window.size.seconds", "int", 1, 1),
            _row("super.users", "string", "", doc="Who may do everything: User:alice;User:bob"),
            _row("allow.everyone.if.no.acl.found", "boolean", False),
            _row("fetch.max.bytes", "int", 57671680, 1024),
            _row("max.incremental.fetch.session.cache.slots", "int", 1000, 0),
            _row("max.request.partition.size.limit", "int", 2000, 1),
            _changeable(
                "compression.type",
                "string",
                "producer",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            ),
            _changeable("log.cleanup.policy", "list", "delete", choices=("compact", "delete")),
            _changeable("log.segment.bytes", "int", 1073741824, 14),
            _changeable("log.roll.ms", "long", None, 1),
            _row("log.roll.hours", "int", 168, 1),
            _changeable("log.retention.ms", "long", None, -1),
            _row("log.retention.minutes", "int", None, -1),
            _row("log.retention.hours", "int", 168, -1),
            _changeable("log.retention.bytes", "long", -1, -1),
            _row("log.retention.check.interval.ms", "long", 300000, 1),
            _changeable("log.index.interval.bytes", "int", 4096, 0),
            _changeable("log.index.size.max.bytes", "int", 10485760, 4),
            _row("log.flush.interval.messages", "long", 2**63 - 1, 1),
            _row("log.flush.interval.ms", "long", None, 0),
            _changeable("log.message.timestamp.type", "string", "CreateTime", choices=("CreateTime", "LogAppendTime")),
            _changeable("log.message.timestamp.before.max.ms", "long", 2**63 - 1, 0),
            _changeable("log.message.timestamp.after.max.ms", "long", 3600000, 0),
            _row("log.cleaner.enable", "boolean", True),
            _row("log.cleaner.backoff.ms", "long", 15000, 0),
            _row("log.cleaner.dedupe.buffer.size", "long", 134217728, 1),
            _changeable("log.cleaner.delete.retention.ms", "long", _DAY_MS, 0),
            _changeable("log.cleaner.min.cleanable.ratio", "double", 0.5, 0, maximum=1),
            _changeable("log.cleaner.min.compaction.lag.ms", "long", 0, 0),
            _changeable("log.cleaner.max.compaction.lag.ms", "long", 2**63 - 1, 1),
            _changeable("log.segment.delete.delay.ms", "long", 60000, 0),
            _changeable("log.preallocate", "boolean", False),
            _changeable("min.insync.replicas", "int", 1, 1),
            _changeable("unclean.leader.election.enable", "boolean", False),
            *(
                _changeable(name, "long", 2**63 - 1, 0, internal=True, doc="Nothing here depends on it: no replicas.")
                for name in (
                    "leader.replication.throttled.rate",
                    "follower.replication.throttled.rate",
                    "replica.alter.log.dirs.io.max.bytes.per.second",
                )
            ),
            _row("producer.id.expiration.ms", "int", 86400000, 1),
            _row("producer.id.expiration.check.interval.ms", "int", 600000, 1),
            _row("transaction.max.timeout.ms", "int", 900000, 1),
            _row("transactional.id.expiration.ms", "int", 604800000, 1),
            _row("transaction.state.log.num.partitions", "int", 50, 1),
            _row("transaction.state.log.segment.bytes", "int", 104857600, 1),
            _row("transaction.state.log.min.isr", "int", 2, 1),
            _row("transaction.state.log.replication.factor", "int", 3, 1),
            _row("transaction.state.log.load.buffer.size", "int", 5242880, 1),
            _row("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10000, 1),
            _row("transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3600000, 1),
            _changeable("transaction.partition.verification.enable", "boolean", True),
            _row("transaction.two.phase.commit.enable", "boolean", False),
            *SECURITY_SETTINGS.items(),
            *COORDINATOR_SETTINGS.items(),
            _row(
                "headrace.flush.policy",
                "string",
                "never",
                choices=("never", "interval", "always"),
                doc="When records are forced to the disk: never (the operating system decides, as Kafka does), "
                "every log.flush.interval.ms (1000), or always before an acks=all or acks=1 answer.",
            ),
            _row(
                "headrace.shutdown.drain.ms",
                "int",
                2000,
                0,
                doc="How long a graceful stop waits for requests that are being answered; what is left is cut off. "
                "Writing the logs to the disk is not part of it, and takes as long as it takes.",
            ),
            _row(
                "headrace.request.log.slow.ms",
                "int",
                1000,
                0,
                doc="A request that takes the broker longer is logged as a warning; 0 logs none. What waits "
                "by its client's wish, as a fetch for records, does not count.",
            ),
            _row(
                "headrace.connection.write.buffer.bytes",
                "int",
                1048576,
                65536,
                doc="A client that reads slower than it asks is read no further beyond this much unsent data.",
            ),
            _row(
                "headrace.unsent.max.bytes",
                "int",
                268435456,
                1048576,
                doc="Answers that slow readers have not read, all together; the connection that is one too many ends.",
            ),
        )
    )
)


@dataclass(slots=True, kw_only=True)
class ChangedValues:
    """Mutable: what operators changed while the broker runs. One broker's own value comes before the cluster's."""

    of_broker: Mapping[str, Value] = field(default_factory=dict)
    of_cluster: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfiguration:
    """`values` are the settings that were given; what a caller names itself stands apart: host, port, data_dir.

    `changed` lies over them; a look-up at the time of use returns what is in force then.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    values: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    changed: ChangedValues = field(default_factory=ChangedValues)

    @classmethod
    def from_settings(
        cls,
        data_dir: Path | str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> BrokerConfiguration:
        """Check names and values. `listeners` and `log.dirs` serve where host, port or data_dir are not given.

        Raises ConfigError: unknown-setting, bad-value.
        """
        values: dict[str, Value] = {}
        # 1. Unknown names are errors here, unlike in a server.properties file: a program that sets one has made a
        #    mistake.
        for name, given in (settings or {}).items():
            setting = BROKER_SETTINGS.get(name) or prefixed_setting(name)
            if setting is None:
                raise unknown_setting(name, BROKER_SETTINGS)
            if given is not None:
                values[name] = parse_value(setting, given)
        # 2. Settings of the coordinator bound one another (a session lies between its minimum and maximum), so they are
        #    checked together.
        check_bounds({name: value for name, value in values.items() if name in COORDINATOR_SETTINGS})
        directory = data_dir if data_dir is not None else values.get("log.dirs")
        if directory is None:
            raise ConfigError(
                "bad-value",
                "The broker was given no directory for its data.",
                "Name one: --data-dir DIR, or `log.dirs`.",
            )
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(
                "bad-value", f"{port} is not a port.", "Choose a port from 1 to 65535, or 0 for a free one."
            )
        # 3. The first listener is the broker's own address; all are parsed, so that mistakes in the others show at the
        #    start.
        first = listeners_of(values, _DEFAULT_LISTENERS, host=host, port=port)[0]
        return cls(data_dir=Path(str(directory)), host=first.host, port=first.port, values=MappingProxyType(values))

    def get(self, name: str) -> Value | None:
        """Return the effective value: dynamic, given at start, or Kafka's default."""
        # Three dictionaries in Kafka's order; a look-up at the time of use needs no notification when one of them
        # changes.
        for values in (self.changed.of_broker, self.changed.of_cluster, self.values):
            if name in values:
                return values[name]
        return BROKER_SETTINGS[name].default

    def in_force(self) -> dict[str, Value]:
        """Return all values that are not defaults."""
        # In reverse order of precedence, since later entries replace earlier ones.
        return {**self.values, **self.changed.of_cluster, **self.changed.of_broker}

    def integer(self, name: str) -> int:
        return int(cast("int", self.get(name)))

    def flag(self, name: str) -> bool:
        return bool(self.get(name))

    @property
    def flush_policy(self) -> FlushPolicy:
        return cast("FlushPolicy", self.get("headrace.flush.policy"))

    def listeners(self) -> tuple[ListenerConfiguration, ...]:
        """Return all listeners; `host` and `port` are those of the first."""
        return listeners_of(self.values, _DEFAULT_LISTENERS, host=self.host, port=self.port)

    def retention_ms(self) -> int:
        """Return `log.retention.ms`, or minutes or hours as ms; -1 keeps records for ever."""
        # The most precise unit that is set counts, as in KafkaConfig.
        for name, factor in (
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", 3_600_000),
        ):
            value = self.get(name)
            if value is not None:
                return int(value) * factor if int(value) >= 0 else -1
        return -1

    def flush_interval_ms(self) -> int:
        """Return the time between two flushes under the policy `interval`."""
        return int(self.get("log.flush.interval.ms") or 1000)

    def roll_ms(self) -> int:
        value = self.get("log.roll.ms")
        return int(value) if value is not None else self.integer("log.roll.hours") * 3_600_000
