"""A shard with a classic group, virtual time, and clients that wait: what was answered to which request, and when."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.broker.coordinators.coordinator_runtime import AppendFailed, Outcome, ShardRunner
from headrace.coordinator.classic.group import (
    ClassicMember,
)
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

GROUP = "g"
START_MS = 1_000_000
Protocols = Iterable[tuple[str, bytes]]


class _Log:
    """As the disk: the records' own bytes. `refuses`: it is full."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes | None]] = []
        self.refuses = False

    def append(self, records: Any, *, now_ms: int) -> None:
        if self.refuses:
            raise AppendFailed("the disk is full")
        for record in records:
            value = None if record.value is None else serde.encode_value(record.value)
            self.entries.append((serde.encode_key(record.key), value))

    def read_all(self) -> Iterable[CoordinatorRecord]:
        for key, value in self.entries:
            record = serde.decode(key, value)
            assert record is not None
            yield record


class ClassicContext:
    """Mutable. Requests return a token; `answers[token]` is there once it was answered."""

    def __init__(self, **settings: object) -> None:
        named = {f"group.{name.replace('_', '.')}": value for name, value in settings.items()}
        self.configuration = GroupCoordinatorConfiguration.from_settings(named)
        self.image = MetadataImage(version=1, topics={})
        self.log = _Log()
        self.now_ms = START_MS
        self.answers: dict[int, Any] = {}
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)
        self._load()

    def _load(self) -> None:
        self.shard = self.fresh()
        self.runner = ShardRunner(self.shard, self.log)  # type: ignore[arg-type]
        self.runner.load(now_ms=self.now_ms)

    def fresh(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(0, self.configuration, self.image)

    def replayed(self) -> GroupCoordinatorShard:
        shard = self.fresh()
        for record in self.log.read_all():
            shard.replay(record)
        return shard

    def restart(self, **settings: object) -> None:
        """The shard is lost, and with it who waited."""
        if settings:
            named = {f"group.{name.replace('_', '.')}": value for name, value in settings.items()}
            self.configuration = GroupCoordinatorConfiguration.from_settings(named)
        self._load()

    @property
    def membership(self) -> Any:
        group = self.shard.group(GROUP)
        assert group is not None
        return group.membership  # type: ignore[union-attr]

    @property
    def state(self) -> str:
        return str(self.shard.describe_groups([GROUP], self.context(0))[0].group_state)

    # --- requests ---

    def ask(self, rule: Callable[[RequestContext], CoordinatorResult], api_version: int) -> int:
        token = next(self._tokens)
        try:
            self._heard(self.runner.run(lambda: rule(self.context(token, api_version)), now_ms=self.now_ms))
        except CoordinatorError as error:
            self.answers[token] = error
        return token

    def join(
        self,
        member_id: str = "",
        *,
        protocols: Protocols = (("range", b""),),
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 20_000,
        protocol_type: str = "test",
        version: int = 9,
    ) -> int:
        j = m.join_group_request
        request = j.JoinGroupRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            session_timeout=from_ms(session_ms),
            rebalance_timeout=from_ms(rebalance_ms),
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=tuple(j.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols),
        )
        fresh_id = str(next(self._ids))
        return self.ask(
            lambda context: self.shard.join_group(request, context, fresh_id=fresh_id, now_ms=self.now_ms), version
        )

    def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, version: int = 5
    ) -> int:
        s = m.sync_group_request
        request = s.SyncGroupRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            generation_id=generation,  # type: ignore[arg-type]
            member_id=member_id,
            assignments=tuple(
                s.SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in (assignments or {}).items()
            ),
        )
        return self.ask(lambda context: self.shard.sync_group(request, context, now_ms=self.now_ms), version)

    def heartbeat(self, member_id: str, generation: int) -> str:
        request = m.heartbeat_request.HeartbeatRequest(
            group_id=GROUP,  # type: ignore[arg-type]
            generation_id=generation,  # type: ignore[arg-type]
            member_id=member_id,
        )
        token = self.ask(lambda context: self.shard.heartbeat(request, context, now_ms=self.now_ms), 4)
        return self.code(token)

    def leave(self, member_id: str, instance: str | None = None) -> str:
        leaving = m.leave_group_request
        identity = leaving.MemberIdentity(member_id=member_id, group_instance_id=instance)
        request = leaving.LeaveGroupRequest(group_id=GROUP, members=(identity,))  # type: ignore[arg-type]
        token = self.ask(lambda context: self.shard.leave_group(request, context, now_ms=self.now_ms), 5)
        answer = self.answers[token]
        return self.code(token) if isinstance(answer, CoordinatorError) else str(answer.members[0].error_code.name)

    # --- what happens by itself ---

    def sleep(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            for outcome in self.runner.fire_timers(now_ms=self.now_ms):
                self._heard(outcome)
        self.now_ms = end_ms

    def context(self, token: int, api_version: int = 6) -> RequestContext:
        return RequestContext(token=token, client_id="c", client_host="/127.0.0.1", api_version=api_version)

    def _heard(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            assert reply.token not in self.answers, f"request {reply.token} was answered twice"
            self.answers[reply.token] = reply.response

    # --- shorter ---

    def code(self, token: int) -> str:
        """ "waits" while there is no answer."""
        answer = self.answers.get(token)
        if isinstance(answer, CoordinatorError):
            return answer.code.name
        return "waits" if answer is None else str(answer.error_code.name)

    def admitted(self, **fields: Any) -> str:
        """A member id."""
        token = self.join(**fields)
        assert self.code(token) == "member_id_required"
        return str(self.answers[token].member_id)

    def stable(self, count: int = 1, **fields: Any) -> list[str]:
        """So many members in a stable group; the first leads."""
        tokens = [self.join(self.admitted(**fields), **fields) for _ in range(count)]
        self.sleep(self.configuration.initial_rebalance_delay_ms * (count + 1))
        joined = [self.answers[token] for token in tokens]
        leader = joined[0].leader
        ids = [str(each.member_id) for each in joined]
        ids.sort(key=lambda each: each != leader)
        for each in ids[::-1]:
            self.sync(each, joined[0].generation_id, {name: name.encode() for name in ids} if each == leader else None)
        assert self.state == "Stable"
        return ids


def member(name: str, *protocols: str) -> ClassicMember:
    return ClassicMember(
        member_id=name,
        client_id="",
        client_host="",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=tuple((each, b"") for each in protocols),
    )
