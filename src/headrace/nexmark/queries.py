"""The 23 queries as plain functions: each takes DataFrames or streams, and returns what it was given.

`QUERIES` lists them with their kind of result and, where streams do not have an operator yet, its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from headrace.nexmark.last_ten import LastTen

if TYPE_CHECKING:  # Structured Streaming runs this module where PySpark is all that is installed
    from headrace.spark.topology.nodes import OutputMode

__all__ = ["QUERIES", "Events", "LastTen", "Query", "ResultKind", "side_input"]

ResultKind = Literal["append", "table", "files"]
DELAY = "4 seconds"  # of all watermarks; disorder of 1,000 events at the default rate is 0.1 s
DAY = "yyyy-MM-dd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The three inputs, as DataFrames or as streams of one application."""

    person: Any
    auction: Any
    bid: Any
    spark: SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """Rows that a rank leaves undecided: any row that ranks as high may stand there.

    Args:
        order: Columns whose values are the same whichever row is taken, the partition's among them.
        candidates: All rows that may stand there, without the column that numbers them.
    """

    order: tuple[str, ...]
    candidates: Callable[[Events], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query.

    Args:
        name: q0 to q22.
        title: One line for listings.
        build: The query.
        inputs: Kinds of events it reads.
        kind: "append": every row stays; "table": the last row of each key; "files": rows of a directory.
        closed: The time at which a row of the result is final, as SQL over its columns, where results are final when
            the watermark has passed; empty otherwise.
        ties: For ranks over rows that may be equal.
        totals: For processing time, which no batch can repeat: the query whose sums per key are compared instead.
        partition_by: Columns that name the directories of files.
        key: Columns of the result's record key, where they are not those that `to_topic` takes by itself.
    """

    name: str
    title: str
    build: Callable[[Events], Any]
    inputs: tuple[str, ...] = ("bid",)
    kind: ResultKind = "append"
    closed: str = ""
    ties: Ties | None = None
    totals: Callable[[Any], Any] | None = None
    partition_by: tuple[str, ...] = field(default=())
    key: str | tuple[str, ...] | None = None

    @property
    def output_mode(self) -> OutputMode:
        """Return the mode of the result's topic: rows that are final are written once."""
        return "append" if self.closed else "update"


def q0(events: Events) -> Any:
    """Pass-through."""
    return events.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(events: Events) -> Any:
    """Currency conversion."""
    return q0(events).withColumn("price", _price_in_euros())


def _price_in_euros() -> Column:
    # A decimal, as in the original: no double is exactly 0.908, and engines round its products differently.
    return F.lit("0.908").cast("decimal(4,3)") * F.col("price")


def q2(events: Events) -> Any:
    """Selection."""
    return events.bid.where("auction % 123 = 0").select("auction", "price")


def q3(events: Events) -> Any:
    """Local item suggestion: sellers of category 10 in three states."""
    # No time bound: every person and every such auction is kept for ever.
    auctions = events.auction.where("category = 10").select(F.col("id").alias("auction"), "seller")
    persons = events.person.where("state in ('OR', 'ID', 'CA')").select(
        F.col("id").alias("person"), "name", "city", "state"
    )
    return auctions.join(persons, F.expr("seller = person")).select("name", "city", "state", "auction")


def _bids_in_time(events: Events, *auction_columns: str, key: str = "id") -> Any:
    """Return bids joined with their auction, where the bid came while it was open.

    Args:
        events: The events.
        auction_columns: Columns of the auction.
        key: Name of the auction's id. The store of the join is called after it, and names differ in an application.
    """
    auctions = events.auction.withWatermark("dateTime", DELAY).select(
        F.col("id").alias(key), F.col("dateTime").alias("opened"), "expires", *auction_columns
    )
    bids = events.bid.withWatermark("dateTime", DELAY).select(
        "auction", "bidder", "price", F.col("dateTime").alias("bid_dateTime"), F.col("extra").alias("bid_extra")
    )
    return auctions.join(bids, F.expr(f"{key} = auction AND bid_dateTime BETWEEN opened AND expires"))


def q4(events: Events) -> Any:
    """Average closing price of a category."""
    # The maximum of each auction first. It changes with every higher bid, so the average is a table over a table.
    bids = _bids_in_time(events, "category", key="item")
    closing = bids.groupBy("item", "category").agg(F.max("price").alias("final"))
    return closing.groupBy("category").agg(F.avg("final").alias("average"))


def q5(events: Events) -> Any:
    """Hot items: the auctions with the most bids of each ten seconds, every two seconds."""
    bids = events.bid.withWatermark("dateTime", DELAY)
    counts = bids.groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("num"))
    # `rank` keeps all auctions that share the first place; `row_number` would drop some of them at random.
    ranked = counts.withColumn("rank", F.rank().over(Window.partitionBy("window").orderBy(F.desc("num"))))
    return ranked.where("rank = 1").select("window", "auction", "num")


