"""A script of requests of classic groups, played to any broker: members with a connection each, whose answers may wait.

Ids that the broker makes are put back to the members' own names, so that two recordings can be compared. `join` and
`sync` ask and hear at once; where the answer waits for others, `ask_join`, `ask_sync` and, later, `hear`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.harness.polling import wait_until
from tests.interop.heartbeat_script import Recording, Script
from tests.interop.heartbeat_words import Connection

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import kafka_name
from headrace.protocol.kio_units import from_ms

__all__ = ["RANGE", "ClassicScript", "subscription"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_INT16_STRING = 2
Protocols = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


def subscription(*topics: str, user_data: bytes = b"", version: int = 0) -> bytes:
    """ConsumerProtocolSubscription, version 0's fields."""
    names = b"".join(len(name).to_bytes(_INT16_STRING, "big") + name.encode() for name in topics)
    return (
        version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + len(user_data).to_bytes(4, "big")
    ) + user_data


RANGE: Protocols = (("range", subscription("in")),)


class ClassicScript(Script):
    """Mutable: which id and generation each member has."""

    def __init__(self, port: int, scenario: str, token: str) -> None:
        super().__init__(port, scenario, token)
        self.requests = 0
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self._lanes: dict[str, Connection] = {}
        self._waits: dict[str, tuple[ApiKey, int]] = {}

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        super().close()

    def lane(self, who: str) -> Connection:
        if who not in self._lanes:
            self._lanes[who] = Connection(self._port)
        return self._lanes[who]

    # --- membership ---

    def ask_join(self, who: str, **fields: Any) -> None:
        """As `join`. Returns when it has been heard: answered, or waiting for others."""
        self._ask_join(who, **fields)
        wait_until(
            lambda: self.lane(who).has_answer or self.described()["state"] == "PreparingRebalance",
            f"{who}'s JoinGroup was heard",
        )

    def join(self, step: str, who: str, **fields: Any) -> dict[str, object]:  # type: ignore[override]
        self._ask_join(who, **fields)
        return self.hear(step, who)

    def _ask_join(
        self,
        who: str,
        *,
        member: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        instance: str | None = None,
        session_ms: int = 30_000,
        rebalance_ms: int = 30_000,
        version: int = 9,
        reason: str | None = None,
        group: str | None = None,
    ) -> None:
        """`member`: a member id in words (None = what `who` has, "" at first)."""
        j = m.join_group_request
        pairs = protocols.items() if isinstance(protocols, Mapping) else protocols
        request = j.JoinGroupRequest(
            group_id=self.group_id if group is None else group,
            session_timeout=from_ms(session_ms),
            rebalance_timeout=from_ms(rebalance_ms),
            member_id=self._id(who, member),
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=tuple(j.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in pairs),
            reason=reason,
        )
        self._ask(who, ApiKey.JOIN_GROUP, version, request)

    def enter(self, step: str, who: str, **fields: Any) -> None:
        """The usual way in: is given an id, and asks with it; the answer may wait."""
        self.join(f"{step}, first", who, **fields)
        self.ask_join(who, **fields)

    def ask_sync(
        self,
        who: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        member: str | None = None,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
        version: int = 5,
        group: str | None = None,
    ) -> None:
        s = m.sync_group_request
        request = s.SyncGroupRequest(
            group_id=self.group_id if group is None else group,
            generation_id=self.generations.get(who, -1) if generation is None else generation,
            member_id=self._id(who, member),
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=tuple(
                s.SyncGroupRequestAssignment(member_id=self._id(name, name), assignment=data)
                for name, data in (assignments or {}).items()
            ),
        )
        self._ask(who, ApiKey.SYNC_GROUP, version, request)

    def sync(self, step: str, who: str, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Any:
        self.ask_sync(who, assignments, **fields)
        return self.hear(step, who)

    def heartbeat(
        self,
        step: str,
        who: str,
        *,
        member: str | None = None,
        generation: int | None = None,
        instance: str | None = None,
        version: int = 4,
        group: str | None = None,
    ) -> str:
        request = m.heartbeat_request.HeartbeatRequest(
            group_id=self.group_id if group is None else group,
            generation_id=self.generations.get(who, -1) if generation is None else generation,
            member_id=self._id(who, member),
            group_instance_id=instance,
        )
        self._ask(who, ApiKey.HEARTBEAT, version, request)
        return str(self.hear(step, who)["error"])

    def leave_group(
        self, step: str, who: str, *members: tuple[str | None, str | None], version: int = 5, group: str | None = None
    ) -> None:
        """`members`: (id in words, instance id); none = `who` itself."""
        leaving = m.leave_group_request
        request = leaving.LeaveGroupRequest(
            group_id=self.group_id if group is None else group,
            members=tuple(
                leaving.MemberIdentity(member_id=self._id(who, member), group_instance_id=instance, reason="done")
                for member, instance in members or ((None, None),)
            ),
        )
        self._ask(who, ApiKey.LEAVE_GROUP, version, request)
        self.hear(step, who)

    def hear(self, step: str, who: str) -> dict[str, object]:
        """The answer to what `who` asked last."""
        api_key, version = self._waits.pop(who)
        answer = self.lane(who).answer(api_key, version)
        heard = self._told(who, api_key, answer)
        self._record(step, heard)
        return heard

    def generation(self, step: str, leader: str, *others: str, **assignments: bytes) -> None:
        """Everybody hears its JoinGroup, and gets an assignment: `assignments` by member, else its own name."""
        for who in (leader, *others):
            self.hear(f"{step}: {who} joined", who)
        for who in others:
            self.ask_sync(who)
        given = {who: assignments.get(who, who.encode()) for who in (leader, *others)}
        self.sync(f"{step}: {leader} synced", leader, given)
        for who in others:
            self.hear(f"{step}: {who} synced", who)

    # --- members of another kind ---

    def group_of_streams(self, step: str, member: str, given: Any) -> None:
        """A streams member asks to join; what it is told about tasks is not of interest."""
        fields = {"epoch": 0, "topology": given, "owned": {}, "rebalance_timeout_ms": 30_000, "process": member}
        answer = self._heartbeat(member, **fields)
        self._record(step, {"error": kafka_name(answer.error_code)})

    def streams_member_leaves(self, step: str, member: str) -> None:
        self._record(step, {"error": kafka_name(self._heartbeat(member, epoch=-1).error_code)})

    # --- what others see ---

    def describe_members(self, step: str, version: int = 6) -> dict[str, object]:
        seen = self.described(version)
        self._record(step, seen)
        return seen

    def describe_when_there(self, step: str) -> None:
        """Kafka answers the join that makes a group before the group is written, and until then nobody sees it."""
        self._record(step, wait_until(lambda: self._if_there(self.described()), step))

    @staticmethod
    def _if_there(seen: dict[str, object]) -> dict[str, object] | None:
        return seen if seen["error"] == "NONE" else None

    def described(self, version: int = 6) -> dict[str, object]:
        request = m.describe_groups_request.DescribeGroupsRequest(
            groups=(self.group_id,), include_authorized_operations=True
        )
        self.requests += 1
        (group,) = self._connection.call(ApiKey.DESCRIBE_GROUPS, version, request).groups
        return {
            "error": kafka_name(group.error_code),
            "message": group.error_message,
            "state": group.group_state,
            "type": group.protocol_type,
            "protocol": group.protocol_data,
            "operations": group.authorized_operations,
            "members": [
                (
                    each.member_id,
                    each.group_instance_id,
                    each.client_id,
                    each.client_host,
                    each.member_metadata,
                    each.member_assignment,
                )
                for each in group.members
            ],
        }

    def commit(self, step: str, member: str, *arguments: Any, **fields: Any) -> None:
        """As in streams groups, with the member's id and generation."""
        self.requests += 1
        if fields.get("epoch") is None:
            fields["epoch"] = self.generations.get(member, -1)
        super().commit(step, self.ids.get(member, member), *arguments, **fields)

    def finished(self) -> Recording:
        """What was recorded, with all ids in words: some were told before their members knew them."""
        return {
            step: {name: self._in_words(name, value) for name, value in seen.items()}
            for step, seen in self.recording.items()
        }

    # --- parts ---

    def _in_words(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._word(value)
        if not isinstance(value, list | tuple):
            return value
        words = type(value)(self._in_words("", each) for each in value)
        return sorted(words, key=repr) if name == "members" else words

    def _id(self, who: str, member: str | None) -> str:
        return self.ids.get(who, "") if member is None else self.ids.get(member, member)

    def _word(self, member_id: str) -> str:
        return next((who for who, known in self.ids.items() if known == member_id), member_id)

    def _ask(self, who: str, api_key: ApiKey, version: int, request: object) -> None:
        self.requests += 1
        self.lane(who).send(api_key, version, request, client_id=f"client-{who}")
        self._waits[who] = api_key, version

    def _told(self, who: str, api_key: ApiKey, answer: Any) -> dict[str, object]:
        heard: dict[str, object] = {"error": kafka_name(answer.error_code)}
        if api_key is ApiKey.JOIN_GROUP:
            return {**heard, **self._joined(who, answer)}
        if api_key is ApiKey.SYNC_GROUP:
            return {
                **heard,
                "type": answer.protocol_type,
                "protocol": answer.protocol_name,
                "assignment": answer.assignment,
            }
        if api_key is ApiKey.LEAVE_GROUP:
            return {
                **heard,
                "left": [
                    (self._word(each.member_id), each.group_instance_id, kafka_name(each.error_code))
                    for each in answer.members
                ],
            }
        return heard

    def _joined(self, who: str, answer: Any) -> dict[str, object]:
        form = ""
        given = answer.member_id
        if given and given not in self.ids.values() and _UUID.search(given):
            self.ids[who] = given
            form = given[: _UUID.search(given).start()]  # type: ignore[union-attr]
        if answer.generation_id >= 0:
            self.generations[who] = answer.generation_id
        return {
            "member": given,
            "new id": form,
            "generation": answer.generation_id,
            "type": answer.protocol_type,
            "protocol": answer.protocol_name,
            "leader": answer.leader,
            "skip": answer.skip_assignment,
            "members": [(each.member_id, each.group_instance_id, each.metadata) for each in answer.members],
        }
