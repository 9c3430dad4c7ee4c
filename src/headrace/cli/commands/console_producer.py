"""`headrace console-producer`: lines of standard input as records, with kafka-console-producer's reader properties."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, client_settings, console_config_option, key_value_pairs
from headrace.cli.terminal import echo_err
from headrace.client.broker_errors import unknown_topic_error
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.record_batches import PlainRecord
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.client.network_client import NetworkClient
    from headrace.client.sender import Sender

__all__ = ["LineReader", "command"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# One read of a pipe yields at most 64 KiB on Linux; 256 KiB let a file be produced in batches of some thousand lines.
CHUNK_BYTES = 256 * 1024


@click.command("console-producer")
@click.option("--topic", required=True, metavar="NAME", help="The topic to write to.")
@click.option(
    "--reader-property",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="How a line is read: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
    "headers.key.separator, null.marker, ignore.error.",
)
@click.option(
    "--compression-codec",
    "codec",
    is_flag=False,
    flag_value="gzip",
    default="none",
    show_default=True,
    type=click.Choice(CODECS),
    help="Compression of the batches; without a value gzip.",
)
@bootstrap_option
@console_config_option("--producer.config")
def command(
    topic: str, properties: tuple[str, ...], codec: str, bootstrap_servers: str, command_config: Path | None
) -> None:
    """Write each line of standard input as a record, with kafka-console-producer's flags.

    \b
      echo 'JFK=12' | headrace console-producer --topic delays --reader-property parse.key=true \\
                          --reader-property key.separator==
    """
    from headrace.cli.commands.console_producer import LineReader
    from headrace.client.network_client import NetworkClient
    from headrace.client.sender import Sender

    reader = LineReader.from_properties(key_value_pairs(properties, "--reader-property"))
    settings = client_settings("console-producer", command_config=command_config)
    with NetworkClient(bootstrap_servers, **settings) as client:
        writer = _Writer(Sender(client), topic, _partition_count(client, topic), codec)
        number = 0
        for lines in _chunks():
            writer.write([_record(reader, line, number + index) for index, line in enumerate(lines, 1)])
            number += len(lines)


def _partition_count(client: NetworkClient, topic: str) -> int:
    """Return the number of partitions. Raises BrokerError `topic-missing`, with the nearest name."""
    try:
        return len(client.known_topics([topic]).topics[topic].partitions)
    except BrokerError as error:
        if error.code != "topic-missing":
            raise
        raise unknown_topic_error(topic, client.metadata(refresh=True).topics, client.bootstrap_servers) from None


def _record(reader: LineReader, line: bytes, number: int) -> PlainRecord:
    return replace(reader.record(line, number), timestamp_ms=int(time.time() * 1000))


class _Writer:
    """Mutable: whose turn it is among the partitions for records without a key."""

    def __init__(self, queue: Sender, topic: str, partitions: int, codec: str) -> None:
        self._queue, self._topic, self._partitions, self._codec = queue, topic, partitions, codec
        self._turn = 0

    def write(self, records: Sequence[PlainRecord]) -> None:
        """Stored when this returns. Records without a key stay together, as Kafka's sticky partitioner keeps them."""
        from headrace.protocol.partitioner import partition_for_key
        from headrace.protocol.record_batches import encode_batch

        targets: dict[int, list[PlainRecord]] = {}
        for record in records:
            # The hash is Kafka's (murmur2), so that a key lands in the partition where Java's producer puts it. Keyless
            # records of one read stay in one partition: larger batches, as KIP-480 found for Java's producer.
            target = self._turn if record.key is None else partition_for_key(record.key, self._partitions)
            targets.setdefault(target, []).append(record)
        self._turn = (self._turn + 1) % self._partitions
        for target, chosen in sorted(targets.items()):
            self._queue.add(self._topic, target, encode_batch(chosen, compression=self._codec))
        # One flush per read: a terminal's line is stored before the next prompt appears, and a pipe pays for one round
        # trip per 256 KiB.
        self._queue.flush()


def _chunks() -> Iterator[list[bytes]]:
    """Whole lines as they come: on a terminal each, from a pipe or file as many as were read at once."""
    prompt = sys.stdin.isatty()
    rest = b""
    while True:
        if prompt:
            click.echo(">", nl=False, err=True)
        read = os.read(0, CHUNK_BYTES)
        if not read:
            if rest:
                yield [rest]
            if prompt:
                echo_err()
            return
        # The last piece has no line end yet, or is empty. At the end of the input a line without a line end is a record
        # too.
        *lines, rest = (rest + read).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]


_KNOWN = (
    "parse.key", "key.separator", "parse.headers", "headers.delimiter", "headers.separator", "headers.key.separator",
    "null.marker", "ignore.error",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """`[headers⇥][key⇥]value`, the parts only when asked for; `null_marker` stands for null."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineReader:
        """Read the properties. Raises wrong usage for a property that does not exist."""
        unknown = [name for name in properties if name not in _KNOWN]
        if unknown:
            near = nearest(unknown[0], _KNOWN)
            hint = f"Did you mean {near!r}?" if near else f"Properties: {', '.join(_KNOWN)}."
            raise click.UsageError(f"There is no reader property {unknown[0]!r}. {hint}")

        def flag(name: str) -> bool:
            return properties.get(name, "false").strip().lower() == "true"

        def text(name: str, default: bytes) -> bytes:
            given = properties.get(name)
            return default if given is None else given.replace("\\t", "\t").encode()

        marker = properties.get("null.marker")
        return cls(
            parse_key=flag("parse.key"),
            key_separator=text("key.separator", b"\t"),
            parse_headers=flag("parse.headers"),
            headers_delimiter=text("headers.delimiter", b"\t"),
            headers_separator=text("headers.separator", b","),
            headers_key_separator=text("headers.key.separator", b":"),
            null_marker=None if marker is None else marker.encode(),
            ignore_error=flag("ignore.error"),
        )

    def record(self, line: bytes, number: int) -> PlainRecord:
        """Return the record of a line.

        Raises HeadraceError `bad-line`, naming the line, when a separator is missing.
        """
        headers: tuple[tuple[str, bytes | None], ...] = ()
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            headers = () if text is None or self._is_null(text) else self._headers(text, number)
        if self.parse_key:
            found, rest = self._split(rest, self.key_separator, "key separator", number)
            key = None if found is None or self._is_null(found) else found
        return PlainRecord(value=None if self._is_null(rest) else rest, key=key, headers=headers)

    def _split(self, line: bytes, separator: bytes, what: str, number: int) -> tuple[bytes | None, bytes]:
        """Return the parts around the separator; (None, line) where it is missing and errors are ignored."""
        before, found, after = line.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            # As Kafka's LineMessageReader: no key and no headers, and the whole line is the value.
            return None, line
        shown = line[:80].decode("utf-8", "replace")
        raise HeadraceError(
            "bad-line",
            f"line {number} has no {what} {separator.decode()!r}: {shown}",
            "fix the line, name the separator (--reader-property key.separator=:), or set ignore.error=true",
        )

    def _headers(self, text: bytes, number: int) -> tuple[tuple[str, bytes | None], ...]:
        pairs = []
        for part in text.split(self.headers_separator):
            value: bytes | None
            name, value = self._split(part, self.headers_key_separator, "header key separator", number)
            if name is None:
                # Here the part without a separator is the name, and the value is null (LineMessageReader.splitHeaders).
                name, value = value, None
            pairs.append((name.decode("utf-8", "replace"), None if value is None or self._is_null(value) else value))
        return tuple(pairs)

    def _is_null(self, text: bytes) -> bool:
        return self.null_marker is not None and text == self.null_marker
