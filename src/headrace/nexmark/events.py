"""Events of the Nexmark auction site: which number is which event, ids, hot keys, prices, times and sizes.

Every 50 event numbers hold a person, three auctions and 46 bids, in this order. The generator is a pure function of
(workload, range of positions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError
from headrace.nexmark.hashing import field_hash, integers_below, powers_of_ten, text_slices

if TYPE_CHECKING:
    from headrace.array_types import Int64Array, UInt64Array

__all__ = ["KEYS", "KINDS", "SCHEMAS", "Kind", "Workload", "count_events", "generate", "last_time_ms", "topic_of"]

Kind = Literal["person", "auction", "bid"]
KINDS: Final[tuple[Kind, ...]] = ("person", "auction", "bid")
SCHEMAS: Final[dict[Kind, str]] = {
    "person": (
        "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
        "dateTime timestamp, extra string"
    ),
    "auction": (
        "id bigint, itemName string, description string, initialBid bigint, reserve bigint, dateTime timestamp, "
        "expires timestamp, seller bigint, category bigint, extra string"
    ),
    "bid": (
        "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string"
    ),
}
KEYS: Final[dict[Kind, str]] = {"person": "id", "auction": "id", "bid": "auction"}

# Proportions and ranges of nexmark/nexmark and of Beam's GeneratorConfig.
PERSONS, AUCTIONS, BIDS = 1, 3, 46  # of each 50 events
ROUND = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
# Sellers and bidders are among the last 1,000 persons, bids are on the last 100 auctions. Up to ten ids lie ahead of
# what exists: joins get rows whose partner comes later, or never.
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT, LEAD = 1000, 100, 10
HOT_STEP = 100  # hot sellers, auctions and bidders are each hundredth id
CHANNELS, HOT_CHANNELS = 10_000, ("Google", "Facebook", "Baidu", "Apple")
MEAN_BYTES: Final[dict[Kind, int]] = {"person": 200, "auction": 500, "bid": 100}
BASE_TIME_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
# Beam's prime. Multiplication by it modulo the group size is a permutation if the two have no common divisor.
DISORDER_STEP = 953

# Names, cities and states of the original benchmark; q3 selects three of the states.
_FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gina", "Hugo", "Ines", "Jon", "Kim")
_LAST_NAMES = ("Archer", "Baker", "Carter", "Dyer", "Fisher", "Mason", "Porter", "Taylor", "Weaver")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Parameters of a data set.

    Args:
        seed: Of every random field.
        event_rate: Events per second of event time; it decides how many windows a number of events fills.
        disorder: Events are shuffled within groups of this size; 1 keeps them in order. No multiple of 953.
    """

    seed: int = 1
    event_rate: int = 10_000
    disorder: int = 1

    def __post_init__(self) -> None:
        if self.event_rate < 1:
            raise ConfigError("bad-value", f"Invalid event_rate {self.event_rate}: expected 1 or more.", "Use 10000.")
        if self.disorder < 1 or gcd(self.disorder, DISORDER_STEP) != 1:
            message = f"Invalid disorder {self.disorder}: expected 1 or more, and no multiple of {DISORDER_STEP}."
            raise ConfigError("bad-value", message, "Use 1000.")

    def numbers(self, start: int, stop: int) -> Int64Array:
        """Return the event number at each position of [start, stop)."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self.disorder == 1:
            return positions
        # Start of the group, plus the permuted position in it.
        return positions - positions % self.disorder + positions * DISORDER_STEP % self.disorder

    def times_ms(self, numbers: Int64Array) -> Int64Array:
        """Return the event times in milliseconds since the epoch."""
        return BASE_TIME_MS + numbers * 1000 // self.event_rate


def topic_of(kind: Kind, prefix: str = "nexmark") -> str:
    """Return the topic of the events of a kind."""
    return f"{prefix}-{kind}"


def generate(workload: Workload, start: int, stop: int, kinds: tuple[Kind, ...] = KINDS) -> dict[Kind, pa.RecordBatch]:
    """Return the events at positions [start, stop), one batch per kind, in the order of their positions."""
    # Event numbers decide about fields and times, positions about the order. A range is selected first and computed
    # afterwards, so that a kind that is not asked for costs nothing.
    numbers = workload.numbers(start, stop)
    in_round = numbers % ROUND
    made: dict[Kind, pa.RecordBatch] = {}
    if "person" in kinds:
        made["person"] = _persons(workload, numbers[in_round < PERSONS])
    if "auction" in kinds:
        made["auction"] = _auctions(workload, numbers[(in_round >= PERSONS) & (in_round < PERSONS + AUCTIONS)])
    if "bid" in kinds:
        made["bid"] = _bids(workload, numbers[in_round >= PERSONS + AUCTIONS])
    return made


def count_events(workload: Workload, start: int, stop: int) -> dict[Kind, int]:
    """Return the number of events of each kind at positions [start, stop)."""
    in_round = workload.numbers(start, stop) % ROUND
    persons, bids = int(np.sum(in_round < PERSONS)), int(np.sum(in_round >= PERSONS + AUCTIONS))
    return {"person": persons, "auction": len(in_round) - persons - bids, "bid": bids}


def last_time_ms(workload: Workload, events: int) -> int:
    """Return the greatest event time of the first `events` positions."""
    # The newest event is in the last group, which may be cut short.
    numbers = workload.numbers(max(0, events - workload.disorder), events)
    return int(workload.times_ms(numbers.max()))


# -- ids --------------------------------------------------------------------------------------------------------------


def _last_person(numbers: Int64Array) -> Int64Array:
    """Return the newest person, counted from 0, when event n is made."""
    return numbers // ROUND


def _last_auction(numbers: Int64Array) -> Int64Array:
    in_round = np.clip(numbers % ROUND - PERSONS, -1, AUCTIONS - 1)
    return numbers // ROUND * AUCTIONS + in_round  # -1: the last auction of the round before


def _some_person(numbers: Int64Array, hashes: UInt64Array) -> Int64Array:
    """Return one of the active people, or one of the next ten who are not there yet."""
    people = _last_person(numbers) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + integers_below(hashes, active + LEAD)


def _some_auction(numbers: Int64Array, hashes: UInt64Array) -> Int64Array:
    last = _last_auction(numbers)
    first = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
    return first + integers_below(hashes, last - first + 1 + LEAD)


def _prices(hashes: UInt64Array) -> Int64Array:
    # Cents, log-uniform between 1.00 and 1,000,000.00, as in Beam.
    return np.rint(powers_of_ten(hashes, 6) * 100.0).astype(np.int64)


# -- kinds ------------------------------------------------------------------------------------------------------------


class _Fields:
    """Hashes of the fields of some events. Each kind counts its fields from a base of its own."""

    def __init__(self, workload: Workload, numbers: Int64Array, base: int) -> None:
        self.numbers = numbers
        self._seed, self._base = workload.seed, base

    def __getitem__(self, field: int) -> UInt64Array:
        return field_hash(self._seed, self.numbers, self._base + field)

    def choice(self, field: int, texts: tuple[str, ...]) -> pa.Array:
        return pa.array(texts, pa.string()).take(pa.array(integers_below(self[field], len(texts))))

    def text(self, field: int, longest: int) -> pa.Array:
        """Return texts of 3 to `longest` - 1 letters."""
        # One hash for both: the low 24 bits choose the length, the others the start in the pool.
        hashes = self[field]
        return _texts(hashes >> np.uint64(24), 3 + integers_below(hashes & np.uint64(0xFFFFFF), longest - 3))

    def padding(self, field: int, size: Int64Array | int, mean: int) -> pa.Array:
        """Return texts that bring events of `size` bytes to `mean` bytes on average, each within 20 %."""
        rest = np.maximum(mean - size, 0)
        spread = np.rint(rest * 0.2).astype(np.int64)
        hashes = self[field]
        lengths = rest - spread + integers_below(hashes & np.uint64(0xFFFFFF), 2 * spread + 1)
        return _texts(hashes >> np.uint64(24), lengths)


def _texts(hashes: UInt64Array, lengths: Int64Array) -> pa.Array:
    offsets, letters = text_slices(hashes, lengths)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))


def _instants(times_ms: Int64Array) -> pa.Array:
    return pa.array(times_ms * 1000, pa.int64()).cast(INSTANT)


def _persons(workload: Workload, numbers: Int64Array) -> pa.RecordBatch:
    fields = _Fields(workload, numbers, 0)
    name = pc.binary_join_element_wise(fields.choice(0, _FIRST_NAMES), fields.choice(1, _LAST_NAMES), " ")
    email = pc.binary_join_element_wise(fields.text(2, 8), "@", fields.text(3, 6), ".com", "")
    groups = [_four_digits().take(pa.array(integers_below(fields[4 + i], 10_000))) for i in range(4)]
    columns = {
        "id": pa.array(_last_person(numbers) + FIRST_ID),
        "name": name,
        "emailAddress": email,
        "creditCard": pc.binary_join_element_wise(*groups, " "),
        "city": fields.choice(8, _CITIES),
        "state": fields.choice(9, _STATES),
        "dateTime": _instants(workload.times_ms(numbers)),
    }
    size = 8 + sum(_lengths(columns[c]) for c in ("name", "emailAddress", "creditCard", "city", "state"))
    return pa.record_batch({**columns, "extra": fields.padding(10, size, MEAN_BYTES["person"])})


def _auctions(workload: Workload, numbers: Int64Array) -> pa.RecordBatch:
    fields = _Fields(workload, numbers, 32)
    times = workload.times_ms(numbers)
    # Event numbers, not times, are scaled: the number of open auctions does not depend on the event rate.
    # An auction is open for 1 ms, and up to twice the time in which 100 auctions begin.
    horizon = workload.times_ms(numbers + AUCTIONS_IN_FLIGHT * ROUND // AUCTIONS) - times
    initial = _prices(fields[2])
    hot = integers_below(fields[4], 4) > 0  # three of four auctions are of a hot seller
    seller = np.where(hot, _last_person(numbers) // HOT_STEP * HOT_STEP, _some_person(numbers, fields[5]))
    columns = {
        "id": pa.array(_last_auction(numbers) + FIRST_ID),
        "itemName": fields.text(0, 20),
        "description": fields.text(1, 100),
        "initialBid": pa.array(initial),
        "reserve": pa.array(initial + _prices(fields[3])),
        "dateTime": _instants(times),
        "expires": _instants(times + 1 + integers_below(fields[6], np.maximum(2 * horizon, 1))),
        "seller": pa.array(seller + FIRST_ID),
        "category": pa.array(integers_below(fields[7], CATEGORIES) + FIRST_CATEGORY),
    }
    size = 56 + _lengths(columns["itemName"]) + _lengths(columns["description"])
    return pa.record_batch({**columns, "extra": fields.padding(8, size, MEAN_BYTES["auction"])})


def _bids(workload: Workload, numbers: Int64Array) -> pa.RecordBatch:
    fields = _Fields(workload, numbers, 64)
    # Half of the bids go to the newest hot auction, three quarters come from the newest hot bidder: keys are skewed,
    # and the hot ones move on with time. The hot bidder is the person after the hot seller.
    hot_auction = integers_below(fields[0], 2) > 0
    auction = np.where(hot_auction, _last_auction(numbers) // HOT_STEP * HOT_STEP, _some_auction(numbers, fields[1]))
    hot_bidder = integers_below(fields[2], 4) > 0
    bidder = np.where(hot_bidder, _last_person(numbers) // HOT_STEP * HOT_STEP + 1, _some_person(numbers, fields[3]))
    hot_channel = integers_below(fields[5], 2) > 0
    hot = integers_below(fields[6], len(HOT_CHANNELS))
    # Name and URL come from the same row of the tables.
    place = pa.array(np.where(hot_channel, hot, len(HOT_CHANNELS) + integers_below(fields[7], CHANNELS)))
    channels, urls = _channel_tables()
    return pa.record_batch(
        {
            "auction": pa.array(auction + FIRST_ID),
            "bidder": pa.array(bidder + FIRST_ID),
            "price": pa.array(_prices(fields[4])),
            "channel": channels.take(place),
            "url": urls.take(place),
            "dateTime": _instants(workload.times_ms(numbers)),
            # 32: four numbers of 8 bytes. Beam does not count the texts of a bid either.
            "extra": fields.padding(8, np.full(len(numbers), 32), MEAN_BYTES["bid"]),
        }
    )


def _lengths(texts: pa.Array) -> Int64Array:
    found: Int64Array = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


@cache
def _four_digits() -> pa.Array:
    return pa.array([f"{number:04d}" for number in range(10_000)], pa.string())


@cache
def _channel_tables() -> tuple[pa.Array, pa.Array]:
    """Return names and URLs: the hot channels, then 10,000 others, of which 90 % carry `channel_id`.

    They belong to the site and not to a data set: the seed does not change them.
    """
    rows = np.arange(len(HOT_CHANNELS) + CHANNELS)
    parts = [_texts(field_hash(0, rows, 96 + i), 3 + integers_below(field_hash(0, rows, 100 + i), 3)) for i in range(3)]
    path = pc.binary_join_element_wise(*parts, "/")
    with_id = integers_below(field_hash(0, rows, 104), 10) > 0
    suffixes = ["" for _ in HOT_CHANNELS]
    for channel in range(CHANNELS):
        reversed_bits = int(f"{channel:032b}"[::-1], 2)  # as Java's Integer.reverse, then its absolute value
        reversed_bits = min(reversed_bits, (1 << 32) - reversed_bits)
        suffixes.append(f"&channel_id={reversed_bits}" if with_id[len(HOT_CHANNELS) + channel] else "")
    urls = pc.binary_join_element_wise(
        "https://auctions.example/", path, "/item.htm?query=1", pa.array(suffixes, pa.string()), ""
    )
    names = pa.array([*HOT_CHANNELS, *(f"channel-{channel}" for channel in range(CHANNELS))], pa.string())
    return names, urls