def q6(events: Events) -> Any:
    """Average price of a seller's last ten closed auctions."""
    # "Last ten" is by the end of the auctions: the order of arrival would differ from run to run.
    bids = _bids_in_time(events, "seller", key="lot").withColumnRenamed("lot", "id")
    if not isinstance(bids, DataFrame):
        # Instants as numbers: a processor gets timestamps as local times, of which some hours come twice.
        ended = bids.select("seller", "id", "price", F.unix_micros("expires").alias("expires"))
        averages = "seller BIGINT, id BIGINT, average DOUBLE"
        return ended.groupBy("seller").transformWithState(LastTen(), averages, "Update", "None", name="last-ten")
    order = Window.partitionBy("id").orderBy(F.desc("price"), F.asc("bid_dateTime"))
    winning = bids.withColumn("place", F.row_number().over(order)).where("place = 1")
    last_ten = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-9, 0)
    return winning.select("seller", "id", F.avg("price").over(last_ten).alias("average"))


def q7(events: Events) -> Any:
    """Highest bid: the bids of each ten seconds that reach the greatest price."""
    bids = events.bid.withWatermark("dateTime", DELAY).withColumn("bid_window", F.window("dateTime", "10 seconds"))
    highest = Window.partitionBy("bid_window").orderBy(F.desc("price"))
    ranked = bids.withColumn("rank", F.rank().over(highest)).where("rank = 1")
    return ranked.select(F.col("bid_window").alias("window"), "auction", "price", "bidder", "dateTime", "extra")


def q8(events: Events) -> Any:
    """Monitor new users: persons who opened an auction in the ten seconds in which they registered."""
    persons = events.person.withWatermark("dateTime", DELAY).select(
        "id", "name", F.window("dateTime", "10 seconds").alias("window")
    )
    sellers = events.auction.withWatermark("dateTime", DELAY).select(
        F.col("seller").alias("id"), F.window("dateTime", "10 seconds").alias("window")
    )
    # One row per person and window: a seller opens several auctions in one.
    return persons.join(sellers, ["window", "id"]).dropDuplicates(["window", "id", "name"])


_AUCTION_COLUMNS = ("itemName", "description", "initialBid", "reserve", "seller", "category", "extra")


def _winning(events: Events, number: Column) -> Any:
    return _bids_in_time(events, *_AUCTION_COLUMNS).withColumn("place", number).where("place = 1").drop("place")


def q9(events: Events) -> Any:
    """Winning bids: the highest bid of each auction, the earliest of equal ones."""
    return _winning(events, F.row_number().over(_by_price_then_time()))


def _by_price_then_time() -> Any:
    return Window.partitionBy("id").orderBy(F.desc("price"), F.asc("bid_dateTime"))


def q10(events: Events) -> Any:
    """Log to the file system, partitioned by day and minute."""
    return q0(events).withColumns({"dt": F.date_format("dateTime", DAY), "hm": F.date_format("dateTime", "HH-mm")})


def q11(events: Events) -> Any:
    """User sessions: bids of a bidder with gaps below ten seconds."""
    bids = events.bid.withWatermark("dateTime", DELAY)
    return bids.groupBy(F.session_window("dateTime", "10 seconds"), "bidder").agg(F.count("*").alias("bid_count"))


