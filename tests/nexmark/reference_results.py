"""The stateful queries in plain Python, written from their descriptions and without Spark: a second opinion.

Each function takes lists of dictionaries and returns the rows of the query in the query's columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

Row = Mapping[str, Any]
SECOND = timedelta(seconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def windows(time: datetime, size_s: int, step_s: int) -> Iterable[tuple[datetime, datetime]]:
    since_s = (time - EPOCH) // SECOND
    first = since_s - since_s % step_s
    for start_s in range(first, first - size_s, -step_s):
        start = EPOCH + start_s * SECOND
        yield start, start + size_s * SECOND


def won(auctions: Sequence[Row], bids: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the bids of each auction that came while it was open, the best first."""
    opened = {auction["id"]: auction for auction in auctions}
    found: dict[int, list[Row]] = defaultdict(list)
    for bid in bids:
        auction = opened.get(bid["auction"])
        if auction is not None and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            found[bid["auction"]].append(bid)
    return {key: sorted(rows, key=lambda bid: (-bid["price"], bid["dateTime"])) for key, rows in found.items()}


def q3(persons: Sequence[Row], auctions: Sequence[Row], _bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    sellers = {person["id"]: person for person in persons if person["state"] in {"OR", "ID", "CA"}}
    return [
        (seller["name"], seller["city"], seller["state"], auction["id"])
        for auction in auctions
        if auction["category"] == 10 and (seller := sellers.get(auction["seller"])) is not None
    ]


def q4(_persons: Sequence[Row], auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    finals: dict[int, list[int]] = defaultdict(list)
    best = won(auctions, bids)
    for auction in auctions:
        if auction["id"] in best:
            finals[auction["category"]].append(best[auction["id"]][0]["price"])
    return [(category, sum(prices) / len(prices)) for category, prices in finals.items()]


def q5(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    counts = Counter((window, bid["auction"]) for bid in bids for window in windows(bid["dateTime"], 10, 2))
    most: dict[Any, int] = {}
    for (window, _), count in counts.items():
        most[window] = max(count, most.get(window, 0))
    return [(window, auction, count) for (window, auction), count in counts.items() if count == most[window]]


def q6(_persons: Sequence[Row], auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    best = won(auctions, bids)
    by_seller: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for auction in sorted(auctions, key=lambda row: (row["expires"], row["id"])):
        if auction["id"] in best:
            by_seller[auction["seller"]].append((auction["id"], best[auction["id"]][0]["price"]))
    rows = []
    for seller, sold in by_seller.items():
        for place, (auction_id, _) in enumerate(sold):
            last = [price for _, price in sold[max(0, place - 9) : place + 1]]
            rows.append((seller, auction_id, sum(last) / len(last)))
    return rows


def q7(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    by_window: dict[Any, list[Row]] = defaultdict(list)
    for bid in bids:
        (window,) = windows(bid["dateTime"], 10, 10)
        by_window[window].append(bid)
    return [
        (window, bid["auction"], bid["price"], bid["bidder"], bid["dateTime"], bid["extra"])
        for window, rows in by_window.items()
        for bid in rows
        if bid["price"] == max(row["price"] for row in rows)
    ]


def q8(persons: Sequence[Row], auctions: Sequence[Row], _bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    selling = {(*windows(auction["dateTime"], 10, 10), auction["seller"]) for auction in auctions}
    return [
        (window, person["id"], person["name"])
        for person in persons
        for window in windows(person["dateTime"], 10, 10)
        if (window, person["id"]) in selling
    ]


def q11(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    by_bidder: dict[int, list[datetime]] = defaultdict(list)
    for bid in bids:
        by_bidder[bid["bidder"]].append(bid["dateTime"])
    rows = []
    for bidder, times in by_bidder.items():
        start, count = min(times), 0
        end = start
        for time in [*sorted(times), datetime.max.replace(tzinfo=UTC)]:
            if count and time > end:
                rows.append(((start, end), bidder, count))
                start, count = time, 0
            if time.year < 9999:
                end, count = time + 10 * SECOND, count + 1
    return rows


def _statistics(bids: Sequence[Row]) -> tuple[int, ...]:
    ranks = [
        [bid for bid in bids if bid["price"] < 10_000],
        [bid for bid in bids if 10_000 <= bid["price"] < 1_000_000],
        [bid for bid in bids if bid["price"] >= 1_000_000],
    ]
    counts = [len(rows) for rows in (bids, *ranks)]
    for column in ("bidder", "auction"):
        counts += [len({bid[column] for bid in rows}) for rows in (bids, *ranks)]
    return tuple(counts)


def q15(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [(day, *_statistics(rows)) for day, rows in _grouped(bids, _day).items()]


def q16(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    groups = _grouped(bids, lambda bid: (bid["channel"], _day(bid)))
    return [
        (*key, max(bid["dateTime"] for bid in rows).strftime("%H:%M"), *_statistics(rows))
        for key, rows in groups.items()
    ]


def q17(_persons: Sequence[Row], _auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    rows = []
    for key, group in _grouped(bids, lambda bid: (bid["auction"], _day(bid))).items():
        prices = [bid["price"] for bid in group]
        rows.append((*key, *_statistics(group)[:4], min(prices), max(prices), sum(prices) / len(prices), sum(prices)))
    return rows


def q20(_persons: Sequence[Row], auctions: Sequence[Row], bids: Sequence[Row]) -> list[tuple[Any, ...]]:
    wanted = {auction["id"]: auction for auction in auctions if auction["category"] == 10}
    return [(*bid.values(), *wanted[bid["auction"]].values()) for bid in bids if bid["auction"] in wanted]


def _day(bid: Row) -> str:
    return str(bid["dateTime"].strftime("%Y-%m-%d"))


def _grouped(bids: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for bid in bids:
        groups[key(bid)].append(bid)
    return groups
