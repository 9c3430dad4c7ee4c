"""The leader of a classic group assigns tasks by the rules of the coordinator, as `StreamsPartitionAssignor` does.

1. The topology is configured on the partitions that exist (`configure_topology`). Missing internal topics are created
   first; while source topics are missing or do not fit, every member has an empty assignment with the status.
2. The sticky assignor of streams groups computes the target. What a member claims is its previous assignment.
3. A stateful task whose new owner has no copy near the end of the changelog stays with its owner. The new owner has it
   as a warm-up task (KIP-441), and joins again when the copy has caught up.
4. A task that another member claims is left out of its new owner's assignment (KIP-429's two phases, on tasks): the
   claimant gives it back and joins again without the claim. A standby of the task that the new owner has stays until
   then. Two claims of one task are both refused, so both members give it back, and one gets it.

Members with another topology than the leader's get no tasks, as members with an older topology in a streams group.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from uuid import UUID

import xxhash

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import MalformedUserData
from headrace.client.membership.assignment import OwnedTasks, StatusCode, task_ids, tasks_from
from headrace.client.membership.classic_task_leader import TaskAssignment, TaskPlan, TaskReport
from headrace.client.membership.classic_user_data import (
    MemberReport,
    decode_assignment,
    decode_report,
    encode_assignment,
    encode_endpoints,
    encode_report,
)
from headrace.client.membership.endpoints import Endpoint, EndpointMap, EndpointPartitions
from headrace.client.membership.topology import InternalTopic, Topology
from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import (
    AssignableSubtopology,
    GroupSpec,
    MemberSpec,
    Task,
    TasksTuple,
    sorted_tasks,
)
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.streams.configured_topology import ConfiguredTopology, configure_topology
from headrace.coordinator.streams.heartbeat_messages import topology_of

__all__ = ["MOST_ENDPOINT_BYTES", "ClassicTaskProtocol", "assign_tasks", "hash_of"]

MOST_ENDPOINT_BYTES = 600_000
"""Bytes that the copies of the endpoint map in all assignments of a group may take together.