def q12(events: Events) -> Any:
    """Processing-time windows: bids of a bidder by the clock of the machine."""
    # The windows of two runs differ. `q12_totals` is what they have in common.
    bids = events.bid.withColumn("p_time", F.current_timestamp())
    return bids.groupBy(F.window("p_time", "10 seconds"), "bidder").agg(F.count("*").alias("bid_count"))


def q12_totals(rows: Any) -> Any:
    """Bids of each bidder over all windows, which do not depend on the clock."""
    return rows.groupBy("bidder").agg(F.sum("bid_count").alias("bids"))


def side_input(spark: SparkSession) -> Any:
    """Return the table that q13 looks up: 10,000 keys."""
    return spark.range(10_000).select(F.col("id").alias("key"), F.concat(F.lit("value-"), "id").alias("value"))


def q13(events: Events) -> Any:
    """Bounded side input join."""
    side = F.broadcast(side_input(events.spark))
    joined = events.bid.join(side, F.expr("auction % 10000 = key"))
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def q14(events: Events) -> Any:
    """Calculation: a price range, the time of day, and a count of characters."""
    # Hours of the session's time zone. Hours 7 and 19 are neither day nor night.
    hour = F.hour("dateTime")
    time_type = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime")
    priced = events.bid.withColumn("price", _price_in_euros()).where("price > 1000000 AND price < 50000000")
    return priced.select(
        "auction",
        "bidder",
        "price",
        time_type.otherwise("otherTime").alias("bidTimeType"),
        "dateTime",
        "extra",
        F.regexp_count("extra", F.lit("c")).alias("c_counts"),
    )


