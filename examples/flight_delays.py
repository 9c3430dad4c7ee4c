"""Delays per airport and per airline, kept up to date while flights arrive.

headrace run examples/flight_delays.py --dev --sample flights --instances 2   # or: python examples/flight_delays.py
headrace verify examples/flight_delays.py --dev                 # recompute everything as one Spark batch, compare
"""

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("flight-delays")  # the name is the Kafka group

flights = app.stream("flights", schema="carrier string, origin string, dep_delay double, distance double")


def delays(flights, by):  # plain PySpark: takes a DataFrame just as well
    return (
        flights.where("dep_delay is not null")
        .groupBy(by)
        .agg(
            F.count("*").alias("flights"),
            F.round(F.avg("dep_delay"), 3).alias("mean_delay"),
            F.max("dep_delay").alias("worst_delay"),
            F.count_if(F.col("dep_delay") > 60).alias("over_an_hour"),
            F.sum("distance").alias("miles"),
        )
    )


delays(flights, "origin").to_topic("by-origin", partitions=8)  # key: the airport
delays(flights, "carrier").to_topic("by-carrier", partitions=8)  # key: the airline

if __name__ == "__main__":
    app.run()
