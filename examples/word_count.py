"""The same words, counted by as many instances as you start.

headrace run examples/word_count.py --dev
echo "to be or not to be" | headrace console-producer --topic lines
"""

from pyspark.sql import functions as F

from headrace import StreamsApp

app = StreamsApp("word-count")


def count_words(lines):
    words = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word"))
    return words.where("word != ''").groupBy("word").count()


lines = app.stream("lines", value="string")  # one column: value
count_words(lines).to_topic("word-counts", partitions=8)  # key: the word; value: {"word": …, "count": …}

if __name__ == "__main__":
    app.run()
