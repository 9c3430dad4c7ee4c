"""Families of a snapshot, and what successive snapshots tell: rebalances, members that come and go, waiting times."""

from __future__ import annotations

from dataclasses import replace

from tests.metrics.parsed_text import parsed

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot, MemberSnapshot, PartitionSnapshot
from headrace.cli.exporter.snapshot_families import METRICS, snapshot_families
from headrace.cli.exporter.snapshot_history import MOST_ENDS, SnapshotHistory
from headrace.metrics.prometheus_text import prometheus_text

KEY = ("orders", 0)
HELD = frozenset({("active", "0", 0), ("active", "0", 1), ("standby", "0", 2)})
WANTED = frozenset({("active", "0", 0), ("active", "0", 2)})


def member(name: str = "a", epoch: int | None = 7, *, static: bool = False) -> MemberSnapshot:
    return MemberSnapshot(member_id=name, is_static=static, epoch=epoch, assignment=HELD, target=WANTED)


def classic(*names: str, state: str = "Stable", committed: int = 40) -> GroupSnapshot:
    return GroupSnapshot(
        group_id="g",
        group_type="classic",
        state=state,
        members=tuple(
            MemberSnapshot(member_id=name, is_static=False, assignment=frozenset({("partition", "orders", number)}))
            for number, name in enumerate(names)
        ),
        committed={KEY: committed},
    )


def streams(epoch: int = 8, *members: MemberSnapshot, state: str = "Reconciling") -> GroupSnapshot:
    return GroupSnapshot(
        group_id="s",
        group_type="streams",
        state=state,
        epoch=epoch,
        assignment_epoch=8,
        members=members or (member(), member("b", 8, static=True)),
        inputs=frozenset({KEY, ("orders", 1)}),
        committed={KEY: 40},
    )


def cluster(*groups: GroupSnapshot, end: int = 100, start: int = 0, stable_end: int | None = None) -> ClusterSnapshot:
    partition = PartitionSnapshot(
        leader=1,
        replicas=(1, 2, 3),
        in_sync=(1, 3),
        start=start,
        end=end,
        stable_end=end if stable_end is None else stable_end,
    )
    return ClusterSnapshot(
        brokers={1: "kafka:9092"}, partitions={KEY: partition}, groups={group.group_id: group for group in groups}
    )


def values(snapshot: ClusterSnapshot, history: SnapshotHistory | None = None, now_ms: int = 0) -> dict[str, float]:
    if history is None:
        history = SnapshotHistory()
        history.add(snapshot, now_ms)
    return parsed(prometheus_text(snapshot_families(snapshot, history, now_ms)))


def test_lag_offsets_and_partitions_have_kafka_exporters_names() -> None:
    found = values(cluster(classic("a", "b")))
    by_partition = '{consumergroup="g",topic="orders",partition="0"}'
    assert found[f"kafka_consumergroup_lag{by_partition}"] == 60
    assert found[f"kafka_consumergroup_current_offset{by_partition}"] == 40
    assert found['kafka_consumergroup_lag_sum{consumergroup="g",topic="orders"}'] == 60
    assert found['kafka_consumergroup_members{consumergroup="g"}'] == 2
    assert found["kafka_brokers"] == 1
    assert found['kafka_topic_partition_current_offset{topic="orders",partition="0"}'] == 100
    assert found['kafka_topic_partition_under_replicated_partition{topic="orders",partition="0"}'] == 1
    assert found['kafka_topic_partition_leader_is_preferred{topic="orders",partition="0"}'] == 1


def test_a_streams_group_has_epochs_tasks_by_role_and_what_still_moves() -> None:
    found = values(cluster(streams()))
    group = 'consumergroup="s"'
    assert found[f"headrace_consumergroup_epoch{{{group}}}"] == 8
    assert found[f"headrace_consumergroup_members_behind{{{group}}}"] == 1
    assert found[f"headrace_consumergroup_static_members{{{group}}}"] == 1
    assert found[f'headrace_consumergroup_assigned{{{group},role="active"}}'] == 4
    assert found[f'headrace_consumergroup_assigned{{{group},role="standby"}}'] == 2
    assert found[f'headrace_consumergroup_assigned_target{{{group},role="standby"}}'] == 0
    # Of each member: two tasks to release and one to take over.
    assert found[f"headrace_consumergroup_assigned_pending{{{group}}}"] == 6
    assert found[f"headrace_consumergroup_partitions_without_offset{{{group}}}"] == 1
    assert found[f'headrace_consumergroup_state{{{group},type="streams",state="Reconciling"}}'] == 1
    assert found[f'headrace_consumergroup_state{{{group},type="streams",state="Stable"}}'] == 0


def test_states_are_known_in_any_spelling_and_new_ones_are_shown() -> None:
    label = 'headrace_consumergroup_state{consumergroup="s",type="streams",state='
    assert values(cluster(streams(state="NOT_READY")))[f'{label}"NotReady"}}'] == 1
    assert values(cluster(streams(state="Thinking")))[f'{label}"Thinking"}}'] == 1


