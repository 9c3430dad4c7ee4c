"""Reports of stages, each attempt for itself."""

from pathlib import Path

from tests.spark.runtime.plan_samples import BATCH

from headrace.errors import RecordError
from headrace.spark.runtime.batches.plan import StageReport
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.stores.store import BatchKey


def test_stage_reports_keep_attempts_apart(tmp_path):
    this, other = (StageReports(tmp_path, "s", BatchKey(incarnation="i", batch_id=1, attempt=n)) for n in (0, 1))
    this.write_report(StageReport(stage="fetch-0", slot=0, batch=BATCH))
    this.write_error("fetch-0", 1, RecordError("undecodable", "no", "fix", topic="t", partition=0, offset=4))
    assert [report.stage for report in this.reports()] == ["fetch-0"]
    [error] = this.errors()
    assert isinstance(error, RecordError)
    assert error.facts == {"topic": "t", "partition": 0, "offset": 4}
    assert other.reports() == []
    this.remove()
    assert this.errors() == []


def test_errors_of_others_keep_their_words(tmp_path):
    path = StageReports(tmp_path, "s", BATCH)
    try:
        raise KeyError("x")
    except KeyError as error:
        path.write_error("sink-0", 0, error)
    [found] = path.errors()
    assert found.code == "stage-failed"
    assert "KeyError" in found.message
    assert Path(__file__).name in found.facts["where"]
