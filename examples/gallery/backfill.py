"""A topic from its first record, converted into another one. Started several times, the instances share the work."""

from headrace import StreamsApp

app = StreamsApp("backfill-cents", auto_offset_reset="earliest")
orders = app.stream("orders", schema="order string, amount decimal(12,2)")

orders.selectExpr("order", "CAST(amount * 100 AS BIGINT) AS cents").to_topic("orders-v2", key="order", partitions=4)

if __name__ == "__main__":
    app.run(until="caught-up")
