"""`headrace console-consumer`: prints records as kafka-console-consumer does; assigns partitions, joins no group."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, console_config_option, json_option, key_value_pairs, open_admin
from headrace.cli.terminal import echo_err
from headrace.client.broker_errors import unknown_topic_error
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.protocol.record_batches import PlainRecord

__all__ = ["command"]

# How late a record may appear on the terminal. Each round costs one ListOffsets for all partitions, which is cheap
# enough for a tool, and needs no fetch session that waits on the broker.
POLL_SECONDS = 0.1
_KNOWN = (
    "print.key", "print.value", "print.timestamp", "print.partition", "print.offset", "print.headers", "key.separator",
    "line.separator", "headers.separator", "null.literal",
)  # fmt: skip


@click.command("console-consumer")
@click.option("--topic", required=True, metavar="NAME", help="The topic to read.")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record instead of the next one.")
@click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), metavar="MS", help="End when nothing came for so long.")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option("--offset", metavar="OFFSET", help="With --partition: where to begin: a number, earliest or latest.")
@click.option(
    "--formatter-property",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="What is printed: print.key, print.value, print.timestamp, print.partition, print.offset, print.headers "
    "(true or false); key.separator, line.separator, headers.separator, null.literal.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves out records of open and aborted transactions, as results of exactly once need it.",
)
@bootstrap_option
@console_config_option("--consumer.config")
@json_option
def command(
    topic: str,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    partition: int | None,
    offset: str | None,
    properties: tuple[str, ...],
    isolation_level: str,
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Print the records of a topic, with kafka-console-consumer's flags and output. Ctrl-C ends it.

    \b
      headrace console-consumer --topic by-origin --from-beginning --timeout-ms 2000 --property print.key=true
    """
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition.")
    if offset is not None and from_beginning:
        raise click.UsageError("Give --offset or --from-beginning, not both.")
    formatter = Formatter.from_properties(key_value_pairs(properties, "--formatter-property"), as_json=as_json)
    printed = 0
    with open_admin(bootstrap_servers, client_id="console-consumer", command_config=command_config) as admin:
        # Positions are fixed before the first record is printed. Kafka's tool joins a group `console-consumer-NNNNN`
        # and waits 3 s for its first rebalance; partitions that are assigned directly make that wait, and the leftover
        # group, unnecessary.
        positions = _start(
            admin, topic, partition, offset or ("earliest" if from_beginning else "latest"), bootstrap_servers
        )
        try:
            for number, record in _records(admin, positions, timeout_ms, isolation_level):
                formatter.write(topic, number, record)
                printed += 1
                if printed == max_messages:
                    break
        except KeyboardInterrupt:
            pass  # how one ends it
        sys.stdout.flush()
    echo_err(f"Processed a total of {printed} messages")


def _start(
    admin: Admin, topic: str, partition: int | None, offset: str, bootstrap_servers: str
) -> dict[tuple[str, int], int]:
    known = admin.list_topics(include_internal=True)
    if topic not in known:
        raise unknown_topic_error(topic, known, bootstrap_servers)
    partitions = sorted(known[topic].partitions)
    if partition is not None:
        if partition not in partitions:
            raise click.UsageError(f"{topic} has partitions 0 to {partitions[-1]}, not {partition}.")
        partitions = [partition]
    keys = [(topic, number) for number in partitions]
    # A number is used for the one partition that --partition names; the check that it lies inside the log is the
    # broker's, in the fetch.
    if offset in ("earliest", "latest"):
        return {key: found.offset for key, found in admin.list_offsets(dict.fromkeys(keys, offset)).items()}
    if not offset.isdigit():
        raise click.UsageError(f"--offset takes a number, earliest or latest, not {offset!r}.")
    return dict.fromkeys(keys, int(offset))


