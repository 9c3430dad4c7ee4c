"""Warm-up before an instance joins: every stage runs once, and Spark SQL runs once on real records.

Compiling the user's SQL, loading the classes of its functions and starting Python workers takes seconds of CPU. In the
first micro-batch this time would pass while a transaction is open. Readers of committed records, on other instances
too, would wait for it, and tasks that did not move would notice a restart. So the plan is run with nothing to do, and
everything between a source and the first sink or aggregate also runs on a few of the newest records of any task, whose
results are dropped. Errors are left for the first micro-batch to report.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.spark.runtime.batches.job_runner import JobRunner
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, TaskPlan
from headrace.spark.runtime.chains import input_topics
from headrace.spark.runtime.slots.cluster_runner import ClusterRunner
from headrace.spark.topology.nodes import CompiledSubtopology

__all__ = ["newest_records", "warm_up"]

log = logging.getLogger("headrace.spark")


def warm_up(
    jobs: JobRunner | ClusterRunner,
    subtopology: CompiledSubtopology,
    nothing: MicroBatchPlan,
    admin: Admin,
    *,
    most_records: int,
) -> None:
    """Run the chains of `subtopology` with `nothing` to do, then its SQL on up to `most_records` of each topic.

    Raises HeadraceError when even nothing cannot be run.
    """
    jobs.warm_up(nothing)
    if not jobs.has_probes or not most_records:
        return
    try:
        ranges = newest_records(admin, input_topics(subtopology), most_records)
        if ranges:
            slot = SlotPlan(slot=0, tasks=(TaskPlan(partition=0, ranges=ranges),))
            batch = replace(nothing.batch, attempt=1)
            complaint = jobs.probe(replace(nothing, slots=(slot,), batch=batch, probe=True))
            if complaint is not None:
                log.info("%s: the newest records did not warm it up: %s", subtopology.subtopology_id, complaint[:200])
    except HeadraceError as error:
        log.info("%s: not warmed up by records: %s", subtopology.subtopology_id, str(error)[:200])


def newest_records(admin: Admin, topics: list[str], most: int) -> tuple[InputRange, ...]:
    """Return the last `most` committed offsets of the fullest partition of each topic. Raises HeadraceError."""
    found = admin.client.metadata(topics).topics
    partitions = [(name, partition) for name in topics if name in found for partition in found[name].partitions]
    first = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
    fullest: dict[str, InputRange] = {}
    held = {where: ends[where].offset - first[where].offset for where in partitions}
    # Ascending by the number of records, so the fullest partition of a topic is written last and stays.
    for topic, partition in sorted(partitions, key=held.__getitem__):
        if held[topic, partition] > 0:
            end = ends[topic, partition].offset
            start = max(first[topic, partition].offset, end - most)
            fullest[topic] = InputRange(topic=topic, partition=partition, start=start, end=end)
    return tuple(fullest.values())
