"""The bytes of subscriptions and assignments: there and back, cut anywhere, from newer clients."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    MalformedUserData,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TOPICS = st.text("abcxyz.-é", min_size=1, max_size=8)
PARTITIONS = st.lists(st.tuples(TOPICS, st.integers(0, 1000)), max_size=8, unique=True).map(lambda p: tuple(sorted(p)))
SUBSCRIPTIONS = st.builds(
    Subscription,
    topics=st.lists(TOPICS, max_size=5, unique=True).map(lambda t: tuple(sorted(t))),
    user_data=st.none() | st.binary(max_size=20),
    owned_partitions=PARTITIONS,
    generation_id=st.integers(-1, 1 << 30),
    rack_id=st.none() | TOPICS,
)


@given(subscription=SUBSCRIPTIONS)
def test_subscriptions_there_and_back(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription
    oldest = decode_subscription(encode_subscription(subscription, 0))
    assert oldest == Subscription(topics=subscription.topics, user_data=subscription.user_data)


@given(assignment=st.builds(Assignment, partitions=PARTITIONS, user_data=st.none() | st.binary(max_size=20)))
def test_assignments_there_and_back(assignment: Assignment) -> None:
    assert decode_assignment(encode_assignment(assignment)) == assignment


@given(subscription=SUBSCRIPTIONS, data=st.data())
def test_truncated_data_is_refused(subscription: Subscription, data: st.DataObject) -> None:
    encoded = encode_subscription(subscription)
    with pytest.raises(MalformedUserData):
        decode_subscription(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(noise=st.binary(max_size=60))
def test_noise_is_read_or_refused(noise: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(noise)
        except MalformedUserData:
            continue


def test_lengths_are_checked_before_they_are_believed() -> None:
    with pytest.raises(MalformedUserData, match="does not fit"):
        decode_subscription(struct.pack(">hi", 0, 1 << 30))


def test_newer_versions_are_read_as_the_newest_that_is_known() -> None:
    subscription = Subscription(topics=("a",), rack_id="r")
    encoded = struct.pack(">h", 9) + encode_subscription(subscription)[2:] + b"new"
    assert decode_subscription(encoded) == subscription


def test_no_bytes_are_no_assignment() -> None:
    assert decode_assignment(b"") == Assignment()