_RANKS: Mapping[str, str] = MappingProxyType(
    {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
)


def _bid_counts() -> list[Column]:
    counts = [F.count_if(F.expr(condition)).alias(f"{rank}_bids") for rank, condition in _RANKS.items()]
    return [F.count("*").alias("total_bids"), *counts]


def _distinct_counts() -> list[Column]:
    columns = []
    for name in ("bidder", "auction"):
        columns.append(F.countDistinct(name).alias(f"total_{name}s"))
        for rank, condition in _RANKS.items():
            # `when` without `otherwise` is null, and nulls are not counted.
            columns.append(F.countDistinct(F.when(F.expr(condition), F.col(name))).alias(f"{rank}_{name}s"))
    return columns


def q15(events: Events) -> Any:
    """Bidding statistics of a day."""
    bids = events.bid.withColumn("day", F.date_format("dateTime", DAY))
    return bids.groupBy("day").agg(*_bid_counts(), *_distinct_counts())


def q16(events: Events) -> Any:
    """Statistics of a channel and a day."""
    # The maximum of a text: minutes of one day compare alike as texts and as times.
    bids = events.bid.withColumns({"day": F.date_format("dateTime", DAY), "minute": F.date_format("dateTime", "HH:mm")})
    return bids.groupBy("channel", "day").agg(F.max("minute").alias("minute"), *_bid_counts(), *_distinct_counts())


def q17(events: Events) -> Any:
    """Statistics of an auction and a day."""
    bids = events.bid.withColumn("day", F.date_format("dateTime", DAY))
    return bids.groupBy("auction", "day").agg(
        *_bid_counts(),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.avg("price").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )


def q18(events: Events) -> Any:
    """Last bid of a bidder on an auction."""
    return _numbered(events, F.row_number(), _by_time()).where("place = 1").drop("place")


def q19(events: Events) -> Any:
    """Top ten bids of an auction."""
    return _numbered(events, F.row_number(), _by_price()).where("place <= 10")


def _numbered(events: Events, function: Column, order: Any) -> Any:
    return events.bid.withColumn("place", function.over(order))


def _by_time() -> Any:
    return Window.partitionBy("bidder", "auction").orderBy(F.desc("dateTime"))


def _by_price() -> Any:
    return Window.partitionBy("auction").orderBy(F.desc("price"))


def q20(events: Events) -> Any:
    """Bids with the auction that they belong to, for one category."""
    auctions = events.auction.where("category = 10").select(
        "id", "itemName", "description", "initialBid", "reserve", F.col("dateTime").alias("opened"), "expires",
        "seller", "category", F.col("extra").alias("auction_extra"),
    )  # fmt: skip
    return events.bid.join(auctions, F.expr("auction = id"))


def q21(events: Events) -> Any:
    """Channel ids: known ones by name, others out of the URL."""
    name = F.lower("channel")
    known = F.when(name == "apple", "0").when(name == "google", "1").when(name == "facebook", "2")
    # `regexp_extract` returns an empty text where nothing matches; the query wants such rows left out.
    found = F.nullif(F.regexp_extract("url", r"(&|^)channel_id=([^&]*)", 2), F.lit(""))
    channel_id = known.when(name == "baidu", "3").otherwise(found)
    rows = events.bid.select("auction", "bidder", "price", "channel", channel_id.alias("channel_id"))
    return rows.where("channel_id IS NOT NULL")


def q22(events: Events) -> Any:
    """Directories of the URL."""
    # Parts 0 to 2 are "https:", an empty text and the host.
    parts = F.split("url", "/")
    directories = [parts[3 + i].alias(f"dir{1 + i}") for i in range(3)]
    return events.bid.select("auction", "bidder", "price", "channel", *directories)


_WINDOW_END, _SESSION_END = "window.end", "session_window.end"

_ALL = (
    Query(name="q0", title="pass-through", build=q0),
    Query(name="q1", title="currency conversion", build=q1),
    Query(name="q2", title="selection", build=q2),
    Query(name="q3", title="local item suggestion", build=q3, inputs=("person", "auction")),
    Query(
        name="q4",
        title="average price of a category",
        build=q4,
        inputs=("auction", "bid"),
        kind="table",
    ),
    Query(name="q5", title="hot items", build=q5, closed=_WINDOW_END),
    Query(
        name="q6",
        title="average price of a seller",
        build=q6,
        inputs=("auction", "bid"),
        kind="table",
        key=("seller", "id"),
    ),
    Query(name="q7", title="highest bid", build=q7, closed=_WINDOW_END),
    Query(name="q8", title="new users", build=q8, inputs=("person", "auction"), closed=_WINDOW_END),
    Query(
        name="q9",
        title="winning bids",
        build=q9,
        inputs=("auction", "bid"),
        kind="table",
        ties=Ties(
            order=("id", "price", "bid_dateTime"),
            candidates=lambda events: _winning(events, F.rank().over(_by_price_then_time())),
        ),
    ),
    Query(name="q10", title="log to files", build=q10, kind="files", partition_by=("dt", "hm")),
    Query(name="q11", title="user sessions", build=q11, closed=_SESSION_END),
    Query(name="q12", title="processing-time windows", build=q12, kind="table", totals=q12_totals),
    Query(name="q13", title="side input join", build=q13),
    Query(name="q14", title="calculation", build=q14),
    Query(name="q15", title="bidding statistics", build=q15, kind="table"),
    Query(name="q16", title="channel statistics", build=q16, kind="table"),
    Query(name="q17", title="auction statistics", build=q17, kind="table"),
    Query(
        name="q18",
        title="last bid",
        build=q18,
        kind="table",
        ties=Ties(
            order=("bidder", "auction", "dateTime"),
            candidates=lambda events: _numbered(events, F.rank(), _by_time()).where("place = 1").drop("place"),
        ),
    ),
    Query(
        name="q19",
        title="top ten bids",
        build=q19,
        kind="table",
        ties=Ties(order=("auction", "place", "price"), candidates=lambda events: events.bid),
    ),
    Query(name="q20", title="bids with their auction", build=q20, inputs=("auction", "bid")),
    Query(name="q21", title="channel ids", build=q21),
    Query(name="q22", title="URL directories", build=q22),
)
QUERIES: Mapping[str, Query] = MappingProxyType({query.name: query for query in _ALL})
"""Name → query, in their order."""
