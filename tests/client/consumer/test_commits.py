"""Commits of a consumer that assigns partitions by hand, and at its end."""

from __future__ import annotations

from tests.client.consumer.consumed_records import T0, T1, Make

from headrace.client.admin_results import CommittedOffset


def test_commits_without_members(make: Make) -> None:
    consumer = make(group_id="alone", enable_auto_commit=False)
    consumer.assign([T0, T1])
    assert consumer.committed() == {T0: None, T1: None}
    consumer.seek(T0, 10)
    consumer.seek(T1, 20)
    consumer.commit()
    consumer.commit({T1: CommittedOffset(offset=21, metadata="half")}, wait=False)
    consumer.commit({T0: 11})  # behind the one in the background
    found = consumer.committed()
    assert found[T0] == CommittedOffset(offset=11)
    assert found[T1] == CommittedOffset(offset=21, metadata="half")
    again = make(group_id="alone")
    again.assign([T0, T1])
    assert (again.position(T0), again.position(T1)) == (11, 21)


def test_auto_commit_commits_what_was_returned_when_it_closes(make: Make) -> None:
    consumer = make(group_id="auto", max_poll_records=30)
    consumer.assign([T0])
    assert len(consumer.poll_records(5)) == 30
    consumer.close()
    again = make(group_id="auto")
    again.assign([T0])
    assert again.position(T0) == 30
