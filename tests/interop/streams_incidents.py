"""What else happens to a Kafka Streams application: each incident has an application, a group and topics of its own.

Longer than the story of `streams_steps`; run when HEADRACE_LONG is set (docs/how-to/kafka-streams.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.interop.streams_scenario import PARTITIONS, Scenario, Seen, balance, life, moves, tasks_of
from tests.interop.streams_steps import how_it_ended

from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["INCIDENTS"]

STRINGS = "org.apache.kafka.common.serialization.Serdes$StringSerde"
RESTORED = re.compile(r"with a total number of (\d+) records")


def shutdown_of_the_whole_application(story: Scenario) -> Seen:
    """One instance meets a record it cannot digest and asks for the end of all of them."""
    story.create_topics()
    pair = [story.join(name, word__on__error="SHUTDOWN_APPLICATION") for name in ("one", "two")]
    story.settled(2)
    story.words.poison()
    codes = [instance.ended() for instance in pair]
    wait_until(lambda: story.watch.state == "Empty", "empty", *pair, timeout_s=90)
    ended = sorted(map(how_it_ended, pair, codes), key=lambda one: one["message"])
    return {
        "the instances": ended,
        "the group": story.watch.state,
        "members": len(not_none(story.watch.latest).members),
    }


def silent_for_longer_than_its_session(story: Scenario) -> Seen:
    """An instance is stopped (SIGSTOP), loses its tasks, wakes up and takes its part again."""
    story.create_topics()
    one, two = story.join("one"), story.join("two")
    story.words.send(500)
    both = story.settled(2)
    two.pause()
    del story.instances["two"]
    alone = story.settled(1)
    story.words.send(500)
    story.settled(1)
    story.instances["two"] = two
    two.resume()
    back = story.settled(2)
    story.words.send(500)
    story.settled(2)
    return {
        "alone": {**balance(alone), **moves(both, alone)},
        "back": {**balance(back), **moves(alone, back)},
        "its member id is the same": {m.member_id for m in both.members} == {m.member_id for m in back.members},
        "states of the one that slept": life(two.states),
        "states of the other": life(one.states),
        "at least": story.counts_at_least(),
        "epochs only rose": story.watch.epochs_rise(),
    }


def state_on_disk(story: Scenario) -> Seen:
    """An instance is closed and started again with its directory: nothing is read from the changelog."""
    story.create_topics()
    first = story.join("one", word__on__disk="true")
    story.words.send(2000)
    process = story.settled(1).members[0].process_id
    code = first.close()
    before = len(RESTORED.findall(first.log.read_text()))
    again = story.join("one", word__on__disk="true")
    after = story.settled(1)
    story.words.send(1000)
    story.settled(1)
    restored = RESTORED.findall(again.log.read_text())[before:]  # both write one log
    return {
        "exit code": code,
        "records restored": [int(count) for count in restored],
        "the process id is the same": after.members[0].process_id == process,
        "exact": story.counts_exactly(),
    }


def four_instances_of_two_threads(story: Scenario) -> Seen:
    """Eight members in four processes; then two instances leave at once."""
    story.create_topics()
    for name in ("one", "two", "three", "four"):
        story.join(name, num__stream__threads=2)
    story.words.send(1000)
    wide = story.settled(8)
    leaving = [story.instances.pop(name) for name in ("two", "four")]
    for instance in leaving:
        instance.ask("close")
    codes = [instance.ended() for instance in leaving]
    narrow = story.settled(4)
    story.words.send(1000)
    story.settled(4)
    return {
        "wide": balance(wide),
        "tasks per process": sorted(per_process(wide).values()),
        "exit codes": codes,
        "narrow": {**balance(narrow), "taken": moves(wide, narrow)["tasks taken from a member that stayed"]},
        "exact": story.counts_exactly(),
    }


def per_process(group: StreamsGroupDescription) -> dict[str, int]:
    process = {member.member_id: member.process_id for member in group.members}
    found = dict.fromkeys(process.values(), 0)
    for member in tasks_of(group).values():
        found[process[member]] += 1
    return found


def source_topic_deleted(story: Scenario) -> Seen:
    """Under a running application; the group is NotReady and the application ends with the topic's name."""
    story.create_topics()
    instance = story.join("one", word__queries="false")
    wait_until(instance.is_running, "running", instance)
    wait_until(lambda: story.watch.state == "Stable", "stable", instance)
    story.admin.delete_topics([story.source])
    ended = how_it_ended(instance, instance.ended())
    return {"the instance": ended, "NotReady was seen": "NotReady" in story.watch.states}


def source_topic_grown(story: Scenario) -> Seen:
    """Two partitions more, while a store has a changelog of four."""
    story.create_topics()
    pair = [story.join("one"), story.join("two")]
    story.words.send(500)
    before = story.settled(2)
    story.admin.create_partitions({story.source: PARTITIONS + 2})
    wider = 2 * PARTITIONS + 2
    wait_until(lambda: story.as_is(2, 0, wider) or all(one.error for one in pair), "decided", *pair, timeout_s=90)
    if any(one.error for one in pair):
        ended = [how_it_ended(one, one.ended()) for one in pair]
        return {"the instances": sorted(ended, key=str), "tasks": 0, "exact": story.counts_exactly()}
    story.words.send(500)
    after = story.settled(2, tasks=wider)
    return {"the instances": moves(before, after), "tasks": len(tasks_of(after)), "exact": story.counts_exactly()}


def sources_of_different_widths(story: Scenario) -> Seen:
    """Two topics that are joined have four and three partitions; an application with and one without endpoint."""
    story.create_topics()
    story.admin.create_topics({f"{story.source}-2": PARTITIONS - 1}, replication_factor=1)
    strings = {"default__key__serde": STRINGS, "default__value__serde": STRINGS}
    pair = [
        story.start(
            f"queries-{queries}", group=f"widths-{queries}", word__added="join", word__queries=queries, **strings
        )
        for queries in ("false", "true")
    ]
    without, given = (how_it_ended(one, one.ended()) for one in pair)
    return {"without endpoint": without, "endpoint given": given}


INCIDENTS: Sequence[Callable[[Scenario], Seen]] = (
    shutdown_of_the_whole_application,
    silent_for_longer_than_its_session,
    state_on_disk,
    four_instances_of_two_threads,
    source_topic_deleted,
    source_topic_grown,
    sources_of_different_widths,
)
