"""Records per CPU second of a codec of ours beside a peer's: options, medians and the table of two scripts."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Shape", "compare"]

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one shape: their encoded values, and what is timed for all of them."""

    written: list[bytes]
    decode: Work
    peer_decodes: Work
    encode: Work
    peer_encodes: Work


def _rate(count: int, work: Work) -> float:
    started = time.process_time()
    work()
    return count / (time.process_time() - started)


def _measured(name: str, shape: Shape, peer: str, rounds: int) -> dict[str, Any]:
    count = len(shape.written)
    ways = {
        "decode": shape.decode,
        f"{peer} decodes": shape.peer_decodes,
        "encode": shape.encode,
        f"{peer} encodes": shape.peer_encodes,
    }
    rates = {way: statistics.median(_rate(count, work) for _ in range(rounds)) for way, work in ways.items()}
    return {"shape": name, "bytes": round(sum(map(len, shape.written)) / count), **rates}


def compare(doc: str | None, peer: str, shapes: dict[str, Callable[[int], Shape]]) -> None:
    """Measure and print, by the options of the command line.

    Args:
        doc: Of the script.
        peer: Name of the other library.
        shapes: Functions of a number of records, by the shape's name.
    """
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    arguments = options.parse_args()
    table = [_measured(name, make(arguments.records), peer, arguments.rounds) for name, make in shapes.items()]
    if arguments.json:
        print(json.dumps(table))
        return
    heads = "".join(f"{way:>13}{peer:>11}{'ratio':>7}" for way in ("decode", "encode"))
    print(f"{'records per CPU second':24}{'bytes':>6}{heads}")
    for row in table:
        cells = [f"{row['shape']:24}{row['bytes']:6}"]
        for way in ("decode", "encode"):
            theirs = row[f"{peer} {way}s"]
            cells.append(f"{row[way]:13,.0f}{theirs:11,.0f}{row[way] / theirs:7.1f}")
        print("".join(cells))
