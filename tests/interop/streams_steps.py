"""The story of a Kafka Streams application, step by step; each gives what was seen (`streams_scenario`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.harness.polling import wait_until
from tests.interop.streams_application import WordCount
from tests.interop.streams_scenario import PARTITIONS, Scenario, Seen, balance, life, moves, tasks_of
from tests.interop.streams_words import GroupPoller

from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["STEPS"]

STATUSES = re.compile(r"in the following statuses: (.*)")


def missing_source_topic(story: Scenario) -> Seen:
    """Three applications start before their source topic is there. An application waits two heartbeat intervals for
    it; the group that is to get its topic in time has longer ones."""
    story.shell.call("setGroupConfig", "late", "streams.heartbeat.interval.ms", "3000")
    alone = story.start("alone", group="alone", word__source="never-there", word__queries="false")
    endpoint = story.start("endpoint", group="endpoint", word__source="never-there")
    late = story.start("late", group="late", word__source="late", word__queries="false")
    with GroupPoller(story.servers, "alone") as alone_group, GroupPoller(story.servers, "late") as late_group:
        wait_until(lambda: "NotReady" in late_group.states, "NotReady", late)
        story.admin.create_topics({"late": PARTITIONS}, replication_factor=1)
        wait_until(late.is_running, "running", late, timeout_s=90)
        wait_until(lambda: late_group.state == "Stable", "stable", late, timeout_s=90)
        codes = alone.ended(), endpoint.ended()
        wait_until(lambda: alone_group.state == "Empty", "empty", alone)
    return {
        "it never comes": how_it_ended(alone, codes[0]),
        "it never comes: the group was": sorted(alone_group.states),
        "it never comes, endpoint given": how_it_ended(endpoint, codes[1]),
        "it comes": life(late.states),
        "it comes: the group was": sorted(late_group.states - {"Assigning", "Reconciling"}),  # too short to be seen
        "it comes: the client was told": statuses_told(late),
        "it comes: the exit code": late.close(),
    }


def how_it_ended(instance: WordCount, code: int) -> Seen:
    error = instance.error or {}
    message = re.sub(r"\d+ms", "…ms", error.get("message") or "")
    return {"states": life(instance.states), "code": code, "exception": error.get("type"), "message": message}


def statuses_told(instance: WordCount) -> list[str]:
    """The statuses of heartbeats that the Java client logged, each once. ASSIGNMENT_DELAYED (5) is left out: whether
    a heartbeat comes within the assignment interval is chance."""
    found = re.findall(r"\((\d)\) ([^()]*)", " ".join(STATUSES.findall(instance.log.read_text())))
    return sorted({f"({code}) {detail.strip()}" for code, detail in found if code != "5"})


def first_instance(story: Scenario) -> Seen:
    """One instance, its store on disk, does all the work; the broker made the internal topics."""
    story.create_topics()
    story.join("one", word__on__disk="true")
    group = story.settled(1)
    topics = story.admin.describe_topics([story.repartition, story.changelog])
    return {
        "states of the client": life(story.instances["one"].states),
        **balance(group),
        "partitions of internal topics": {name: len(topic.partitions) for name, topic in sorted(topics.items())},
        "settings of internal topics": {name: own_settings(story.admin, name) for name in topics},
    }


def own_settings(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = admin.describe_configs([("topic", topic)])["topic", topic]
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == 1}


def records_are_counted(story: Scenario) -> Seen:
    story.words.send(2000)
    story.settled(1)
    wait_until(lambda: is_purged(story), "purged", *story.instances.values(), timeout_s=90)
    return {"exact": story.counts_exactly(), "the repartition topic is emptied behind the commits": True}


def is_purged(story: Scenario) -> bool:
    """Kafka Streams deletes what it has read of its repartition topics."""
    partitions = [(story.repartition, number) for number in range(PARTITIONS)]
    first = story.admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = story.admin.list_offsets(dict.fromkeys(partitions, "latest"))
    return all(first[one].offset == end.offset for one, end in ends.items())


def scale_out(story: Scenario) -> Seen:
    before = story.settled(1)
    for name in ("two", "three"):
        story.join(name)
    after = story.settled(3)
    story.words.send(1000)
    story.settled(3)
    return {
        **balance(after),
        **moves(before, after),
        "exact": story.counts_exactly(),
    }


def standby_by_group_config(story: Scenario) -> Seen:
    """The group's own setting, changed while it runs."""
    before = story.settled(3)
    answer = story.shell.call("setGroupConfig", story.group, "streams.num.standby.replicas", "1")
    refused = story.shell.call("setGroupConfig", story.group, "streams.num.standby.replicas", "99")
    after = story.settled(3, standby=1)
    return {
        "answer": answer,
        "a value out of bounds": refused,
        "settings": story.shell.call("groupConfigs", story.group),
        **balance(after),
        **moves(before, after),
    }


