"""What became of transactions and records, read from the segments of brokers that do not run: ours or Kafka's.

`python -m tests.chaos.segments DATA_DIRECTORY... [--text TEXT]` prints the transactions that ended otherwise in one
partition than in another, which exactly once forbids, and those without an end; with a text also each record whose
value holds it: where it lies, whose it is, and whether readers of committed records see it. Topics that were compacted
or purged show only what is left in them.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.protocol.batch_headers import BatchHeader, control_type
from headrace.protocol.record_batches import iter_batch_headers, records_of_batch

End = Literal["commit", "abort", "open"]
Owner = tuple[int, int]
"""Producer id and epoch: with transaction.version 2 one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The batches of one transaction in one partition, in the order of their offsets."""

    owner: Owner
    partition: str
    end: End
    batches: tuple[BatchHeader, ...]
    content: bytes = field(repr=False)  # of the partition, in which they lie

    def __str__(self) -> str:
        offsets = ", ".join(f"{batch.base_offset} to {batch.last_offset}" for batch in self.batches)
        return f"{self.partition}: {self.end} ({offsets})"


def pieces_in(data: Path) -> Iterator[Piece]:
    """Of every partition below `data`."""
    for directory in sorted(path for path in data.iterdir() if path.is_dir()):
        yield from _pieces_of(directory)


def _pieces_of(directory: Path) -> Iterator[Piece]:
    content = b"".join(segment.read_bytes() for segment in sorted(directory.glob("*.log")))
    unended: dict[int, list[BatchHeader]] = defaultdict(list)

    def ended(producer_id: int, end: End) -> Iterator[Piece]:
        batches = unended.pop(producer_id, [])
        for epoch in dict.fromkeys(batch.producer_epoch for batch in batches):
            mine = tuple(batch for batch in batches if batch.producer_epoch == epoch)
            yield Piece(owner=(producer_id, epoch), partition=directory.name, end=end, batches=mine, content=content)

    for header in iter_batch_headers(content):
        if header.is_transactional and not header.is_control:
            unended[header.producer_id].append(header)
        elif header.is_control:
            end = control_type(content, header)
            if end != "other":
                yield from ended(header.producer_id, end)
    for producer_id in list(unended):
        yield from ended(producer_id, "open")


def faults(*data: Path) -> list[str]:
    """Transactions with different ends, and those without one, in words. Brokers of a cluster are judged together."""
    transactions: dict[Owner, list[Piece]] = defaultdict(list)
    for directory in data:
        for piece in pieces_in(directory):
            transactions[piece.owner].append(piece)
    found = []
    for (producer_id, epoch), pieces in sorted(transactions.items()):
        ends = {piece.end for piece in pieces}
        if len(ends) > 1 or "open" in ends:
            what = "ended in different ways" if len(ends) > 1 else "has no end"
            places = "; ".join(map(str, pieces))
            found.append(f"the transaction of producer {producer_id}, epoch {epoch}, {what}: {places}")
    print(f"{', '.join(map(str, data))}: {len(transactions)} transactions", file=sys.stderr)
    return found


def places_of(data: Path, text: bytes) -> Iterator[str]:
    """Every transactional record whose value holds `text`."""
    for piece in pieces_in(data):
        for batch in piece.batches:
            for record in records_of_batch(piece.content, batch):
                if record.value is not None and text in record.value:
                    producer_id, epoch = piece.owner
                    yield (
                        f"{piece.partition}@{record.offset}, producer {producer_id}, epoch {epoch}, "
                        f"sequence {batch.base_sequence}, {piece.end}: {record.value!r}"
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="data directories of the brokers of one cluster")
    parser.add_argument("--text", action="append", default=[])
    arguments = parser.parse_args()
    found = faults(*arguments.data)
    print("\n".join(found))
    for text in arguments.text:
        for data in arguments.data:
            print("\n".join(places_of(data, text.encode())))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
