"""The peer: Flink SQL 2.3.0 over the Nexmark topics, one query at a time, in a process that stays warm.

    python flink_nexmark.py --bootstrap-server HOST:PORT --jars flink-sql-connector-kafka.jar --backend hashmap

Runs in an environment with apache-flink 2.3.0 and nothing of Headrace. One JSON line reports that it is ready. Each
line on standard input names a run, `{"query": "q17", "prefix": "nexmark", "sink": "results"}`; it reads the topics up
to their ends at the start of the job, writes exactly once, and is answered by one line with its seconds: the run time
of the job that Flink reports, without the start of the JVM. Parallelism 2, mini-batches of 2 s or 50,000 rows,
checkpoints every 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

PARALLELISM = 2
COLUMNS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, "
    "`dateTime` TIMESTAMP_LTZ(3), extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
    "`dateTime` TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP_LTZ(3), "
    "extra STRING",
}
_WINDOW = "CAST(window_start AS STRING) AS wstart, CAST(window_end AS STRING) AS wend"
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_COUNTS = (
    "COUNT(*) AS total_bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids, "
    "COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, "
    "COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids"
)


def _distinct(column: str) -> str:
    return (
        f"COUNT(DISTINCT {column}) AS total_{column}s, "
        f"COUNT(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s, "
        f"COUNT(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s, "
        f"COUNT(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s"
    )


_WON = (
    "SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.`dateTime` AS opened, a.expires, a.seller, "
    "a.category, a.extra, b.auction, b.bidder, b.price, b.`dateTime` AS bid_dateTime, b.extra AS bid_extra, "
    "ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`dateTime` ASC) AS place "
    "FROM auction a JOIN bid b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires"
)

_HOPS = (
    "SELECT window_start, window_end, auction, COUNT(*) AS num FROM HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL "
    "'2' SECOND, INTERVAL '10' SECOND) GROUP BY window_start, window_end, auction"
)

# Query → columns of the result, the columns of its key ("" for rows that are appended), and the query.
QUERIES: dict[str, tuple[str, str, str]] = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP_LTZ(3), extra STRING",
        "",
        "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), `dateTime` TIMESTAMP_LTZ(3), extra STRING",
        "",
        "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    ),
    "q2": ("auction BIGINT, price BIGINT", "", "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
    "q3": (
        "name STRING, city STRING, state STRING, auction BIGINT",
        "",
        (
            "SELECT p.name, p.city, p.state, a.id AS auction FROM auction a JOIN person p ON a.seller = p.id "
            "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
        ),
    ),
    "q4": (
        "category BIGINT, average DOUBLE",
        "category",
        (
            "SELECT category, AVG(CAST(final AS DOUBLE)) AS average FROM (SELECT a.id, a.category, MAX(b.price) AS "
            "final FROM auction a JOIN bid b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires "
            "GROUP BY a.id, a.category) GROUP BY category"
        ),
    ),
    "q5": (
        "wstart STRING, wend STRING, auction BIGINT, num BIGINT",
        "",
        (
            # Streams have no RANK in Flink: a join with the greatest count of the window, as in the published query.
            "SELECT CAST(c.window_start AS STRING) AS wstart, CAST(c.window_end AS STRING) AS wend, c.auction, c.num "
            f"FROM ({_HOPS}) c JOIN (SELECT window_start, window_end, MAX(num) AS num FROM ({_HOPS}) GROUP BY "
            "window_start, window_end) m ON c.window_start = m.window_start AND c.window_end = m.window_end AND "
            "c.num = m.num"
        ),
    ),
    "q7": (
        (
            "wstart STRING, wend STRING, auction BIGINT, price BIGINT, bidder BIGINT, `dateTime` TIMESTAMP_LTZ(3), "
            "extra STRING"
        ),
        "",
        (
            "SELECT CAST(m.window_start AS STRING) AS wstart, CAST(m.window_end AS STRING) AS wend, b.auction, "
            "b.price, b.bidder, b.`dateTime`, b.extra FROM bid b JOIN (SELECT window_start, window_end, window_time AS "
            "ended, MAX(price) AS price FROM TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND) GROUP BY "
            "window_start, window_end, window_time) m ON b.price = m.price AND b.`dateTime` BETWEEN m.ended - INTERVAL "
            "'9.999' SECOND AND m.ended"
        ),
    ),
    "q8": (
        "id BIGINT, name STRING, wstart STRING, wend STRING",
        "",
        (
            "SELECT p.id, p.name, CAST(p.window_start AS STRING) AS wstart, CAST(p.window_end AS STRING) AS wend FROM "
            "(SELECT id, name, window_start, window_end FROM TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL "
            "'10' SECOND) GROUP BY id, name, window_start, window_end) p JOIN (SELECT seller, window_start, window_end "
            "FROM TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND) GROUP BY seller, window_start, "
            "window_end) a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end"
        ),
    ),
    "q9": (
        (
            "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, opened "
            "TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, extra STRING, auction "
            "BIGINT, bidder BIGINT, price BIGINT, bid_dateTime TIMESTAMP_LTZ(3), bid_extra STRING"
        ),
        "id",
        (
            "SELECT id, itemName, description, initialBid, reserve, opened, expires, seller, category, extra, auction, "
            f"bidder, price, bid_dateTime, bid_extra FROM ({_WON}) WHERE place <= 1"
        ),
    ),
    "q11": (
        "wstart STRING, wend STRING, bidder BIGINT, bid_count BIGINT",
        "",
        (
            f"SELECT {_WINDOW}, bidder, COUNT(*) AS bid_count FROM SESSION(TABLE bid PARTITION BY bidder, "
            "DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND) GROUP BY window_start, window_end, bidder"
        ),
    ),
    "q14": (
        (
            "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bidTimeType STRING, `dateTime` TIMESTAMP_LTZ(3), "
            "extra STRING, c_counts BIGINT"
        ),
        "",
        (
            "SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(`dateTime`) BETWEEN 8 AND 18 THEN "
            "'dayTime' WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS "
            "bidTimeType, `dateTime`, extra, CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS "
            "BIGINT) AS c_counts FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000"
        ),
    ),
    "q15": (
        (
            "`day` STRING, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT, "
            "total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders BIGINT, "
            "total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT"
        ),
        "`day`",
        f"SELECT {_DAY} AS `day`, {_COUNTS}, {_distinct('bidder')}, {_distinct('auction')} FROM bid GROUP BY {_DAY}",
    ),
    "q16": (
        (
            "channel STRING, `day` STRING, `minute` STRING, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, "
            "rank3_bids BIGINT, total_bidders BIGINT, rank1_bidders BIGINT, rank2_bidders BIGINT, rank3_bidders "
            "BIGINT, total_auctions BIGINT, rank1_auctions BIGINT, rank2_auctions BIGINT, rank3_auctions BIGINT"
        ),
        "channel, `day`",
        (
            f"SELECT channel, {_DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {_COUNTS}, "
            f"{_distinct('bidder')}, {_distinct('auction')} FROM bid GROUP BY channel, {_DAY}"
        ),
    ),
    "q17": (
        (
            "auction BIGINT, `day` STRING, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT, "
            "min_price BIGINT, max_price BIGINT, avg_price DOUBLE, sum_price BIGINT"
        ),
        "auction, `day`",
        (
            f"SELECT auction, {_DAY} AS `day`, {_COUNTS}, MIN(price) AS min_price, MAX(price) AS max_price, "
            f"AVG(CAST(price AS DOUBLE)) AS avg_price, SUM(price) AS sum_price FROM bid GROUP BY auction, {_DAY}"
        ),
    ),
    "q18": (
        COLUMNS["bid"],
        "bidder, auction",
        (
            "SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (SELECT *, ROW_NUMBER() OVER "
            "(PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid) WHERE place <= 1"
        ),
    ),
    "q19": (
        f"{COLUMNS['bid']}, place BIGINT",
        "auction, place",
        (
            "SELECT auction, bidder, price, channel, url, `dateTime`, extra, place FROM (SELECT *, ROW_NUMBER() OVER "
            "(PARTITION BY auction ORDER BY price DESC) AS place FROM bid) WHERE place <= 10"
        ),
    ),
    "q20": (
        (
            f"{COLUMNS['bid']}, id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
            "opened TIMESTAMP_LTZ(3), expires TIMESTAMP_LTZ(3), seller BIGINT, category BIGINT, auction_extra STRING"
        ),
        "",
        (
            "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime`, b.extra, a.id, a.itemName, "
            "a.description, a.initialBid, a.reserve, a.`dateTime` AS opened, a.expires, a.seller, a.category, a.extra "
            "AS auction_extra FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10"
        ),
    ),
    "q21": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, channel_id STRING",
        "",
        (
            "SELECT * FROM (SELECT auction, bidder, price, channel, CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN "
            "'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE NULLIF(REGEXP_EXTRACT(url, "
            "'(&|^)channel_id=([^&]*)', 2), '') END AS channel_id FROM bid) WHERE channel_id IS NOT NULL"
        ),
    ),
    "q22": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, dir1 STRING, dir2 STRING, dir3 STRING",
        "",
        (
            "SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS "
            "dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid"
        ),
    ),
}


def make_environment(jar: str, backend: str, directory: str) -> Any:
    """Return a streaming table environment with the settings of the comparison."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    settings = {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": str(PARALLELISM),
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "taskmanager.memory.managed.size": "1gb",
        "taskmanager.memory.network.max": "256mb",
        "state.backend.type": backend,
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "io.tmp.dirs": directory,
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


