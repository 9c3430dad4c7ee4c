"""`headrace console-producer`: lines in, records out, as Kafka's own console producer reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.cli.command_lines import Command, headrace_process

from headrace.cli.commands.console_producer import LineReader

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker
from tests.cli.command_lines import lines_of


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_from_lines_to_records_and_back(headrace: Command, broker: EmbeddedBroker, codec: str) -> None:
    written = headrace_process(
        "console-producer", "--topic", "flights", "--compression-codec", codec, "--property", "parse.key=true",
        "--property", "key.separator=:", "--reader-property", "null.marker=NULL",
        given="JFK:1\nEWR:two words\nLGA:NULL\nJFK:", HEADRACE_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
    )  # fmt: skip
    assert (written.code, written.err) == (0, "")
    lines = lines_of(headrace, broker, "--property", "print.key=true", "--property", "key.separator==")
    assert sorted(lines) == ["EWR=two words", "JFK=", "JFK=1", "LGA=null"]


def test_a_line_without_its_separator_is_named(broker: EmbeddedBroker) -> None:
    outcome = headrace_process(
        "console-producer", "--topic", "flights", "--property", "parse.key=true", given="a\tb\nwithout\n",
        HEADRACE_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
    )  # fmt: skip
    assert outcome.code == 1
    assert "error[bad-line]: line 2 has no key separator" in outcome.err


def test_errors_may_be_ignored() -> None:
    reader = LineReader.from_properties({"parse.key": "true", "ignore.error": "true"})
    assert reader.record(b"no tab", 1).value == b"no tab"
