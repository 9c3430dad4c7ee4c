"""The state directory of a slot on an executor: one id for all slots of a host, and plans that are read there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.spark.runtime.plan_samples import BATCH

from headrace.errors import ConfigError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.batches.stage_reports import error_of
from headrace.spark.runtime.slots.executor_site import ROOT_VARIABLE, ExecutorSite
from headrace.spark.runtime.slots.resident_stage import OpenEnd
from headrace.spark.runtime.slots.slot_link import SlotLink

SITE = ExecutorSite(group_id="a/b", process_id="p", subtopology_id="counts")


def test_slots_of_one_root_have_one_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    first, second = SITE.open(), SITE.open()
    assert first == second
    assert first.path == tmp_path / "a%2Fb" / "p"


def test_without_a_root_it_is_in_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    here = SITE.open()
    assert here.path == tmp_path / "headrace-state" / "a%2Fb" / "p"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert SITE.open().site_id != here.site_id


def test_stores_of_the_subtopology_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    site = SITE.open()
    for name in ("counts_0", "counts_12", "other_counts_3", "counts_x", ".batches"):
        (site.path / name).mkdir()
    assert site.tasks("counts") == [0, 12]


def test_a_plan_is_read_with_this_hosts_directory_and_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    site = SITE.open()
    of_driver = MicroBatchPlan(
        subtopology_id="counts",
        batch=BATCH,
        member_id="m",
        member_epoch=1,
        bootstrap_servers="",
        state_dir="/on/the/driver",
        slots=(SlotPlan(slot=0, tasks=()),),
        topic_ids={},
        boot_id="the driver's",
    )
    plan = site.place(of_driver)
    assert plan.state_dir == str(site.path)
    assert plan.boot_id == site.boot_id != "the driver's"
    assert plan.slots == of_driver.slots


def test_a_plan_of_another_version_is_reported_to_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = SlotLink(socket.create_connection(server.getsockname()))
        there = SlotLink(server.accept()[0])
    with here, there:
        with pytest.raises(ConfigError, match="another version of Headrace"):
            OpenEnd(link=here, site=SITE.open()).read('{"slots": [], "a_new_fact": 1}')
        told = there.receive(within_s=5)
    assert told is not None
    assert error_of(told["error"]).code == "slots-missing"