def declare_sources(environment: Any, bootstrap: str, prefix: str) -> None:
    for kind, columns in COLUMNS.items():
        environment.execute_sql(f"DROP TABLE IF EXISTS {kind}")
        environment.execute_sql(
            f"CREATE TABLE {kind} ({columns}, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND) WITH ("
            f"'connector' = 'kafka', 'topic' = '{prefix}-{kind}', 'properties.bootstrap.servers' = '{bootstrap}', "
            "'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'json', "
            "'json.timestamp-format.standard' = 'ISO-8601')"
        )


def declare_sink(environment: Any, bootstrap: str, topic: str, columns: str, key: str) -> None:
    common = (
        f"'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}', "
        f"'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{topic}', "
        "'properties.transaction.timeout.ms' = '600000'"
    )
    environment.execute_sql("DROP TABLE IF EXISTS results")
    if key:
        environment.execute_sql(
            f"CREATE TABLE results ({columns}, PRIMARY KEY ({key}) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
            f"{common}, 'key.format' = 'json', 'value.format' = 'json', "
            "'value.json.timestamp-format.standard' = 'ISO-8601')"
        )
    else:
        environment.execute_sql(
            f"CREATE TABLE results ({columns}) WITH ('connector' = 'kafka', {common}, 'format' = 'json', "
            "'json.timestamp-format.standard' = 'ISO-8601')"
        )


