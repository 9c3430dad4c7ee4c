"""Fraud rule: an alert for each third declined payment of a card within ten minutes (`headrace run` with `--dev`)."""

from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row

from headrace import StreamsApp

WITHIN_MS = 600_000


class DeclinedPayments(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.declined = handle.getListState("declined", "at_ms BIGINT, amount DOUBLE")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            at_ms = int(row.at.timestamp() * 1000)
            self.declined.appendValue((at_ms, row.amount))
            self.handle.registerTimer(at_ms + WITHIN_MS)
            recent = [amount for ms, amount in self.declined.get() if at_ms - WITHIN_MS < ms <= at_ms]
            if len(recent) % 3 == 0:
                yield Row(card=key[0], payments=len(recent), amount=sum(recent), at=row.at)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        first_ms = expiredTimerInfo.getExpiryTimeInMs() - WITHIN_MS
        self.declined.put([one for one in self.declined.get() if one[0] > first_ms])
        return iter(())


app = StreamsApp("declined-payments")
payments = app.stream("payments", schema="card string, amount double, declined boolean, at timestamp")
declined = payments.where("declined").withWatermark("at", "30 seconds").groupBy("card")
alerts = "card string, payments int, amount double, at timestamp"
declined.transformWithState(DeclinedPayments(), alerts, "Append", "EventTime").to_topic("alerts", partitions=8)

if __name__ == "__main__":
    app.run()