The coordinator writes reports and assignments of all members into one record, of 1 MB at most by default. A group that
does not fit could never end a rebalance; without the map it runs, and queries cannot find the owner of a key.
"""

_NO_ID = UUID(int=0)
_NO_TASKS = TasksTuple()
_ANOTHER_TOPOLOGY = (int(StatusCode.STALE_TOPOLOGY), "The leader of the group runs another topology.")
_SHUTDOWN = (int(StatusCode.SHUTDOWN_APPLICATION), "A member asked the application to stop.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTaskProtocol:
    """`TaskProtocol` of one member.

    Attributes:
        topology: The application's topology.
        process_id: The process that the member belongs to.
        client_tags: Tags for the placement of standby tasks.
        endpoint: Address for interactive queries.
        num_standby_replicas: Standby tasks of each stateful task.
        rack_aware_assignment_tags: Tags over which standby tasks are spread.
        acceptable_recovery_lag: Changelog records that a copy may lack when its task moves to this member. None: the
            member makes no copies ahead.
    """

    topology: Topology
    process_id: str
    client_tags: tuple[tuple[str, str], ...] = ()
    endpoint: Endpoint | None = None
    num_standby_replicas: int = 0
    rack_aware_assignment_tags: tuple[str, ...] = ()
    acceptable_recovery_lag: int | None = None

    def encode_report(self, report: TaskReport) -> bytes:
        """Return the user data of a subscription."""
        return encode_report(
            MemberReport(
                topology_hash=hash_of(self.topology),
                process_id=self.process_id,
                client_tags=self.client_tags,
                endpoint=self.endpoint,
                tasks=report,
                acceptable_recovery_lag=self.acceptable_recovery_lag,
            )
        )

    def decode_assignment(self, user_data: bytes) -> TaskAssignment:
        """Decode the user data of an assignment. Raises MalformedUserData."""
        return decode_assignment(user_data)

    def assign(self, members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> TaskPlan:
        """Assign all tasks, or say which internal topics have to be created first.

        A member whose report cannot be decoded is left out: one stranger must not end the other members.
        """
        reports: dict[str, MemberReport] = {}
        for member_id, subscription in members.items():
            try:
                reports[member_id] = decode_report(subscription.user_data or b"")
            except MalformedUserData:
                continue
        configured = _configured(self.topology, partitions, reports)
        if configured.topics_to_create:
            return TaskPlan(missing_topics=_missing_topics(configured))
        instance_ids = {member_id: members[member_id].instance_id for member_id in reports}
        assigned = assign_tasks(
            configured,
            reports,
            topology_hash=hash_of(self.topology),
            instance_ids=instance_ids,
            num_standby_replicas=self.num_standby_replicas,
            rack_aware_assignment_tags=self.rack_aware_assignment_tags,
        )
        return TaskPlan(
            active={member_id: found.tasks.active for member_id, found in assigned.items()},
            user_data=_encoded(assigned, self.topology),
        )


def _encoded(assigned: Mapping[str, TaskAssignment], topology: Topology) -> dict[str, bytes]:
    """Return the assignments' user data, without the endpoint map where it would take too much of Kafka's record."""
    endpoints = encode_endpoints(next(iter(assigned.values())).endpoints) if assigned else b""
    if len(endpoints) * len(assigned) > MOST_ENDPOINT_BYTES:
        endpoints = encode_endpoints({})
    first = min(assigned, default=None)
    return {
        member_id: encode_assignment(found, endpoints, topology=topology if member_id == first else None)
        for member_id, found in assigned.items()
    }


def hash_of(topology: Topology) -> bytes:
    """Return a hash of a topology: 8 bytes, equal for equal topologies in whatever order they were declared."""
    recorded = asdict(topology_of(topology.to_heartbeat()))
    return xxhash.xxh3_64_digest(json.dumps(recorded, separators=(",", ":")).encode())


def assign_tasks(
    configured: ConfiguredTopology,
    reports: Mapping[str, MemberReport],
    *,
    topology_hash: bytes,
    instance_ids: Mapping[str, str | None],
    num_standby_replicas: int,
    rack_aware_assignment_tags: tuple[str, ...],
) -> Mapping[str, TaskAssignment]:
    """Return the assignment of every member.

    Args:
        configured: The leader's topology on the partitions that exist.
        reports: Member id → report.
        topology_hash: Hash of the leader's topology.
        instance_ids: Member id → `group.instance.id` of static members.
        num_standby_replicas: Standby tasks of each stateful task.
        rack_aware_assignment_tags: Tags over which standby tasks are spread.
    """
    current = {member_id: one for member_id, one in reports.items() if one.topology_hash == topology_hash}
    targets: Mapping[str, TasksTuple] = {}
    if configured.is_ready and current:
        spec = GroupSpec(
            members={
                member_id: MemberSpec(
                    process_id=one.process_id,
                    instance_id=instance_ids.get(member_id),
                    client_tags=one.client_tags,
                    previous=_previous(one.tasks.owned),
                    task_offsets=one.tasks.task_offsets,
                    task_end_offsets=one.tasks.task_end_offsets,
                )
                for member_id, one in sorted(current.items())
            },
            subtopologies=tuple(
                AssignableSubtopology(subtopology_id=each.subtopology_id, tasks=each.tasks, stateful=each.is_stateful)
                for each in configured.subtopologies.values()
            ),
            num_standby_replicas=num_standby_replicas,
            rack_aware_assignment_tags=rack_aware_assignment_tags,
        )
        targets = StickyTaskAssignor().assign(spec)
    claimants: dict[Task, set[str]] = defaultdict(set)
    for member_id, one in reports.items():
        for task in task_ids(one.tasks.owned.active):
            claimants[task].add(member_id)
    targets = _warm_up(targets, current, claimants, stateful=_stateful_tasks(configured))
    tasks = {
        member_id: _first_phase(member_id, targets.get(member_id, _NO_TASKS), one.tasks.owned, claimants)
        for member_id, one in reports.items()
    }
    endpoints = _endpoints(configured, reports, tasks)
    status = _status(configured)
    if any(one.tasks.shutdown_application for one in reports.values()):
        status = (*status, _SHUTDOWN)
    return {
        member_id: TaskAssignment(
            tasks=tasks[member_id],
            status=status if member_id in current else (_ANOTHER_TOPOLOGY, *status),
            endpoints=endpoints,
            follow_up=bool(tasks[member_id].warmup),
        )
        for member_id in reports
    }


def _configured(
    topology: Topology, partitions: Mapping[str, int], reports: Mapping[str, MemberReport]
) -> ConfiguredTopology:
    claimed: dict[str, int] = defaultdict(int)
    for name, _ in {task for one in reports.values() for task in task_ids(one.tasks.owned.active)}:
        claimed[name] += 1
    topics = {name: TopicImage(name=name, topic_id=_NO_ID, partitions=count) for name, count in partitions.items()}
    return configure_topology(
        topology_of(topology.to_heartbeat()),
        MetadataImage(topics=topics),
        # Claimed tasks mean that the topology ran: source topics that grew then leave its tasks as they are.
        present_tasks=(lambda: claimed) if claimed else None,
    )


def _missing_topics(configured: ConfiguredTopology) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=max(0, topic.replication_factor),
            configs=topic.configs,
        )
        for topic in configured.topics_to_create
    )


def _previous(owned: OwnedTasks) -> TasksTuple:
    return TasksTuple(
        active=sorted_tasks(task_ids(owned.active)),
        standby=sorted_tasks(task_ids(owned.standby)),
        warmup=sorted_tasks(task_ids(owned.warmup)),
    )


def _stateful_tasks(configured: ConfiguredTopology) -> frozenset[Task]:
    return frozenset(
        (each.subtopology_id, partition)
        for each in configured.subtopologies.values()
        if each.is_stateful
        for partition in range(each.tasks)
    )


def _warm_up(
    targets: Mapping[str, TasksTuple],
    reports: Mapping[str, MemberReport],
    claimants: Mapping[Task, Collection[str]],
    *,
    stateful: Collection[Task],
) -> Mapping[str, TasksTuple]:
    """Return the targets with each move to a member without a current copy replaced by a warm-up task (KIP-441).

    Kafka limits the copies that are made at a time (`max.warmup.replicas`) because each of them is followed by another
    rebalance of all members. Here all moves are warmed up together, as in a streams group, and the limit of the traffic
    is the even share that the assignor moves.
    """
    delayed: dict[Task, tuple[str, str]] = {}
    for member_id, target in targets.items():
        for task in target.active:
            owner = next(iter(claimants.get(task, ())), member_id)
            if task in stateful and _waits_for_copy(task, owner, member_id, reports, claimants):
                delayed[task] = owner, member_id
    if not delayed:
        return targets
    found = {}
    for member_id, target in targets.items():
        process = reports[member_id].process_id
        kept = {task for task, (owner, _) in delayed.items() if owner == member_id}
        copied = {task for task, (_, new_owner) in delayed.items() if new_owner == member_id}
        # Two copies in one process do not survive its failure, and would share one directory.
        beside_owner = {task for task, (owner, _) in delayed.items() if reports[owner].process_id == process}
        found[member_id] = TasksTuple(
            active=sorted_tasks((set(target.active) - delayed.keys()) | kept),
            standby=sorted_tasks(set(target.standby) - copied - beside_owner),
            warmup=sorted_tasks(set(target.warmup) | copied),
        )
    return found


def _waits_for_copy(
    task: Task,
    owner: str,
    new_owner: str,
    reports: Mapping[str, MemberReport],
    claimants: Mapping[Task, Collection[str]],
) -> bool:
    # 1. Two claims, or a claim of a member with another topology, end at once: such an owner must not go on.
    if owner == new_owner or owner not in reports or len(claimants[task]) != 1:
        return False
    # 2. Members of one process share the state directory, so the state is there already.
    new = reports[new_owner]
    if new.acceptable_recovery_lag is None or new.process_id == reports[owner].process_id:
        return False
    # 3. A position without an end comes from a store that is not followed.
    offset, end = new.tasks.task_offsets.get(task), new.tasks.task_end_offsets.get(task)
    return offset is None or end is None or end - offset > new.acceptable_recovery_lag


def _first_phase(
    member_id: str, target: TasksTuple, owned: OwnedTasks, claimants: Mapping[Task, Collection[str]]
) -> OwnedTasks:
    """Return the tasks of a member's target that no other member holds."""
    claimed_here = task_ids(owned.active)
    active = {task for task in target.active if not set(claimants.get(task, ())) - {member_id}}
    # 1. A copy of a task that is to come stays until its owner has given the task back: its state is up to date then.
    to_come = set(target.active) - active
    copies = task_ids(owned.standby) | task_ids(owned.warmup)
    # 2. A member that is to keep a copy of a task which it still has open gets it when the task was closed.
    standby = {task for task in target.standby if task not in claimed_here} | (to_come & copies)
    warmup = {task for task in target.warmup if task not in claimed_here}
    return OwnedTasks(active=tasks_from(active), standby=tasks_from(standby), warmup=tasks_from(warmup - standby))