def run_query(environment: Any, bootstrap: str, asked: dict[str, str]) -> dict[str, float]:
    columns, key, query = QUERIES[asked["query"]]
    declare_sources(environment, bootstrap, asked["prefix"])
    declare_sink(environment, bootstrap, asked["sink"], columns, key)
    result = environment.execute_sql(f"INSERT INTO results {query}")
    client = result.get_job_client()
    result.wait()
    return {"seconds": client.get_job_execution_result().result().get_net_runtime() / 1000}


def _cause(error: Exception) -> str:
    """Return the lines of a Java error that name its causes, without their stacks."""
    lines = str(error).splitlines()
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t..."))][-12:])[:1500]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    options = parser.parse_args()
    # The JVM inherits standard output: its messages go to standard error, only replies to the reader.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    reply: Callable[[object], None] = lambda document: print(json.dumps(document), file=replies)  # noqa: E731
    with tempfile.TemporaryDirectory(prefix="flink-nexmark-") as directory:
        environment = make_environment(options.jars, options.backend, directory)
        reply({"spark": "Flink 2.3.0"})
        while line := sys.stdin.readline():
            try:
                reply(run_query(environment, options.bootstrap_server, json.loads(line)))
            except Exception as error:  # the driver of the comparison prints it beside the query's name
                reply({"error": _cause(error)})


if __name__ == "__main__":
    main()
