"""Alert rules and the dashboard for `headrace exporter`: names that exist, and promtool's own judgement.

promtool is part of Prometheus (Debian's package `prometheus`); without it the tests that need it are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from tests.metrics.alert_rules import read_rules

import headrace.metrics
from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot, PartitionSnapshot
from headrace.cli.exporter.snapshot_families import METRICS, CollectionHealth, health_families, snapshot_families
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.metrics.prometheus_text import prometheus_text

ROOT = Path(__file__).parents[2]
RULES = files(headrace.metrics).joinpath("group_alerts.yml")
DASHBOARD = json.loads((ROOT / "packaging" / "grafana-groups.json").read_text())
_METRIC = re.compile(r"\b(?:kafka|headrace)_[a-z_]+")


def test_alerts_name_existing_metrics_labels_and_a_fix() -> None:
    rules = read_rules(RULES.read_text())
    assert len(rules) == 11
    for rule in rules:
        named = _METRIC.findall(rule.expr)
        assert named
        assert set(named) <= set(METRICS), rule.name
        labels = {label for name in named for label in METRICS[name].labels} | {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)", rule.annotations["summary"])) <= labels, rule.name
        assert rule.annotations["summary"].endswith(".")
        assert rule.annotations["fix"].endswith(".")
        assert rule.labels["severity"] in ("warning", "critical")


def test_the_dashboard_names_existing_metrics_and_labels() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {name for expression in expressions for name in _METRIC.findall(expression)}
    assert shown <= set(METRICS)
    assert len(shown) >= 17
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = {label for name in _METRIC.findall(target["expr"]) for label in METRICS[name].labels}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_reference_page_lists_every_metric() -> None:
    page = (ROOT / "docs" / "reference" / "exporter-metrics.md").read_text()
    assert set(METRICS) == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    return found


def test_promtool_accepts_rules_and_their_unit_tests(promtool: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.yml"
    text = Path(__file__).with_name("group_alerts_promtool.yml").read_text()
    cases.write_text(text.replace("[RULES]", f"[{RULES}]"))
    told = subprocess.run([promtool, "test", "rules", str(cases)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_promtool_accepts_the_page(promtool: str) -> None:
    key = ("orders", 0)
    group = GroupSnapshot(group_id='"x\\\n', group_type="streams", state="Stable", epoch=1, assignment_epoch=1)
    snapshot = ClusterSnapshot(
        brokers={1: "kafka:9092"},
        partitions={key: PartitionSnapshot(leader=1, replicas=(1,), in_sync=(1,), start=0, end=9, stable_end=9)},
        groups={group.group_id: group},
    )
    history = SnapshotHistory()
    history.add(snapshot, 0)
    page = prometheus_text([*snapshot_families(snapshot, history, 0), *health_families(CollectionHealth(), 1.0)])
    told = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    # Exit code 3 is for advice on names (kafka_exporter's have none of Prometheus' units); 1 is for a page that cannot
    # be read.
    assert told.returncode in (0, 3), told.stdout + told.stderr
    assert "error while linting" not in told.stdout + told.stderr