def interactive_queries(story: Scenario) -> Seen:
    """Every instance finds the owner of every word and gets its count there."""
    group = story.settled(3, standby=1)
    wait_until(lambda: all_find_the_owners(story, group), "known to all", *story.instances.values(), timeout_s=90)
    return asked_everywhere(story, group)


def asked_everywhere(story: Scenario, group: StreamsGroupDescription) -> Seen:
    any_instance = next(iter(story.instances.values()))
    owners = {word: any_instance.ask("owner", word) for word in story.words.counts}
    by_address = {one.address: one for one in story.instances.values()}
    found = {word: by_address[owner["active"]].ask("value", word)["value"] for word, owner in owners.items()}
    instances = any_instance.ask("instances")
    return {
        "every instance names the same owners": all_find_the_owners(story, group),
        "hosts with a standby of each word": sorted({len(owner["standby"]) for owner in owners.values()}),
        "owners hold what the topic says": found == story.words.counted(story.sink),
        "instances known": len(instances),
        "partitions per instance": sorted(len(one["partitions"]) for one in instances),
        "standby partitions": sum(len(one["standby_partitions"]) for one in instances),
    }


def all_find_the_owners(story: Scenario, group: StreamsGroupDescription) -> bool:
    """Each instance names the owner and the standby of each word as the coordinator has them."""
    address = {m.member_id: "{}:{}".format(*(m.user_endpoint or ("", 0))) for m in group.members}
    active, standby = tasks_of(group), tasks_of(group, "standby")
    for instance in story.instances.values():
        for word in story.words.counts:
            owner = instance.ask("owner", word)
            task = f"1_{owner.get('partition')}"
            held = [address[standby[task]]] if task in standby else []
            if task not in active or owner["active"] != address[active[task]] or owner["standby"] != held:
                return False
    return True


def graceful_leave(story: Scenario) -> Seen:
    before = story.settled(3, standby=1)
    gone = story.instances.pop("two")
    code = gone.close()
    after = story.settled(2, standby=1)
    story.words.send(1000)
    story.settled(2, standby=1)
    return {
        "exit code": code,
        "states of the one that left": life(gone.states),
        **balance(after),
        **moves(before, after),
        "exact": story.counts_exactly(),
    }


def java_admin_on_a_living_group(story: Scenario) -> Seen:
    """What Kafka's Admin client says of a group with members, and which orders it is refused."""
    story.settled(2, standby=1)
    described = story.shell.call("describeStreamsGroups", story.group)
    return {
        "described": without_chance(described),
        "listed": story.shell.call("listGroups", story.group),
        "offsets": sorted(story.shell.call("listStreamsGroupOffsets", story.group)),
        "the source topic": story.shell.call("describeTopics", story.source),
        "the cluster": story.shell.call("describeCluster", ""),
        "alter offsets": story.shell.call("alterStreamsGroupOffsets", story.group, {f"{story.source}-0": 1}),
        "delete offsets": story.shell.call("deleteStreamsGroupOffsets", story.group, [f"{story.source}-0"]),
        "delete": story.shell.call("deleteStreamsGroups", story.group),
        "describe a group that never was": story.shell.call("describeStreamsGroups", "nobody"),
        "delete a group that never was": story.shell.call("deleteStreamsGroups", "nobody"),
        "offsets of a group that never was": story.shell.call("listStreamsGroupOffsets", "nobody"),
    }