def _status(configured: ConfiguredTopology) -> tuple[tuple[int, str], ...]:
    if configured.invalid is not None:
        return ((int(StatusCode.INCORRECTLY_PARTITIONED_TOPICS), configured.invalid),)
    found = (configured.status, configured.unread)
    return tuple((int(one.code), one.detail) for one in found if one is not None)


def _endpoints(
    configured: ConfiguredTopology, reports: Mapping[str, MemberReport], tasks: Mapping[str, OwnedTasks]
) -> EndpointMap:
    """Return the topics' partitions by endpoint; members of one process share theirs."""
    served: dict[Endpoint, tuple[set[Task], set[Task]]] = {}
    for member_id, one in reports.items():
        if one.endpoint is not None:
            active, standby = served.setdefault(one.endpoint, (set(), set()))
            active |= task_ids(tasks[member_id].active)
            standby |= task_ids(tasks[member_id].standby)
    return MappingProxyType(
        {
            endpoint: EndpointPartitions(
                active=_partitions(configured, active), standby=_partitions(configured, standby)
            )
            for endpoint, (active, standby) in sorted(served.items())
        }
    )


def _partitions(configured: ConfiguredTopology, tasks: Collection[Task]) -> dict[str, tuple[int, ...]]:
    return tasks_from(
        (topic, partition)
        for name, partition in tasks
        if name in configured.subtopologies
        for topic, count in configured.subtopologies[name].inputs
        if partition < count
    )
