"""A script for a group whose members speak both protocols: classic members by name, consumers by the id they give.

Member ids that the broker makes are put back to the members' names everywhere, also in records (`in_words`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from tests.harness.polling import wait_until
from tests.interop.classic_script import ClassicScript
from tests.interop.consumer_script import ConsumerScript

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.protocol.error_codes import kafka_name

__all__ = ["MIGRATION_SCENARIOS", "MigrationScenario", "MixedScript", "migration_scenario"]

Partitions = Mapping[str, Iterable[int]]


class MixedScript(ClassicScript, ConsumerScript):  # type: ignore[misc]  # `join` of classic members is meant
    """`join`, `sync`, … are those of classic members; `consumer_joins` and `beat` of consumers."""

    # --- what classic members say ---

    def reads(
        self, *names: str, owned: Partitions | None = None, protocols: Iterable[str] = ("range",), version: int = 3
    ) -> Any:
        """Protocols of a JoinGroup."""
        held = tuple((self.name(name), each) for name, of_topic in (owned or {}).items() for each in of_topic)
        data = encode_subscription(
            Subscription(topics=tuple(map(self.name, names)), owned_partitions=held, rack_id=None), version
        )
        return tuple((name, data) for name in protocols)

    def assigns(self, partitions: Partitions, user_data: bytes | None = None) -> bytes:
        """What a leader gives to a member."""
        named = tuple((self.name(name), each) for name, of_topic in partitions.items() for each in of_topic)
        return encode_assignment(Assignment(partitions=named, user_data=user_data))

    def alone(self, who: str, partitions: Partitions, **fields: Any) -> None:
        """A classic group of one member, stable."""
        given = {"protocols": self.reads(*partitions), **fields}
        if given.get("instance") is None:
            self.enter(who, who, **given)
            self.hear(f"{who} joined", who)
        else:
            self.join(f"{who} joined", who, **given)
        protocol = given["protocols"][0][0]
        assigned = {who: self.assigns(partitions)}
        self.sync(f"{who} synced", who, assigned, instance=given.get("instance"), protocol=protocol)

    def both(self, one: str, other: str, given: Mapping[str, Partitions]) -> None:
        """Two classic members, stable; the first leads."""
        self.alone(one, dict.fromkeys(given[one], ()))
        self.enter(other, other, protocols=self.reads(*given[other]))
        self.heartbeat(f"{one} must join again", one)
        self.ask_join(one, protocols=self.reads(*given[one]))
        self.generation("both", one, other, **{who: self.assigns(given[who]) for who in (one, other)})

    def again(self, step: str, who: str, *names: str, instance: str | None = None, **fields: Any) -> None:
        """A classic member joins and asks for its assignment."""
        self.join(f"{step}: joins", who, protocols=self.reads(*names, **fields), instance=instance)
        self.sync(f"{step}: syncs", who, instance=instance)

    # --- consumers ---

    def consumer_joins(self, step: str, member: str, *names: str, **fields: Any) -> Any:
        return ConsumerScript.join(self, step, member, *names, **fields)

    def state_becomes(self, step: str, state: str) -> None:
        """Of a consumer group."""
        self.describe_until(step, lambda seen: bool(seen["state"] == state))

    def members_become(self, step: str, count: int) -> None:
        self.describe_until(step, lambda seen: len(seen["members"]) == count)

    def classic_state_becomes(self, step: str, state: str) -> None:
        wait_until(lambda: self.described()["state"] == state, step)
        self.describe_members(step)

    # --- in words ---

    def in_words(self, value: Any) -> Any:
        """A key or value of a record, in which members have their names."""
        if isinstance(value, tuple):
            return tuple(map(self.in_words, value))
        if isinstance(value, str):
            return self._word(value)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        return replace(value, **{each.name: self.in_words(getattr(value, each.name)) for each in fields(value)})

    def _described(self, group_id: str | None, version: int = 1) -> dict[str, Any]:
        seen = super()._described(group_id, version)
        named: dict[str, Any] = {}
        for name, value in seen.items():
            member, found, rest = name.partition(": ")
            named[f"{self._word(member)}: {rest}" if found else name] = value
        named["members"] = sorted(map(self._word, seen["members"]))
        return named

    def _joined(self, who: str, answer: Any) -> dict[str, object]:
        """Of an id it is no matter here how it is made: in a consumer group it has another form."""
        known = self.ids.values()
        if answer.member_id and answer.member_id not in known and kafka_name(answer.error_code) in _GIVE_IDS:
            self.ids[who] = answer.member_id
        return {**super()._joined(who, answer), "new id": ""}


_GIVE_IDS = ("NONE", "MEMBER_ID_REQUIRED")
Play = Callable[[MixedScript], None]


class MigrationScenario(NamedTuple):
    name: str
    play: Play
    topics: Mapping[str, int]
    settings: Mapping[str, int]


MIGRATION_SCENARIOS: dict[str, MigrationScenario] = {}


def migration_scenario(topics: Mapping[str, int] | None = None, **settings: int) -> Callable[[Play], Play]:
    """Registers a script under its function's name. Settings without their `consumer.` and with `_` for `.`."""

    def add(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        assert name not in MIGRATION_SCENARIOS, f"two scenarios are called {name}"
        given = {"assignment_interval_ms": 0, **settings}
        named = {f"consumer.{key.replace('_', '.')}": value for key, value in given.items()}
        MIGRATION_SCENARIOS[name] = MigrationScenario(name, play, topics or {"in": 4}, named)
        return play

    return add