def _records(
    admin: Admin, positions: dict[tuple[str, int], int], timeout_ms: int | None, isolation_level: str
) -> Iterator[tuple[int, PlainRecord]]:
    """Records as they come, for ever or until nothing came for `timeout_ms`."""
    from headrace.client.plain_records import consume

    level = "read_committed" if isolation_level == "read_committed" else "read_uncommitted"
    last = time.monotonic()
    while True:
        # Read up to an end that is known, then ask for the next one. With read_committed the end is the last stable
        # offset, so that no record of an open transaction is waited for or printed.
        ends = {
            key: end.offset
            for key, end in admin.list_offsets(dict.fromkeys(positions, "latest"), isolation_level=level).items()  # type: ignore[arg-type]
        }
        behind = {key: position for key, position in positions.items() if position < ends[key]}
        if behind:
            until = {key: ends[key] for key in behind}
            for _, number, record in consume(admin.client, behind, until, isolation_level=level):  # type: ignore[arg-type]
                yield number, record
            # The position moves to the end asked for, not behind the last record: transaction markers and compacted
            # records occupy offsets and never arrive as records.
            positions.update(until)
            last = time.monotonic()
        sys.stdout.flush()
        if timeout_ms is not None and (time.monotonic() - last) * 1000 >= timeout_ms:
            return
        if not behind:
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatter:
    """Kafka's DefaultMessageFormatter: timestamp, partition, offset, headers, key, value, a tab between."""

    shows: Mapping[str, bool]
    separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null: bytes
    as_json: bool

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, as_json: bool) -> Formatter:
        """Read the properties. Raises wrong usage for a property that does not exist."""
        unknown = [name for name in properties if name not in _KNOWN]
        if unknown:
            near = nearest(unknown[0], _KNOWN)
            hint = f"Did you mean {near!r}?" if near else f"Properties: {', '.join(_KNOWN)}."
            raise click.UsageError(f"There is no formatter property {unknown[0]!r}. {hint}")

        def text(name: str, default: str) -> bytes:
            return properties.get(name, default).replace("\\t", "\t").replace("\\n", "\n").encode()

        # print.value is the only one that is on by default (DefaultMessageFormatter); the first six of `_KNOWN` are the
        # flags.
        shows = {name: properties.get(name, "false").strip().lower() == "true" for name in _KNOWN[:6]}
        shows["print.value"] = properties.get("print.value", "true").strip().lower() == "true"
        return cls(
            shows=shows,
            separator=text("key.separator", "\t"),
            line_separator=text("line.separator", "\n"),
            headers_separator=text("headers.separator", ","),
            null=text("null.literal", "null"),
            as_json=as_json,
        )

    def write(self, topic: str, partition: int, record: PlainRecord) -> None:
        sys.stdout.buffer.write(
            self._document(topic, partition, record) if self.as_json else self.line(partition, record)
        )

    def line(self, partition: int, record: PlainRecord) -> bytes:
        parts = []
        if self.shows["print.timestamp"]:
            # The fields, their order, NO_TIMESTAMP and NO_HEADERS are those of DefaultMessageFormatter; scripts cut its
            # output at tabs. Bytes are passed through without decoding, because keys and values need not be text.
            parts.append(b"NO_TIMESTAMP" if record.timestamp_ms < 0 else f"CreateTime:{record.timestamp_ms}".encode())
        if self.shows["print.partition"]:
            parts.append(f"Partition:{partition}".encode())
        if self.shows["print.offset"]:
            parts.append(f"Offset:{record.offset}".encode())
        if self.shows["print.headers"]:
            parts.append(self._headers(record))
        if self.shows["print.key"]:
            parts.append(self.null if record.key is None else record.key)
        if self.shows["print.value"]:
            parts.append(self.null if record.value is None else record.value)
        return self.separator.join(parts) + self.line_separator

    def _headers(self, record: PlainRecord) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        pairs = (name.encode() + b":" + (self.null if value is None else value) for name, value in record.headers)
        return self.headers_separator.join(pairs)

    def _document(self, topic: str, partition: int, record: PlainRecord) -> bytes:
        import json

        document = {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"


# JSON needs text: bytes that are no UTF-8 become U+FFFD. Programs that need the bytes use the text form.
def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
