"""Metrics of a running application, and the page that lists them."""

import re
from pathlib import Path

import pytest
from tests.harness.ports import find_free_port
from tests.spark.observed_programs import get

pytestmark = pytest.mark.spark


PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"


def test_metrics_are_those_of_the_page(broker, make_app, running, flights):
    flights.send(broker, range(400))
    app = running(flights.count_by_origin(make_app(config={"headrace.metrics.port": find_free_port()})))
    app.wait_until("caught-up", timeout=60)
    app._wait(lambda: flights.are_told(app.recentProgress, 400), None, "told")
    status, text = get(f"{app.metrics_url}/metrics")
    assert status == 200
    samples = dict(re.findall(r"^([a-z_A-Z]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))

    def total(name, **labels):
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [at for at in samples if at.split("{")[0] == name and all(each in at for each in wanted)]
        return sum(float(samples[at]) for at in lines)

    assert total("kafka_streams_stream_metrics_client_state") == 2
    assert total("kafka_streams_stream_task_metrics_process_total") == sum(
        row["numInputRows"] for row in app.recentProgress
    )
    assert total("kafka_consumer_consumer_fetch_manager_metrics_records_lag", topic="flights") == 0
    assert total("headrace_app_state_keys") == 3
    assert total("headrace_app_tasks") == len(app.tasks)
    assert total("headrace_app_batch_ms_total", stage="triggerExecution") > 0
    named = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    section = PAGE.read_text().split("## Applications")[1].split("\n## ")[0]
    assert named == set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))
