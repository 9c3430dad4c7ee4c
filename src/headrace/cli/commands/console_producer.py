"""`headrace console-producer`: lines of standard input become records, as with kafka-console-producer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, client_settings, console_config_option, key_value_pairs
from headrace.cli.terminal import talk
from headrace.client.broker_errors import unknown_topic_error
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.cli.line_reader import LineReader
    from headrace.client.network_client import NetworkClient
    from headrace.client.sender import Sender
    from headrace.protocol.record_batches import PlainRecord

__all__ = ["command"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
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
    from headrace.cli.line_reader import LineReader
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
    """Raises BrokerError `topic-missing`, with the nearest name."""
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
            target = self._turn if record.key is None else partition_for_key(record.key, self._partitions)
            targets.setdefault(target, []).append(record)
        self._turn = (self._turn + 1) % self._partitions
        for target, chosen in sorted(targets.items()):
            self._queue.add(self._topic, target, encode_batch(chosen, compression=self._codec))
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
                talk()
            return
        *lines, rest = (rest + read).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
