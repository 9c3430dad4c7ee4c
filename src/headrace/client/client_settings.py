"""Settings of clients, members and applications: one table, the parsing of values, and Java properties files.

Names are Kafka's, or begin with `headrace.`. An application (`StreamsApp`) works in micro-batches, so some of its
defaults differ from those of a bare client: both are in the same row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from headrace.errors import ConfigError

__all__ = ["CLIENT_SETTINGS", "SECURITY_SETTINGS", "ClientSetting", "parse_properties", "parsed", "read_properties"]

# `java.util.Properties`: the key ends at the first `=`, `:` or white space that no backslash precedes.
_SEPARATOR = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")
# A backslash before any other character is dropped; that is how Kafka's files write `=` and spaces in keys.
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file.

    Raises:
        ConfigError: `bad-value` if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "bad-value", f"the file {path} cannot be read: {error}", "check its path and rights"
        ) from error
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's properties format as far as Kafka's files use it: comments, continued lines, escapes.

    The last value of a repeated key wins, as in Java.
    """
    found: dict[str, str] = {}
    logical = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not logical and (not part or part[0] in "#!"):
            continue
        logical += part
        # An odd number of backslashes at the end continues the line; an even number is escaped backslashes.
        if (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        _add(found, logical)
        logical = ""
    if logical:
        _add(found, logical)
    return found


def _add(found: dict[str, str], line: str) -> None:
    separator = _SEPARATOR.search(line)
    if separator is None:
        found[_unescape(line)] = ""
    else:
        found[_unescape(line[: separator.start()])] = _unescape(line[separator.end() :])


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROL.get(code, code)

    return _ESCAPE.sub(plain, text)


Kind = Literal["string", "int", "boolean", "list"]
Default = int | str | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSetting:
    """One setting.

    Attributes:
        default: The client's default; None: only applications have this setting.
        in_application: The application's default; None: applications do not have this setting.
        choices: Allowed values; empty: any.
        lowest: The least number; None: any.
        secret: Whether the value is hidden in output.
    """

    name: str
    kind: Kind
    default: Default = None
    in_application: int | str | None = None
    meaning: str = ""
    choices: tuple[str, ...] = ()
    lowest: int | None = None
    secret: bool = False


def _text(
    name: str, default: str | None, application: str | None = None, meaning: str = "", **more: Any
) -> ClientSetting:
    return ClientSetting(name=name, kind="string", default=default, in_application=application, meaning=meaning, **more)


def _int(
    name: str, default: int | None, lowest: int | None, application: int | None = None, meaning: str = ""
) -> ClientSetting:
    return ClientSetting(
        name=name, kind="int", default=default, lowest=lowest, in_application=application, meaning=meaning
    )


_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_ROWS: Final = (
    ClientSetting(
        name="bootstrap.servers", kind="list", default=("localhost:9092",), meaning="brokers to connect to first"
    ),
    _text(
        "client.id",
        "headrace",
        "",
        "the name of this client in the broker's logs, metrics and quotas; in an application empty means its name",
    ),
    _text("client.rack", "", meaning="the rack of this client, for assignors that use racks"),
    _text(
        "group.instance.id",
        "",
        "",
        "one id per instance: its tasks wait for its restart (brokers from 4.4; empty: none)",
    ),
    _text(
        "group.protocol",
        None,
        "auto",
        "streams, classic, or auto: streams groups where the group's coordinator offers them, else a classic group",
        choices=("auto", "streams", "classic"),
    ),
    _int(
        "session.timeout.ms",
        45_000,
        1,
        45_000,
        "in a classic group: time without heartbeats after which a member is removed",
    ),
    # An application sends heartbeats more often than Kafka's default: they are how a member learns of a rebalance.
    _int("heartbeat.interval.ms", 3_000, 1, 500, "in a classic group: time between heartbeats"),
    _int("num.standby.replicas", 0, 0, 0, "in a classic group: copies of each stateful task on other instances"),
    _text(
        "application.server",
        "",
        "",
        "host:port for interactive queries; passed to every member. An application answers queries there, port 0 takes "
        "a free one; empty: none",
    ),
    # The application's value is shorter: its runtime can end a micro-batch within seconds, and a member that hangs
    # should not hold up a rebalance for five minutes.
    _int("rebalance.timeout.ms", 300_000, 1, 45_000, "how long a revoked task may take to finish"),
    _int("request.timeout.ms", 30_000, 1, 30_000, "one request to a broker"),
    _int("default.api.timeout.ms", 60_000, 1, 60_000, "one call with its retries"),
    _int(
        "max.poll.interval.ms",
        300_000,
        1,
        300_000,
        "the longest time without a finished micro-batch; then the member leaves its group",
    ),
    _text(
        "isolation.level",
        "read_committed",
        meaning="whether records of open and aborted transactions are returned",
        choices=_ISOLATION_LEVELS,
    ),
    _text("auto.offset.reset", "earliest", choices=("earliest", "latest", "none")),
    # Kafka's own values are 50 MiB and 1 MiB (`ConsumerConfig`); see `fetch_loop` for those of the client.
    _int("fetch.max.bytes", 16 << 20, 1, 52_428_800, "one Fetch of all partitions of a broker"),
    _int("max.partition.fetch.bytes", 8 << 20, 1, 4_194_304, "one Fetch of one partition"),
    # 0 is not offered: `flush` returns offsets, and an unacknowledged batch has none.
    _text("acks", "all", choices=("all", "-1", "1")),
    _int("batch.size", 1_000_000, 1),
    _text(
        "compression.type",
        "none",
        "lz4",
        "of what the application writes: none, gzip, snappy, lz4, zstd",
        choices=_CODECS,
    ),
    ClientSetting(name="enable.idempotence", kind="boolean", default=True),
    _int(
        "replication.factor",
        None,
        -1,
        -1,
        "of internal topics and topics created by partitions=; -1: the broker's default",
    ),
    _text(
        "processing.guarantee",
        None,
        "exactly_once_v2",
        "exactly_once_v2 or at_least_once; the argument processing_guarantee= comes first",
        choices=("at_least_once", "exactly_once_v2"),
    ),
    _int(
        "transaction.timeout.ms",
        None,
        1000,
        10_000,
        "exactly once: the coordinator aborts a transaction that is open longer; micro-batches take a third of it",
    ),
    _int("headrace.batch.max.records", None, 1, 200_000, "records per task and micro-batch at most"),
    _int("headrace.batch.max.bytes", None, 1, 67_108_864, "bytes per task and micro-batch at most"),
    _int(
        "headrace.batch.target.ms",
        None,
        1,
        2_000,
        "target duration of a micro-batch: within the two limits above, its size follows its duration",
    ),
    _int(
        "headrace.warm.up.records",
        None,
        0,
        10,
        "records of each input topic that run through the SQL before the instance joins, without output; 0: none",
    ),
    _int(
        "headrace.join.refresh.ms",
        None,
        0,
        60_000,
        "age after which DataFrames joined by a stream are read again; 0: with every micro-batch",
    ),
    _int(
        "headrace.event.time.max.ahead.ms",
        None,
        0,
        3_600_000,
        "a row whose event time is further ahead of its record's timestamp does not move the watermark",
    ),
    _int(
        "headrace.watermark.idle.timeout.ms",
        None,
        0,
        0,
        "time without records after which a partition of a source does not hold back windows any more; 0: never. "
        "Records that it has later are dropped where their windows are closed",
    ),
    _int(
        "headrace.heartbeat.max.interval.ms",
        500,
        1,
        500,
        "the longest time between heartbeats, so that a leave is noticed fast",
    ),
    _int("headrace.metrics.port", None, 0, 0, "the first port to try for /metrics and /health; 0: none"),
    _text(
        "headrace.metrics.host", None, "127.0.0.1", "the address of that port; every client that reaches it may read"
    ),
    _int(
        "headrace.ui.port",
        None,
        0,
        0,
        "the port on 127.0.0.1 of a web page with this application alone; needs application.server; 0: none",
    ),
    _text(
        "headrace.tracing",
        None,
        "none",
        "opentelemetry: micro-batches with sampled records give spans, and trace contexts go on in the headers of what "
        "they write",
        choices=("none", "opentelemetry"),
    ),
    _text(
        "headrace.state.query.host",
        None,
        "",
        "the address to answer queries on; empty: the host of application.server",
    ),
    _text(
        "headrace.state.query.token.file",
        None,
        "",
        "a file with the token that queries have to send; required where other machines reach application.server",
    ),
    _int("headrace.state.query.max.rows", None, 1, 10_000, "rows of one answer to a query, other than a scan"),
    _int("headrace.state.query.max.requests", None, 1, 8, "queries that are answered at a time"),
    _int("headrace.state.query.timeout.ms", None, 1, 30_000, "the longest time of one query"),
    _int("state.cleanup.delay.ms", None, 0, 600_000, "time after which stores of a task that moved away are deleted"),
    _int("acceptable.recovery.lag", None, 0, 10_000, "changelog records that a copy may lack when a task moves to it"),
    _int(
        "headrace.handover.max.wait.ms",
        None,
        0,
        30_000,
        "how long a task that moves is still processed by its owner while its state is copied",
    ),
    _int("headrace.max.slots", None, 0, 0, "Spark partitions of a micro-batch; 0: the session's cores"),
    _text(
        "headrace.execution",
        None,
        "auto",
        "micro-batch starts a Spark job for each micro-batch; resident keeps slots running, and is refused where that "
        "is not possible; auto keeps them running where that is possible",
        choices=("auto", "resident", "micro-batch"),
    ),
)

_SECURITY_ROWS: Final = (
    _text("security.protocol", "PLAINTEXT", meaning="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    _text("ssl.truststore.type", ""),
    _text("ssl.truststore.location", "", meaning="a PEM file of the authorities that brokers' certificates come from"),
    _text("ssl.truststore.password", "", secret=True),
    _text("ssl.truststore.certificates", "", meaning="the same as text", secret=True),
    _text("ssl.keystore.type", ""),
    _text("ssl.keystore.location", "", meaning="a PEM file with the own key and certificate (mutual TLS)"),
    _text("ssl.keystore.password", "", secret=True),
    _text("ssl.keystore.certificate.chain", "", meaning="the own certificate as text", secret=True),
    _text("ssl.keystore.key", "", meaning="the own key as text", secret=True),
    _text("ssl.key.password", "", secret=True),
    _text("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"),
    # As in Kafka since 2.0 (KIP-294): the host name is checked unless this is empty.
    _text("ssl.endpoint.identification.algorithm", "https", meaning="empty: any certificate will do for any host"),
    _text("sasl.mechanism", "", meaning="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    _text("sasl.jaas.config", "", meaning="user name and password as Kafka's Java clients have them", secret=True),
    # librdkafka's names, so that one properties file serves both kinds of clients.
    _text("sasl.username", "", meaning="instead of sasl.jaas.config, as librdkafka has it"),
    _text("sasl.password", "", meaning="instead of sasl.jaas.config, as librdkafka has it", secret=True),
)
SECURITY_SETTINGS: Final = frozenset(row.name for row in _SECURITY_ROWS)
"""Settings of how a client reaches its brokers; `headrace.client.security` reads them."""

CLIENT_SETTINGS: Final[Mapping[str, ClientSetting]] = MappingProxyType(
    {setting.name: setting for setting in (*_ROWS, *_SECURITY_ROWS)}
)


def parsed(setting: ClientSetting, value: object) -> Any:
    """Return the typed value of a setting.

    Raises:
        ConfigError: `bad-value`.
    """
    match setting.kind:
        case "int":
            return _parsed_int(setting, value)
        case "boolean":
            text = str(value).strip().lower()
            if text not in {"true", "false"}:
                raise _bad_value(setting, value, "true or false")
            return text == "true"
        case "list":
            parts = value.split(",") if isinstance(value, str) else value
            if not isinstance(parts, list | tuple):
                raise _bad_value(setting, value, "a list, or a text with commas")
            found = tuple(str(part).strip() for part in parts if str(part).strip())
            if not found:
                raise _bad_value(setting, value, "at least one entry")
            return found
        case "string":
            text = str(value).strip()
            if setting.choices and text not in setting.choices:
                raise _bad_value(setting, value, "one of " + ", ".join(setting.choices))
            return text


def _parsed_int(setting: ClientSetting, value: object) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        raise _bad_value(setting, value, "a whole number") from None
    if setting.lowest is not None and number < setting.lowest:
        raise _bad_value(setting, value, f"at least {setting.lowest}")
    return number


def _bad_value(setting: ClientSetting, value: object, expected: str) -> ConfigError:
    meaning = f": {setting.meaning}" if setting.meaning else ""
    return ConfigError("bad-value", f"Invalid {setting.name} {value!r}.", f"Set {expected}{meaning}.", key=setting.name)
