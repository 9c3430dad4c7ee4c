"""The two largest sales of each category."""

from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("top-sellers")
sales = app.stream("sales", schema="category string, seller string, amount bigint")

largest = Window.partitionBy("category").orderBy(F.desc("amount"))
top = sales.withColumn("place", F.row_number().over(largest)).where("place <= 2")
top.to_topic("top-sales", partitions=4)

if __name__ == "__main__":
    app.run()
