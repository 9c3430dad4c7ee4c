"""Payments by account. Records that are no payments are kept aside, and the others go on."""

from pyspark.sql import functions as F

from headrace import DeadLetter, StreamsApp

app = StreamsApp("payments")
payments = app.stream("payments", schema="account string, cents bigint", on_error=DeadLetter("payments.bad"))

payments.groupBy("account").agg(F.sum("cents").alias("cents")).to_topic("balances", partitions=4)

if __name__ == "__main__":
    app.run()
