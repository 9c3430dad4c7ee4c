"""The application of chaos with open timers: a stateful processor that counts in ten seconds and yields by timers.

Each row carries the sum of its ten seconds and how many timers of its key fired before, so a timer that is lost, fires
twice or meets another state makes a row that `event_time_judgement` does not expect. Event times and environment as for
`chaos_windows_app`.
"""

import json
import os

from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row

from headrace import StreamsApp

WITHIN_MS = 10_000

app = StreamsApp(
    "chaos",
    processing_guarantee="exactly_once_v2",
    config={
        "headrace.execution": os.environ.get("EXECUTION", "auto"),
        "group.instance.id": os.environ.get("INSTANCE_ID", ""),
        "transaction.timeout.ms": os.environ.get("TRANSACTION_TIMEOUT_MS", "10000"),
        **json.loads(os.environ.get("MEMBER_CONFIG", "{}")),  # of a classic group
    },
)


class Visits(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.open = handle.getMapState("open", "start BIGINT", "flights BIGINT, delays DOUBLE")
        self.fired = handle.getValueState("fired", "timers BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            start = row.at_ms // WITHIN_MS * WITHIN_MS
            flights, delays = self.open.getValue((start,)) or (0, 0.0)
            self.open.updateValue((start,), (flights + 1, delays + (row.dep_delay or 0.0)))
            self.handle.registerTimer(start + WITHIN_MS)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        start = expiredTimerInfo.getExpiryTimeInMs() - WITHIN_MS
        flights, delays = self.open.getValue((start,))
        self.open.removeKey((start,))
        number = (self.fired.get() or (0,))[0]
        self.fired.update((number + 1,))
        yield Row(visitor=key[0], start=start, flights=flights, delays=delays, number=number)


flights = app.stream("flights", schema="id bigint, origin string, carrier string, dep_delay double")
timed = flights.withColumn("at_ms", F.expr("id * 50 + id div 1000 * 60000")).withColumn("visitor", F.expr("id % 40"))
visits = timed.withColumn("at", F.expr("timestamp_millis(at_ms)")).withWatermark("at", "2 seconds").groupBy("visitor")
rows = "visitor bigint, start bigint, flights bigint, delays double, number bigint"
counted = visits.transformWithState(Visits(), rows, "Append", "EventTime", name="visits")
counted.to_topic("chaos-visits", partitions=3)

if __name__ == "__main__":
    app.run()
