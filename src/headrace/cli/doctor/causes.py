"""Causes the doctor knows: what each means, what prevents it, and how heavily one piece of evidence weighs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["CAUSES", "EFFECT", "NAMED", "Cause"]

# 1. A cause that keeps members or records out altogether comes before one that disturbs a working group.
# 2. A line of a log names the cause itself, events only its effect: a line weighs more than a rebalance, and a slow
#    batch is ranked before the flapping that it causes.
# 3. Lines about connections repeat with every attempt, so one of them weighs little.
STOPS, NAMED, CONNECTION, EFFECT = 30, 10, 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause.

    Attributes:
        summary: A sentence without its full stop, for findings from logs.
        fix: What prevents it.
        weight: Weight of one piece of evidence in the ranking.
    """

    summary: str
    fix: str
    weight: int


CAUSES: Final[Mapping[str, Cause]] = MappingProxyType(
    {
        "slow-batches": Cause(
            summary="Members left because max.poll.interval.ms passed between two polls: batches take too long",
            fix="Lower max.poll.records, or raise max.poll.interval.ms above the longest batch, or process apart "
            "from polls (ParallelConsumer). `headrace advise --worst-batch TIME` writes the configuration.",
            weight=NAMED,
        ),
        "session-expired": Cause(
            summary="Sessions expired: no heartbeat arrived within session.timeout.ms",
            fix="Look for pauses of the process (garbage collection, CPU limits, a suspended host) and for a network "
            "between client and broker that fails. `headrace advise --longest-pause TIME` writes one that fits.",
            weight=NAMED,
        ),
        "unsuitable-settings": Cause(
            summary="Heartbeats are so far apart that one late heartbeat ends the session",
            fix="Set heartbeat.interval.ms to a third of session.timeout.ms or less; `headrace advise FILE` corrects "
            "the configuration.",
            weight=NAMED,
        ),
        "removed-member": Cause(
            summary="Members left the group and returned under the same member id, so their processes kept running",
            fix="Pass the logs of these members with --logs: a session expired, or max.poll.interval.ms passed. "
            "librdkafka writes no line about either in a group of the consumer protocol; look for pauses of the "
            "process at these times, and compare the length of its batches with max.poll.interval.ms. An application "
            "that unsubscribes and subscribes again looks the same.",
            weight=2 * EFFECT,
        ),
        "flapping-member": Cause(
            summary="A client left and joined again and again",
            fix="Read the log of that client: a crash loop, max.poll.interval.ms, or an expired session. Pass it with "
            "--logs. A member with group.instance.id that restarts within session.timeout.ms causes no rebalance.",
            weight=2 * EFFECT,
        ),
        "rolling-deploy-without-static-members": Cause(
            summary="Members were replaced one after another",
            fix="Set group.instance.id to a name that an instance keeps over its restart (a StatefulSet's pod name), "
            "and a session.timeout.ms longer than a restart: `headrace advise --deploy kept-names --restart TIME`.",
            weight=EFFECT,
        ),
        "unreachable-coordinator": Cause(
            summary="Clients could not connect to a broker",
            fix="Look at the brokers at these times: restarts, overload, network. Sessions should outlast a broker's "
            "restart.",
            weight=CONNECTION,
        ),
        "fenced-instance": Cause(
            summary="Two processes used the same group.instance.id",
            fix="Give each instance its own group.instance.id, such as the name of its pod in a StatefulSet.",
            weight=STOPS,
        ),
        "inconsistent-assignors": Cause(
            summary="A member was refused because it has no assignor in common with the group",
            fix="Give all members one common partition.assignment.strategy. To change it, deploy both strategies to "
            "all members first and remove the old one in a second deploy.",
            weight=STOPS,
        ),
        "group-max-size": Cause(
            summary="Members were refused because the group has as many members as the broker allows",
            fix="Raise group.max.size (classic groups), group.consumer.max.size or group.streams.max.size on the "
            "brokers, or run fewer members. More members than partitions read nothing.",
            weight=STOPS,
        ),
        "not-authorized": Cause(
            summary="The cluster refused access to the group or a topic",
            fix="Grant the application's principal READ on the group and on its topics (kafka-acls), and look for who "
            "changed the rules at that time.",
            weight=STOPS,
        ),
        "offset-out-of-range": Cause(
            summary="Positions of the group were outside the log: records were deleted before they were read",
            fix="Keep records longer than the group may be down (retention.ms of the topic), and positions as long "
            "(offsets.retention.minutes of the brokers). auto.offset.reset=earliest skips least.",
            weight=NAMED,
        ),
        "not-ready": Cause(
            summary="The streams group has no tasks",
            fix="Create the missing topics, or correct their names in the application.",
            weight=STOPS,
        ),
        "hanging-transaction": Cause(
            summary="A transaction stays open, and readers of committed data wait behind it",
            fix="End the producer's transaction, or abort it: `kafka-transactions.sh abort`. A shorter "
            "transaction.timeout.ms of the producer bounds the wait.",
            weight=STOPS,
        ),
        "hot-partition": Cause(
            summary="One partition holds nearly all of the lag",
            fix="Spread the records: choose a key with more values, or add a part to the hot key. More members do not "
            "help, since a partition has one reader; ParallelConsumer processes its keys side by side.",
            weight=5 * EFFECT,
        ),
        "partition-change": Cause(
            summary="The partitions of the subscribed topics changed",
            fix="Nothing to prevent if partitions were added on purpose. Topics that are created and deleted all "
            "the time should not match a subscription by regular expression.",
            weight=EFFECT,
        ),
        "subscription-change": Cause(
            summary="Members changed their subscription",
            fix="Deploy a changed subscription to all instances at once, or under a new group id: mixed subscriptions "
            "rebalance at each step.",
            weight=3 * EFFECT,
        ),
        "topology-change": Cause(
            summary="The topology of the streams group changed",
            fix="Deploy changed topologies with `headrace upgrade`, which keeps positions and stored state.",
            weight=EFFECT,
        ),
    }
)