def without_chance(described: Seen) -> Seen:
    """Ids, ports and who of two has which half are chance; the epochs were compared step by step."""
    members = [
        {**member, "member_id": "…", "process_id": "…", "endpoint": "…"}
        | {"member_epoch": member["member_epoch"] == described["group_epoch"]}
        | {role: sorted(kind for kind, tasks in member[role].items() if tasks) for role in ("assignment", "target")}
        for member in sorted(described["members"], key=lambda member: member["client_id"])
    ]
    subtopologies = sorted(described["subtopologies"], key=lambda one: one["id"])
    epochs = {"group_epoch": "…", "target_epoch": described["target_epoch"] == described["group_epoch"]}
    return {**described, **epochs, "members": members, "subtopologies": subtopologies}


def kill_of_an_instance(story: Scenario) -> Seen:
    """SIGKILL with work on its hands: after the session timeout the other one has all tasks, and no standbys."""
    before = story.settled(2, standby=1)
    story.words.send(1000)
    story.instances.pop("three").kill()
    story.words.send(1000)
    after = story.settled(1)
    return {
        **balance(after),
        **moves(before, after),
        "at least": story.counts_at_least(),
    }


def broker_restart(story: Scenario) -> Seen:
    """kill -9 of the broker under load, started again on its port: nobody loses a task. The session is made longer
    first, since Apache Kafka needs longer than six seconds to be back."""
    story.join("four")
    answer = story.shell.call("setGroupConfig", story.group, "streams.session.timeout.ms", "45000")
    before = story.settled(2, standby=1)
    went_through = {name: len(instance.states) for name, instance in story.instances.items()}
    story.words.send(1000, wait=False)
    story.broker.kill()
    story.broker.start()
    story.words.send(1000)
    after = story.settled(2, standby=1)
    wait_until(lambda: all_find_the_owners(story, after), "known to all", *story.instances.values(), timeout_s=90)
    return {
        "the session is made longer": answer,
        "the same members": {m.member_id for m in before.members} == {m.member_id for m in after.members},
        **moves(before, after),
        "states since": {name: life(one.states[went_through[name] :]) for name, one in story.instances.items()},
        "at least": story.counts_at_least(),
        **asked_everywhere(story, after),
    }


def changed_topology(story: Scenario) -> Seen:
    """Another topology under the same name is refused; the others do not notice."""
    before = story.settled(2, standby=1)
    other = story.start("other", word__added="lengths")
    ended = how_it_ended(other, other.ended())
    after = story.settled(2, standby=1)
    return {
        "the newcomer": ended,
        "the others": moves(before, after),
    }


def standbys_taken_away(story: Scenario) -> Seen:
    before = story.settled(2, standby=1)
    answer = story.shell.call("setGroupConfig", story.group, "streams.num.standby.replicas", "0")
    after = story.settled(2)
    return {"answer": answer, **balance(after), **moves(before, after)}


def everybody_leaves(story: Scenario) -> Seen:
    """The group is empty and keeps its offsets; Kafka's Admin client alters, deletes, removes."""
    for instance in story.instances.values():
        instance.ask("close")
    codes = [instance.ended() for instance in story.instances.values()]
    wait_until(lambda: story.watch.state == "Empty", "empty", timeout_s=90)
    shell, first = story.shell, f"{story.source}-0"
    return {
        "exit codes": codes,
        "epochs only rose": story.watch.epochs_rise(),
        "state": shell.call("listGroups", story.group),
        "offsets kept": sorted(shell.call("listStreamsGroupOffsets", story.group)),
        "altered": shell.call("alterStreamsGroupOffsets", story.group, {first: 7}),
        "alter a partition that is not there": shell.call(
            "alterStreamsGroupOffsets", story.group, {f"{story.source}-99": 7}
        ),
        "then": shell.call("listStreamsGroupOffsets", story.group)[first],
        "deleted": shell.call("deleteStreamsGroupOffsets", story.group, [first]),
        "after that": first in shell.call("listStreamsGroupOffsets", story.group),
        "removed": shell.call("deleteStreamsGroups", story.group),
        "listed": shell.call("listGroups", story.group),
        "described": shell.call("describeStreamsGroups", story.group),
    }


STEPS: Sequence[Callable[[Scenario], Seen]] = (
    missing_source_topic,
    first_instance,
    records_are_counted,
    scale_out,
    standby_by_group_config,
    interactive_queries,
    graceful_leave,
    java_admin_on_a_living_group,
    kill_of_an_instance,
    broker_restart,
    changed_topology,
    standbys_taken_away,
    everybody_leaves,
)
