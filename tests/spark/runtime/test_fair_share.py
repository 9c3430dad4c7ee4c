"""Subtopologies beside each other in one instance: a slow one with a long backlog does not keep a quick one waiting."""

import json
import time

import pytest

from headrace.client.admin import Admin

pytestmark = pytest.mark.spark


def test_a_slow_subtopology_leaves_the_cores_to_a_quick_one(broker, make_app, running):
    """Both cores are the slow one's for as long as its micro-batches last, and these are held to their target."""
    import pandas as pd
    from pyspark.sql import functions as F

    @F.pandas_udf("long")
    def slowly(numbers: pd.Series) -> pd.Series:
        time.sleep(0.02 * len(numbers))
        return numbers

    broker.create_topics({"slow": 2, "quick": 2})

    def send(topic, count):
        for partition in (0, 1):
            broker.produce(topic, [json.dumps({"n": n}) for n in range(count)], partition=partition)

    app = make_app("both", config={"headrace.batch.target.ms": 300})
    app.stream("slow", schema="n bigint").withColumn("n", slowly("n")).to_topic("slow-out", partitions=1)
    app.stream("quick", schema="n bigint").select((F.col("n") + 1).alias("n")).to_topic("quick-out", partitions=1)
    started = running(app)
    send("slow", 20)
    started.wait_until("caught-up", timeout=180)
    send("slow", 10_000)  # 200 s of sleep for each core
    with Admin(broker.bootstrap_servers) as admin:

        def committed(topic):
            return sum(at for (name, _), at in admin.committed_offsets("both").items() if name == topic)

        started._wait(lambda: committed("slow") > 40, None, "in its backlog")
        for round_ in range(1, 4):
            send("quick", 50)
            started._wait(lambda wanted=100 * round_: committed("quick") == wanted, None, "through")
        assert committed("slow") < 20_040, "the slow one was still at it"
    assert len(broker.records("quick-out")) == 300
