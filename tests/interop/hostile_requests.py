"""Malformed and hostile heartbeats: what a field may hold that no honest client sends, and bytes that are no request.

`JOINS` and `BEATS` are sent as messages, by a newcomer in a group of its own and by a member; `FRAMES` are bytes, built
field by field so that any field can be replaced by others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from tests.harness.wire import encode_varint
from tests.interop.heartbeat_script import Script, subtopology, topology
from tests.interop.heartbeat_words import h

__all__ = ["ARRAYS", "BEATS", "FRAMES", "JOINS", "NULLABLE_STRINGS", "OVERFLOWING", "STRINGS", "frame"]

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
LONG = "n" * 65_536
Fields = Mapping[str, Any]
Case = Callable[[Script], Fields]


def tasks(name: str, *partitions: int) -> tuple[Any, ...]:
    return (h.TaskIds(subtopology_id=name, partitions=partitions),)


def offsets(*given: tuple[str, int, int]) -> tuple[Any, ...]:
    return tuple(h.TaskOffset(subtopology_id=name, partition=number, offset=offset) for name, number, offset in given)


def tags(*pairs: tuple[str, str]) -> tuple[Any, ...]:
    return tuple(h.KeyValue(key=key, value=value) for key, value in pairs)


def endpoint(host: str, port: int) -> Any:
    return h.Endpoint(host=host, port=port)


def given(fields: Fields) -> Case:
    return lambda _: fields


# In any heartbeat, of a newcomer or a member: field by field.
_ANYWHERE: dict[str, Fields] = {
    "member id blank": {"member_id": " \t"},
    "member id of 64 KiB": {"member_id": LONG},
    "member id with a zero byte": {"member_id": "a\0b"},
    "member id out of this world": {"member_id": "\U0001f9ea" * 10},
    "group id blank": {"group_id": "  "},
    "group id empty": {"group_id": ""},
    "epoch least": {"epoch": INT_MIN},
    "epoch -3": {"epoch": -3},
    "endpoint epoch least": {"endpoint_information_epoch": INT_MIN},
    "endpoint epoch greatest": {"endpoint_information_epoch": INT_MAX},
    "rack blank": {"rack_id": " "},
    "rack empty": {"rack_id": ""},
    "rack of 64 KiB": {"rack_id": LONG},
    "rack of 32767 bytes": {"rack_id": LONG[:32_767]},
    "rebalance timeout 0": {"rebalance_timeout_ms": 0},
    "rebalance timeout least": {"rebalance_timeout_ms": INT_MIN},
    "rebalance timeout greatest": {"rebalance_timeout_ms": INT_MAX},
    "active tasks alone": {"standby_tasks": None, "warmup_tasks": None, "active_tasks": ()},
    "standby tasks alone": {"active_tasks": None, "warmup_tasks": None, "standby_tasks": ()},
    "warm-up tasks alone": {"active_tasks": None, "standby_tasks": None, "warmup_tasks": ()},
    "warm-up tasks": {"owned": {}, "warmup_tasks": tasks("0", 0)},
    "process blank": {"process": " "},
    "process empty": {"process": ""},
    "process of 64 KiB": {"process": LONG},
    "endpoint without host": {"user_endpoint": endpoint("", 1)},
    "endpoint at port 0": {"user_endpoint": endpoint("here", 0)},
    "endpoint at port 65535": {"user_endpoint": endpoint("here", 65_535)},
    "endpoint of 64 KiB": {"user_endpoint": endpoint(LONG, 1)},
    "client tag twice": {"client_tags": tags(("zone", "a"), ("zone", "b"))},
    "client tags blank": {"client_tags": tags(("", ""), (" ", " "))},
    "1000 client tags": {"client_tags": tags(*((f"k{number:04}", "v") for number in range(1_000)))},
    "instance blank": {"instance_id": " "},
    "instance": {"instance_id": "i"},
    "instance of 64 KiB": {"instance_id": LONG},
    "task offsets": {"task_offsets": offsets(("0", 0, 1))},
    "task offsets, none": {"task_offsets": ()},
    "task offsets twice": {"task_offsets": offsets(("0", 0, 1), ("0", 0, 2))},
    "task offsets of nothing": {"task_offsets": offsets(("", -1, -5), ("9", INT_MAX, 2**63 - 1))},
    "task end offsets": {"task_end_offsets": offsets(("0", 0, 1))},
    "task end offsets twice": {"task_end_offsets": offsets(("0", 0, 1), ("0", 0, 2))},
}

_OF_A_MEMBER: dict[str, Fields] = {
    "epoch one less": {"epoch": 1},
    "epoch one more": {"epoch": 99},
    "epoch greatest": {"epoch": INT_MAX},
    "epoch one less, owning all": {"epoch": 1, "owned": {"0": (0, 1)}},
    "a member that is none": {"member_id": "nobody"},
    "a group that is none": {"group_id": "nothing"},
    "leaves as nobody": {"member_id": "nobody", "epoch": -1},
    "leaves nothing": {"group_id": "nothing", "epoch": -1},
    "for a while, without instance": {"epoch": -2},
    "for a while, as an instance": {"epoch": -2, "instance_id": "i"},
    "owns an unknown subtopology": {"owned": {"9": (0,)}},
    "owns a subtopology without name": {"owned": {"": (0,)}},
    "owns a partition too many": {"owned": {"0": (0, 2)}},
    "owns a negative partition": {"owned": {"0": (-1,)}},
    "owns the greatest partition": {"owned": {"0": (INT_MAX,)}},
    "owns a task twice": {"owned": {"0": (0, 1, 0)}},
    "owns no partitions of something": {"owned": {"0": (), "9": ()}},
    "owns a subtopology twice": {"owned": {}, "active_tasks": (*tasks("0", 0), *tasks("0", 1))},
    "owns active as standby": {"owned": {}, "standby_tasks": tasks("0", 0, 1)},
    "owns unknown standbys": {"owned": {}, "standby_tasks": tasks("9", 0)},
    "owns 10000 partitions": {"owned": {"0": tuple(range(10_000))}},
    "topology, not joining": {"topology": topology()},
    "topology, leaving": {"topology": topology(), "epoch": -1},
}
BEATS: dict[str, Case] = {name: given(fields) for name, fields in {**_ANYWHERE, **_OF_A_MEMBER}.items()}


def _topology(make: Callable[[Script], Any]) -> Case:
    return lambda s: {"topology": make(s)}


def _one(make: Callable[[Script], Any]) -> Case:
    return _topology(lambda s: topology(make(s)))


def _info(name: str, *, partitions: int = 0, factor: int = 0, configs: tuple[Any, ...] = ()) -> Any:
    return h.TopicInfo(name=name, partitions=partitions, replication_factor=factor, topic_configs=configs)


def _in(s: Script) -> list[str]:
    return [s.name("in")]


JOINS: dict[str, Case] = {name: given(fields) for name, fields in _ANYWHERE.items()}
JOINS.update(
    {
        "group id of 64 KiB": given({"group_id": LONG}),
        "rebalance timeout not given": given({"rebalance_timeout_ms": -1}),
        "process null": given({"process": None}),
        "no topology": given({"topology": None}),
        "owns tasks": given({"owned": {"0": (0,)}}),
        "owns tasks of no partitions": given({"owned": {"0": ()}}),
        "owns standbys": given({"standby_tasks": tasks("0", 0)}),
        "tasks null": given({"owned": None}),
        "no subtopologies": _topology(lambda _: topology()),
        "topology epoch -1": _topology(lambda s: topology(subtopology("0", _in(s)), epoch=-1)),
        "topology epoch least": _topology(lambda s: topology(subtopology("0", _in(s)), epoch=INT_MIN)),
        "topology epoch greatest": _topology(lambda s: topology(subtopology("0", _in(s)), epoch=INT_MAX)),
        "subtopology without name": _one(lambda s: subtopology("", _in(s))),
        "subtopology of 64 KiB": _one(lambda s: subtopology(LONG, _in(s))),
        "a subtopology twice": _topology(lambda s: topology(subtopology("0", _in(s)), subtopology("0", _in(s)))),
        "a subtopology twice, differing": _topology(
            lambda s: topology(subtopology("0", _in(s)), subtopology("0", [s.name("other")]))
        ),
        "500 subtopologies": _topology(lambda s: topology(*(subtopology(f"{n:03}", _in(s)) for n in range(500)))),
        "no source topics": _one(lambda _: subtopology("0")),
        "a source topic twice": _one(lambda s: subtopology("0", [*_in(s), *_in(s)])),
        "source topic without name": _one(lambda _: subtopology("0", [""])),
        "source topic of 64 KiB": _one(lambda _: subtopology("0", [LONG])),
        "source topic illegal": _one(lambda _: subtopology("0", ["a b"])),
        "source topic internal": _one(lambda _: subtopology("0", ["__consumer_offsets"])),
        "source topic unknown": _one(lambda s: subtopology("0", [s.name("nowhere")])),
        "regular expression": _one(lambda _: subtopology("0", regex=["in.*"])),
        "regular expression that is none": _one(lambda _: subtopology("0", regex=["("])),
        "changelog with a count": _one(lambda s: subtopology("0", _in(s), changelogs=[_info("cl", partitions=3)])),
        "changelog with a negative count": _one(
            lambda s: subtopology("0", _in(s), changelogs=[_info("cl", partitions=-1)])
        ),
        "changelog illegal": _one(lambda s: subtopology("0", _in(s), changelogs=[_info("c/l")])),
        "changelog is the source": _one(lambda s: subtopology("0", _in(s), changelogs=[_info(s.name("in"))])),
        "a changelog twice": _one(lambda s: subtopology("0", _in(s), changelogs=[_info(s.name("in"))] * 2)),
        "a changelog of two subtopologies": _topology(
            lambda s: topology(*(subtopology(name, _in(s), changelogs=[_info(s.name("in"))]) for name in ("0", "1")))
        ),
        "a repartition topic twice": _one(
            lambda s: subtopology("0", _in(s), repartitions=[_info(s.name("in"), partitions=2)] * 2)
        ),
        "a repartition topic read by two subtopologies": _topology(
            lambda s: topology(
                *(subtopology(name, _in(s), repartitions=[_info(s.name("in"), partitions=2)]) for name in ("0", "1"))
            )
        ),
        "topic config twice": _one(
            lambda s: subtopology("0", _in(s), changelogs=[_info(s.name("in"), configs=tags(("a", "1"), ("a", "2")))])
        ),
        "sink that nobody reads": _one(lambda s: subtopology("0", _in(s), sinks=[s.name("nobody")])),
        "sink illegal": _one(lambda s: subtopology("0", _in(s), sinks=["a b"])),
        "repartition topic that nobody writes": _one(
            lambda s: subtopology("0", _in(s), repartitions=[_info(s.name("r1"))])
        ),
        "repartition topic with a negative count": _one(
            lambda s: subtopology("0", _in(s), repartitions=[_info(s.name("r2"), partitions=-1)])
        ),
        "repartition topic that it writes itself": _one(
            lambda s: subtopology("0", repartitions=[_info(s.name("r3"))], sinks=[s.name("r3")])
        ),
        "repartition topic is the source": _one(
            lambda s: subtopology("0", _in(s), repartitions=[_info(s.name("in"), partitions=2)])
        ),
        "copartition index too great": _one(lambda s: subtopology("0", _in(s), copartitions=[((1,), ())])),
        "copartition index 32767": _one(lambda s: subtopology("0", _in(s), copartitions=[((32_767,), ())])),
        "copartition index negative": _one(lambda s: subtopology("0", _in(s), copartitions=[((-1,), ())])),
        "copartition index of no repartition topic": _one(
            lambda s: subtopology("0", _in(s), copartitions=[((0,), (0,))])
        ),
        "copartition group empty": _one(lambda s: subtopology("0", _in(s), copartitions=[((), ())])),
        "copartition index twice": _one(lambda s: subtopology("0", _in(s), copartitions=[((0, 0), ())])),
        "copartition regex index": _one(
            lambda s: h.Subtopology(
                subtopology_id="0",
                source_topics=tuple(_in(s)),
                state_changelog_topics=(),
                repartition_source_topics=(),
                copartition_groups=(h.CopartitionGroup(source_topic_regex=(7,)),),
            )
        ),
        "copartition counts differ": _one(
            lambda s: subtopology("0", [s.name("in"), s.name("other")], copartitions=[((0, 1), ())])
        ),
    }
)


# --- bytes ---


def text(value: bytes | None) -> bytes:
    return b"\0" if value is None else encode_varint(len(value) + 1) + value


def _honest(group_id: bytes) -> dict[str, bytes]:
    """A heartbeat of a member that is none: every honest broker answers GROUP_ID_NOT_FOUND."""
    return {
        "group id": text(group_id),
        "member id": text(b"a"),
        "member epoch": struct.pack(">i", 3),
        "endpoint epoch": struct.pack(">i", -1),
        "instance id": b"\0",
        "rack id": b"\0",
        "rebalance timeout": struct.pack(">i", -1),
        "topology": b"\xff",
        "active tasks": encode_varint(2) + text(b"0") + encode_varint(2) + struct.pack(">i", 0) + b"\0",
        "standby tasks": encode_varint(1),
        "warm-up tasks": encode_varint(1),
        "process id": b"\0",
        "user endpoint": b"\xff",
        "client tags": b"\0",
        "task offsets": b"\0",
        "task end offsets": b"\0",
        "shutdown": b"\0",
        "tagged fields": b"\0",
    }


def frame(group_id: bytes, changed: Mapping[str, bytes], cut_after: str | None = None) -> bytes:
    """A request of version 0, length included, with some fields replaced; ends behind `cut_after`."""
    header = struct.pack(">hhih", 88, 0, 77, 1) + b"x" + b"\0"
    body = b""
    for name, value in {**_honest(group_id), **changed}.items():
        body += value
        if name == cut_after:
            break
    return struct.pack(">i", len(header + body)) + header + body


_HUGE = {"2^31 - 1": encode_varint(2**31), "2^31": encode_varint(2**31 + 1), "2^32 - 2": encode_varint(2**32 - 1)}
OVERFLOWING = ("2^31", "2^32 - 2")
STRINGS = ("group id", "member id", "instance id", "rack id", "process id")
NULLABLE_STRINGS = STRINGS[2:]
ARRAYS = ("active tasks", "standby tasks", "warm-up tasks", "client tags", "task offsets", "task end offsets")
_FIELDS = tuple(_honest(b""))
_TASK = text(b"0")

# Name → (fields replaced, the field behind which the frame ends).
FRAMES: dict[str, tuple[Mapping[str, bytes], str | None]] = {
    "honest": ({}, None),
    **{f"{name} of {size} bytes": ({name: length}, None) for name in STRINGS for size, length in _HUGE.items()},
    **{f"{name} longer than the frame": ({name: encode_varint(1_000) + b"a"}, None) for name in STRINGS},
    **{f"{name} null": ({name: b"\0"}, None) for name in ("group id", "member id")},
    **{f"{name} no UTF-8": ({name: text(b"\xff\xfe\xc0")}, None) for name in STRINGS},
    **{f"{size} {name}": ({name: length}, None) for name in ARRAYS for size, length in _HUGE.items()},
    **{f"100 {name} that are not there": ({name: encode_varint(101)}, name) for name in ARRAYS},
    "2^31 - 1 partitions of a task": ({"active tasks": encode_varint(2) + _TASK + encode_varint(2**31)}, None),
    "task of a subtopology that is null": ({"active tasks": encode_varint(2) + b"\0\0\0"}, None),
    "partitions of a task null": ({"active tasks": encode_varint(2) + _TASK + b"\0\0"}, None),
    "topology marked 1, nothing in it": ({"topology": b"\x01" + struct.pack(">i", 0) + b"\0\0"}, None),
    "topology marked 127": ({"topology": b"\x7f" + struct.pack(">i", 0) + b"\x01\0"}, None),
    "topology marked -2": ({"topology": b"\xfe"}, None),
    "2^31 - 1 subtopologies": ({"topology": b"\x01" + struct.pack(">i", 0) + encode_varint(2**31)}, None),
    "user endpoint marked 0": ({"user endpoint": b"\0" + text(b"here") + b"\0\1\0"}, None),
    "user endpoint without host": ({"user endpoint": b"\x01\0\0\1\0"}, None),
    "shutdown 2": ({"shutdown": b"\x02"}, None),
    "shutdown 255": ({"shutdown": b"\xff"}, None),
    "an unknown tagged field": ({"tagged fields": b"\x01\x09\x03abc"}, None),
    "an unknown tagged field longer than the frame": ({"tagged fields": b"\x01\x09\x7fabc"}, None),
    "2^31 - 1 tagged fields": ({"tagged fields": encode_varint(2**31 - 1)}, None),
    "a tagged field twice": ({"tagged fields": b"\x02\x09\x01a\x09\x01a"}, None),
    "a varint without end": ({"tagged fields": b"\xff" * 12}, None),
    "bytes behind the end": ({"tagged fields": b"\0garbage"}, None),
    **{f"ends behind {name}": ({}, name) for name in _FIELDS[:-1]},
}
