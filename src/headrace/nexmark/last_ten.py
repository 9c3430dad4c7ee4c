"""Averages over a seller's last ten auctions, as a stateful processor: OVER rows of q6 on a stream.

A bid that becomes the highest one of its auction changes the average of this auction and of up to nine behind it, in
the order in which they end. Their rows are yielded again, so the last row of each auction is that of the whole input,
whatever the order of arrival and wherever micro-batches end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import Row

__all__ = ["LastTen"]

ROWS = 10


class LastTen(StatefulProcessor):
    """Takes bids (seller, id, price, expires in microseconds), yields (seller, id, average).

    The highest price of every auction is kept: a bid on an early auction may still change later averages.
    """

    def init(self, handle: Any) -> None:
        self.highest = handle.getMapState("highest", "expires BIGINT, id BIGINT", "price BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 PySpark's
        del timerValues
        prices: dict[tuple[int, int], int] = {tuple(end): price for end, (price,) in self.highest.iterator()}
        changed: set[tuple[int, int]] = set()
        for row in rows:
            end = row.expires, row.id
            if row.price > prices.get(end, -1):
                prices[end] = row.price
                changed.add(end)
        for end in changed:
            self.highest.updateValue(end, (prices[end],))
        yield from self._averages(key[0], prices, changed)

    def _averages(
        self, seller: int, prices: dict[tuple[int, int], int], changed: set[tuple[int, int]]
    ) -> Iterator[Row]:
        order = sorted(prices)
        firsts = [bisect_left(order, end) for end in changed]
        places = {place for first in firsts for place in range(first, min(first + ROWS, len(order)))}
        for place in sorted(places):
            last = [prices[end] for end in order[max(0, place - ROWS + 1) : place + 1]]
            yield Row(seller=seller, id=order[place][1], average=sum(last) / len(last))