def test_a_lag_is_never_negative_and_deleted_records_are_counted() -> None:
    name = '{consumergroup="g",topic="orders",partition="0"}'
    assert values(cluster(classic(committed=120)))[f"kafka_consumergroup_lag{name}"] == 0
    found = values(cluster(classic(committed=40), start=55, stable_end=90))
    assert found[f"headrace_consumergroup_lost_offsets{name}"] == 15
    assert found['headrace_topic_partition_unstable_records{topic="orders",partition="0"}'] == 10


def test_a_deleted_topic_has_an_offset_and_no_lag() -> None:
    found = values(replace(cluster(classic()), partitions={}))
    assert found['kafka_consumergroup_current_offset{consumergroup="g",topic="orders",partition="0"}'] == 40
    assert not [name for name in found if "lag" in name]


def test_a_group_that_is_not_described_has_no_members_at_all() -> None:
    connect = GroupSnapshot(group_id="c", group_type="classic", state="Stable", is_described=False)
    found = values(cluster(connect))
    assert found['headrace_consumergroup_state{consumergroup="c",type="classic",state="Stable"}'] == 1
    assert 'kafka_consumergroup_members{consumergroup="c"}' not in found


def test_hostile_names_are_escaped() -> None:
    hostile = replace(classic(), group_id='a"} 1\nevil{x="\\')
    assert 'kafka_consumergroup_members{consumergroup="a\\"} 1\\nevil{x=\\"\\\\"}' in values(cluster(hostile))


def test_every_family_has_only_its_documented_labels() -> None:
    history = SnapshotHistory()
    snapshot = replace(cluster(streams(), classic("a")), refused={"x": "not-authorized"})
    history.add(snapshot, 0)
    families = snapshot_families(snapshot, history, 0)
    assert len(families) == len(METRICS) - 4  # the four of the exporter's health
    for family in families:
        assert {tuple(sample.labels) for sample in family.samples} == {METRICS[family.name].labels}, family.name


def test_rebalances_are_rises_of_the_group_epoch() -> None:
    history = SnapshotHistory()
    name = 'headrace_consumergroup_rebalances_total{consumergroup="s"}'
    told = []
    for epoch in (8, 8, 11, 2, 3):  # between 11 and 2 the group was deleted and created again
        snapshot = cluster(streams(epoch))
        history.add(snapshot, 0)
        told.append(values(snapshot, history)[name])
    assert told == [0, 0, 3, 3, 4]


def test_rebalances_of_classic_groups_are_counted_once_each() -> None:
    history = SnapshotHistory()
    told = []
    for group in (
        classic("a"),
        classic("a"),
        classic("a", "b"),  # another assignment
        classic("a", "b", state="PreparingRebalance"),
        classic("a", "b", state="CompletingRebalance"),
        classic("a", "b", "c"),  # the end of the rebalance that was seen already
        classic("a", "b", "c"),
    ):
        snapshot = cluster(group)
        history.add(snapshot, 0)
        told.append(values(snapshot, history)['headrace_consumergroup_rebalances_total{consumergroup="g"}'])
    assert told == [0, 0, 1, 2, 2, 2, 2]


def test_members_that_join_and_leave_are_counted_and_survive_a_refusal() -> None:
    history = SnapshotHistory()
    for snapshot in (
        cluster(classic("a", "b")),
        cluster(classic("a", "c", "d")),
        replace(cluster(), refused={"g": "broker-unreachable"}),
        cluster(classic("a")),
    ):
        history.add(snapshot, 0)
    found = values(snapshot, history)
    assert found['headrace_consumergroup_members_joined_total{consumergroup="g"}'] == 2
    assert found['headrace_consumergroup_members_left_total{consumergroup="g"}'] == 3
    history.add(cluster(), 0)
    assert not history.groups


def test_a_record_waits_since_its_arrival_was_seen() -> None:
    history = SnapshotHistory()
    waited = []
    for second, (end, committed) in enumerate([(100, 100), (110, 100), (120, 100), (130, 110), (130, 130), (140, 130)]):
        snapshot = cluster(classic(committed=committed), end=end)
        history.add(snapshot, second * 1_000)
        found = values(snapshot, history, second * 1_000)
        waited.append(found['headrace_consumergroup_lag_seconds{consumergroup="g",topic="orders",partition="0"}'])
    # Record 100 arrived by second 1 and is read by second 3, when record 110 has waited since second 2.
    assert waited == [0, 0, 1, 1, 0, 0]


def test_waiting_times_are_never_too_long_and_need_bounded_memory() -> None:
    """A stuck group beside a log that grows for an hour: the wait stays exact, and the ends are thinned."""
    history = SnapshotHistory()
    for second in range(3_600):
        snapshot = cluster(classic(committed=0), end=second * 10)
        history.add(snapshot, second * 1_000)
    (ends,) = history._ends.values()
    assert len(ends.offsets) <= MOST_ENDS
    assert history.waiting_ms({KEY: 0}, 3_599_000) == {KEY: 3_598_000}
    for committed in range(0, 35_000, 777):
        arrived_ms = (committed // 10 + 1) * 1_000
        waited = history.waiting_ms({KEY: committed}, 3_599_000)[KEY]
        assert waited <= 3_599_000 - arrived_ms
    # A topic that was created again: its ends are not compared with the old ones.
    history.add(cluster(classic(committed=0), end=5), 4_000_000)
    assert history.waiting_ms({KEY: 0}, 4_001_000) == {KEY: 1_000}
