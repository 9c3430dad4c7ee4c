"""The record of a batch in the metadata of an offset, and which open transactions belong to none."""

from __future__ import annotations

import random

import pytest
from tests.spark.data_source.sink_queries import QUERY, record, task

from headrace.errors import SinkError
from headrace.spark.data_source.commit_record import (
    CommitRecord,
    TaskTransaction,
    is_leftover,
    latest_record,
    transactional_id_of,
)


def test_a_record_survives_the_metadata_of_an_offset() -> None:
    for tasks in ((), (task(),), tuple(task(n, attempt=n % 3, epoch=n * 7 % 32000) for n in range(400))):
        for is_rewrite in (False, True):
            written = record(57, tasks=tasks, is_rewrite=is_rewrite)
            assert CommitRecord.parse(written.to_metadata()) == written


def test_more_tasks_than_metadata_can_name_are_refused() -> None:
    chance = random.Random(1)
    tasks = tuple(
        TaskTransaction(task=n, attempt=0, producer_id=chance.getrandbits(40), producer_epoch=chance.getrandbits(14))
        for n in range(2000)
    )
    with pytest.raises(SinkError, match="2000 tasks"):
        record(1, tasks=tasks).to_metadata()


@pytest.mark.parametrize("metadata", ["", "{}", '{"v":2}', '{"v":1,"batch":1,"run":"r","incarnation":0,"tasks":"?"}'])
def test_foreign_metadata_are_refused(metadata: str) -> None:
    with pytest.raises(SinkError, match="no record"):
        CommitRecord.parse(metadata)


def test_the_newest_record_of_all_topics_counts() -> None:
    old, new = record(9, incarnation=1), record(8, incarnation=2)
    found = latest_record({("a", 0): (10, old.to_metadata()), ("b", 0): (9, new.to_metadata()), ("c", 0): (-1, "")})
    assert found == (("b", 0), new)
    assert latest_record({}) is None


def test_leftovers_are_of_this_query_and_of_no_successor() -> None:
    mine = transactional_id_of(QUERY, 3, "8a3f-11", task(5))
    assert mine == f"headrace-{QUERY}-3-8a3f11-5-0"
    assert is_leftover(mine, QUERY, 3)
    assert is_leftover(mine, QUERY, 4)
    assert not is_leftover(mine, QUERY, 2)
    assert not is_leftover(mine, QUERY[:-1], 4)
    assert is_leftover(mine, QUERY, 3, only_run="8a3f-11")
    assert not is_leftover(mine, QUERY, 3, only_run="other")
    assert is_leftover(mine, QUERY, 3, except_run="other")
    assert not is_leftover(mine, QUERY, 3, except_run="8a3f-11")
    assert not is_leftover(f"headrace-{QUERY}-commit", QUERY, 9)
