"""`headrace upgrade` with real members: save, delete, restore, join; crashes in between; the way back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.command_lines import GROUP, Command, Worker, flight_topology

from headrace.cli.upgrade.group_state import read_group_state
from headrace.cli.upgrade.plan import carry_out, plan_upgrade, with_state
from headrace.cli.upgrade.saved_state import SaveFile
from headrace.cli.upgrade.state_plan import plan_state
from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset
from headrace.client.membership.events import Fatal
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.streams_member import StreamsMember
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.embedded import EmbeddedBroker

AT = "2026-11-21T06:00:00Z"
POSITIONS = {
    **{("flights", number): CommittedOffset(offset=5 + number, leader_epoch=0, metadata="m") for number in range(4)},
    ("by-origin-repartition", 0): CommittedOffset(offset=0),
}
PLAIN = {key: committed.offset for key, committed in POSITIONS.items()}


def changed_topology() -> Topology:
    """As `flight_topology`, with a store more."""
    first, second = flight_topology().subtopologies
    changelogs = (*second.state_changelog_topics, InternalTopic(name="by-carrier-changelog"))
    return Topology(subtopologies=(first, replace(second, state_changelog_topics=changelogs)))


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def upgrade(headrace: Command, broker: EmbeddedBroker) -> Command:
    return lambda *arguments: headrace("upgrade", *arguments, "--bootstrap-server", broker.bootstrap_servers)


@pytest.fixture
def start(broker: EmbeddedBroker) -> Iterator[Callable[[Topology], Worker]]:
    workers: list[Worker] = []

    def one_more(topology: Topology) -> Worker:
        workers.append(Worker(broker, "flight-delays-A", topology))
        return workers[-1]

    yield one_more
    for worker in workers:
        worker.close()


@pytest.fixture
def old_version(broker: EmbeddedBroker, admin: Admin, start: Callable[[Topology], Worker]) -> None:
    """It ran, committed and left."""
    broker.produce("flights", [b"x"] * 40)
    worker = start(flight_topology())
    assert worker.has_tasks.wait(20)
    worker.close()
    admin.alter_offsets(GROUP, POSITIONS)


def listed(admin: Admin) -> list[tuple[str, str]]:
    return [(group.group_type, group.state) for group in admin.list_groups()]


def test_a_changed_topology_is_refused_and_the_way_round_works(
    upgrade: Command, admin: Admin, start: Callable[[Topology], Worker], old_version: None, tmp_path: Path
) -> None:
    assert refusal_of_joining(admin) == "topology-differs"
    file = tmp_path / "saved.json"
    shown = upgrade(GROUP, "--file", str(file), "--dry-run")
    assert shown.code == 0, shown
    assert "save     5 positions (4 of source topics, 1 of repartition topics)" in shown.out
    assert "changelogs stay as they are (by-origin-changelog)" in shown.out
    assert shown.out.endswith("Nothing was done: this was a dry run.\n")
    assert (file.exists(), listed(admin)) == (False, [("streams", "Empty")])

    done = upgrade(GROUP, "--file", str(file))
    assert (done.code, listed(admin)) == (0, [("classic", "Empty")]), done
    assert admin.list_group_offsets(GROUP) == POSITIONS
    worker = start(changed_topology())
    assert worker.has_tasks.wait(20)
    assert admin.list_group_offsets(GROUP) == POSITIONS
    saved = json.loads(file.read_text())
    assert (saved["format"], saved["group"], saved["finished_at"] is not None) == (
        "headrace-group-positions",
        GROUP,
        True,
    )
    again = upgrade(GROUP, "--file", str(file))
    assert (again.code, "error[save-file-finished]" in again.err) == (1, True)


def refusal_of_joining(admin: Admin) -> str:
    """The code that a member with the new topology is refused with."""
    member = StreamsMember(GROUP, changed_topology(), bootstrap_servers=admin.client.bootstrap_servers)
    try:
        for _ in range(100):
            for change in member.changes(timeout=0.1):
                if isinstance(change, Fatal):
                    return change.error.code
    finally:
        member.close()
    raise AssertionError("it was not refused")


def test_members_are_told_and_waited_for(
    upgrade: Command, admin: Admin, start: Callable[[Topology], Worker], tmp_path: Path
) -> None:
    worker = start(flight_topology())
    assert worker.has_tasks.wait(20)
    file = tmp_path / "saved.json"
    refused = upgrade(GROUP, "--file", str(file), "--wait", "0.1")
    assert refused.code == 1
    assert (
        "error[group-not-empty]: the streams group flight-delays is Stable: it has 1 member: flight-delays-A"
        in refused.err
    )
    assert refused.err.startswith("waiting: ")
    assert (file.exists(), listed(admin)) == (False, [("streams", "Stable")])


@pytest.mark.parametrize("last_step", ["save", "delete", "restore"])
def test_after_a_crash_the_same_command_goes_on(
    upgrade: Command, admin: Admin, old_version: None, tmp_path: Path, last_step: str
) -> None:
    file = tmp_path / "saved.json"
    for step in carry_out(admin, plan_upgrade(read_group_state(admin, GROUP), None, file, at=AT)):
        if step == last_step:
            break
    shown = upgrade(GROUP, "--file", str(file), "--dry-run")
    assert "an upgrade was begun; it goes on" in shown.out
    document = json.loads(upgrade(GROUP, "--file", str(file), "--json").out)
    needed = {step["step"]: step["needed"] for step in document["steps"]}
    assert needed == {"keep": False, "save": False, "delete": last_step == "save", "state": False, "restore": True}
    assert document["resumed"] is True
    assert (listed(admin), admin.list_group_offsets(GROUP)) == ([("classic", "Empty")], POSITIONS)
    found = SaveFile.read(file)
    assert found is not None
    assert (found.saved_at, found.finished_at is not None) == (AT, True)


def test_going_on_over_somebodys_work_is_refused(
    upgrade: Command, admin: Admin, old_version: None, tmp_path: Path
) -> None:
    file = tmp_path / "saved.json"
    next(carry_out(admin, plan_upgrade(read_group_state(admin, GROUP), None, file, at=AT)))
    admin.alter_offsets(GROUP, {("flights", 0): 9})
    refused = upgrade(GROUP, "--file", str(file))
    assert (refused.code, "error[positions-changed]" in refused.err) == (1, True)
    assert "flights-0" in refused.err
    assert listed(admin) == [("streams", "Empty")]


def test_a_member_that_joins_before_the_positions_are_back_is_told(
    admin: Admin, start: Callable[[Topology], Worker], old_version: None, tmp_path: Path
) -> None:
    file = tmp_path / "saved.json"
    steps = carry_out(admin, plan_upgrade(read_group_state(admin, GROUP), None, file, at=AT))
    assert [next(steps), next(steps)] == ["save", "delete"]
    assert start(changed_topology()).has_tasks.wait(20)
    with pytest.raises(BrokerError, match="a member joined flight-delays before") as caught:
        next(steps)
    assert caught.value.code == "group-not-empty"


def test_the_way_back(
    upgrade: Command, admin: Admin, start: Callable[[Topology], Worker], old_version: None, tmp_path: Path
) -> None:
    file = tmp_path / "saved.json"
    assert upgrade(GROUP, "--file", str(file)).code == 0
    worker = start(changed_topology())
    assert worker.has_tasks.wait(20)
    refused = upgrade("--rollback", str(file))
    assert (refused.code, "error[group-not-empty]" in refused.err) == (1, True)
    worker.close()
    admin.alter_offsets(GROUP, {("flights", 0): 3})
    shown = upgrade("--rollback", str(file), "--dry-run")
    assert "Nothing was done" in shown.out
    assert admin.committed_offsets(GROUP)["flights", 0] == 3
    document = json.loads(upgrade("--rollback", str(file), "--json").out)
    assert [step["done"] for step in document["steps"]] == [True, False, True, False, True]
    kept = SaveFile.read(Path(document["kept"]))
    assert kept is not None
    assert kept.committed()["flights", 0].offset == 3
    assert (listed(admin), admin.list_group_offsets(GROUP)) == ([("classic", "Empty")], POSITIONS)
    document = json.loads(upgrade("--rollback", str(file), "--json").out)
    assert [step["needed"] for step in document["steps"]] == [False, False, False, False, True], "nothing is left to do"
    assert start(flight_topology()).has_tasks.wait(20)
    assert admin.committed_offsets(GROUP) == PLAIN


def test_a_way_back_that_would_count_records_twice_is_refused(
    upgrade: Command, admin: Admin, start: Callable[[Topology], Worker], old_version: None, tmp_path: Path
) -> None:
    """The stores hold what the new version read; the way that the message names leads back without reading it again."""
    file = tmp_path / "saved.json"
    assert upgrade(GROUP, "--file", str(file)).code == 0
    worker = start(changed_topology())
    assert worker.has_tasks.wait(20)
    worker.close()
    admin.alter_offsets(GROUP, {("flights", 0): 10})
    for dry_run in (["--dry-run"], []):
        refused = upgrade("--rollback", str(file), *dry_run)
        assert (refused.code, "error[rollback-counts-twice]" in refused.err) == (1, True)
        assert "5 offsets were read since" in refused.err
    assert admin.committed_offsets(GROUP)["flights", 0] == 10
    assert upgrade(GROUP, "--file", str(tmp_path / "back.json")).code == 0
    assert start(flight_topology()).has_tasks.wait(20)
    assert admin.committed_offsets(GROUP) == {**PLAIN, ("flights", 0): 10}


def test_positions_of_topics_that_were_made_anew_are_left_out(
    upgrade: Command, admin: Admin, old_version: None, tmp_path: Path
) -> None:
    file = tmp_path / "saved.json"
    assert upgrade(GROUP, "--file", str(file)).code == 0
    admin.delete_topics(["by-origin-repartition"])
    admin.create_topics({"by-origin-repartition": 2})
    done = upgrade("--rollback", str(file))
    assert "by-origin-repartition is not the topic that was saved" in done.out
    assert admin.committed_offsets(GROUP) == {key: offset for key, offset in PLAIN.items() if key[0] == "flights"}


def test_resumed_recompute_reads_a_recreated_source_from_the_beginning(
    upgrade: Command, admin: Admin, old_version: None, tmp_path: Path
) -> None:
    """The file names the first offset of the deleted topic; the new one has records before it."""
    file = tmp_path / "saved.json"
    before = read_group_state(admin, GROUP)
    first = {("flights", number): 30 + number for number in range(4)}
    saved = plan_state(before, (), "recompute", directory=str(tmp_path / "state"), first=first)
    assert saved is not None
    steps = carry_out(admin, with_state(plan_upgrade(before, None, file, at=AT), saved))
    assert [next(steps), next(steps)] == ["save", "delete"]
    admin.delete_topics(["flights"])
    admin.create_topics({"flights": 4})
    assert upgrade(GROUP, "--file", str(file)).code == 0
    assert [at for (topic, _), at in admin.committed_offsets(GROUP).items() if topic == "flights"] == [0] * 4


def test_positions_without_a_topic_do_not_stop_the_restoring(admin: Admin, old_version: None, tmp_path: Path) -> None:
    """A broker may keep them for a while; they are saved, and left out before anything is deleted."""
    state = read_group_state(admin, GROUP)
    state = replace(state, topics={name: topic for name, topic in state.topics.items() if name != "flights"})
    plan = plan_upgrade(state, None, tmp_path / "saved.json", at=AT)
    assert list(plan.restore) == [("by-origin-repartition", 0)]
    assert plan.notes[0].startswith("flights is not the topic that was saved")
    assert plan.file.committed() == POSITIONS


def test_records_that_wait_between_the_old_subtopologies_are_told(
    upgrade: Command, broker: EmbeddedBroker, old_version: None, tmp_path: Path
) -> None:
    broker.produce("by-origin-repartition", [b"x"] * 3)
    shown = upgrade(GROUP, "--file", str(tmp_path / "f.json"), "--dry-run")
    assert "by-origin-repartition: 3 records wait there" in shown.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not whole"),
        ("[]", "is not whole"),
        ('{"format": "other"}', "is no headrace-group-positions file"),
        ('{"format": "headrace-group-positions", "version": 9}', "has version 9"),
        ('{"format": "headrace-group-positions", "version": 1, "topology": [], "positions": [{}]}', "is not whole"),
    ],
)
def test_a_file_that_is_none_is_told(upgrade: Command, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "saved.json"
    file.write_text(text)
    for arguments in ([GROUP, "--file", str(file)], ["--rollback", str(file)]):
        refused = upgrade(*arguments)
        assert (refused.code, "error[save-file-bad]" in refused.err) == (1, True)
        assert message in refused.err


def test_a_file_of_another_group_or_cluster_is_refused(
    upgrade: Command, admin: Admin, old_version: None, tmp_path: Path
) -> None:
    saved = read_group_state(admin, GROUP).saved(at=AT)
    for other, message in (
        (replace(saved, group="x"), "the positions of x"),
        (replace(saved, cluster_id="x"), "cluster x"),
    ):
        file = tmp_path / "saved.json"
        other.write(file)
        refused = upgrade(GROUP, "--file", str(file))
        assert (refused.code, "error[save-file-bad]" in refused.err, message in refused.err) == (1, True, True)
    unwritable = upgrade(GROUP, "--file", str(tmp_path / "nowhere" / "saved.json"))
    assert (unwritable.code, "error[save-file-bad]" in unwritable.err) == (1, True)
    assert listed(admin) == [("streams", "Empty")]


def test_groups_that_cannot_be_upgraded(upgrade: Command, admin: Admin) -> None:
    missing = upgrade("nobody")
    assert (missing.code, "error[group-missing]" in missing.err) == (1, True)
    admin.alter_offsets("simple", {("flights", 0): 1})
    clash = upgrade("simple")
    assert (clash.code, 'error[group-kind]: "simple" is a classic group (Empty)' in clash.err) == (1, True)
    for arguments in ([], [GROUP, "--rollback", "/dev/null"]):
        assert upgrade(*arguments).code == 2


def test_each_upgrade_has_a_file_of_its_own(
    upgrade: Command, old_version: None, start: Callable[[Topology], Worker], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert upgrade(GROUP).code == 0
    worker = start(changed_topology())
    assert worker.has_tasks.wait(20)
    worker.close()
    assert upgrade(GROUP).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "flight-delays.positions-2.json",
        "flight-delays.positions.json",
    ]


def test_a_group_without_positions_is_simply_deleted(
    upgrade: Command, admin: Admin, start: Callable[[Topology], Worker], tmp_path: Path
) -> None:
    worker = start(Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=("flights",)),)))
    assert worker.has_tasks.wait(20)
    worker.close()
    assert upgrade(GROUP, "--file", str(tmp_path / "f.json")).code == 0
    assert listed(admin) == []
