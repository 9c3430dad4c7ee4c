"""Who may do what, in a random history: a rule, a SCRAM password and a quota that are changed again and again.

Each change carries a number that only grows: iterations of the password, bytes per second of the quota. What is found
after a life lies between the last that was acknowledged and the last that was asked for. Rules are for a user of their
own each: those that were acknowledged are there, those that were taken back are not.

`FoundAccess` is the same as a client sees it, for brokers in a process of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.durability import requests as r

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["Access", "FoundAccess", "found_access"]

Ask = Callable[[ApiKey, Any, Callable[[Any], None]], None]
USER, TOPIC = "somebody", "nobodys-topic"
LEAST_ITERATIONS, LEAST_RATE = 4096, 10**9
MOST_RULES = 30
KINDS = ("password", "quota", "rule")


class Access:
    """Mutable: the ledger. `wrong` says what in a broker's services contradicts it."""

    def __init__(self, chance: Random, kinds: Sequence[str] = KINDS) -> None:
        self._chance = chance
        self._kinds = kinds
        self._asked = {"password": 0, "quota": 0}
        self._acknowledged = {"password": 0, "quota": 0}
        self._rules: dict[str, str] = {}  # user → allowed, disallowed, doubtful
        self.acknowledgements = 0

    def step(self, ask: Ask) -> None:
        kind = self._chance.choice(self._kinds)
        if kind == "rule":
            self._change_rule(ask)
            return
        number = self._asked[kind] = self._asked[kind] + 1

        def answered(answer: Any) -> None:
            (only,) = answer.results if kind == "password" else answer.entries
            if only.error_code is ErrorCode.none:
                self.acknowledgements += 1
                self._acknowledged[kind] = max(self._acknowledged[kind], number)

        if kind == "password":
            request = r.set_password(USER, LEAST_ITERATIONS + number)
            ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, answered)
        else:
            ask(ApiKey.ALTER_CLIENT_QUOTAS, r.set_quota(USER, LEAST_RATE + number), answered)

    def _change_rule(self, ask: Ask) -> None:
        allowed = sorted(user for user, state in self._rules.items() if state == "allowed")
        if allowed and (len(allowed) > MOST_RULES or self._chance.random() < 0.4):
            user = self._chance.choice(allowed)
            self._rules[user] = "doubtful"
            ask(ApiKey.DELETE_ACLS, r.disallow(user, TOPIC), lambda answer: self._taken_back(user, answer))
            return
        user = f"user-{len(self._rules)}"
        self._rules[user] = "doubtful"
        ask(ApiKey.CREATE_ACLS, r.allow(user, TOPIC), lambda answer: self._given(user, answer))

    def _given(self, user: str, answer: Any) -> None:
        if answer.results[0].error_code is ErrorCode.none:
            self.acknowledgements += 1
            self._rules[user] = "allowed"

    def _taken_back(self, user: str, answer: Any) -> None:
        if answer.filter_results[0].error_code is ErrorCode.none:
            self.acknowledgements += 1
            self._rules[user] = "disallowed"

    def wrong(self, directory: Any) -> str | None:
        """What the directory of a broker that has just started says otherwise; the ledger goes on from what it says."""
        found = {"password": 0, "quota": 0}
        for entry in directory.scram_credentials.users.values():
            found["password"] = max(each.iterations for each in entry.values()) - LEAST_ITERATIONS
        for values in directory.quotas.values():
            found["quota"] = int(values["producer_byte_rate"]) - LEAST_RATE
        for kind, number in found.items():
            if not self._acknowledged[kind] <= number <= self._asked[kind]:
                return f"{kind} {number} where {self._acknowledged[kind]} was acknowledged, {self._asked[kind]} asked"
            self._acknowledged[kind] = number
        users = {rule["principal"].removeprefix("User:") for rule in directory.acls}
        for user, state in self._rules.items():
            if state != "doubtful" and (user in users) is not (state == "allowed"):
                return f"{user} is {state}, and {'has' if user in users else 'has no'} rule"
            self._rules[user] = "allowed" if user in users else "disallowed"
        return f"rules of {sorted(users - set(self._rules))}" if users - set(self._rules) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAccess:
    """What `Access.wrong` reads: users with their mechanisms, and rules. Quotas are left out."""

    scram_credentials: Any
    acls: tuple[Mapping[str, str], ...]
    quotas: Mapping[Any, Any] = field(default_factory=dict)


def found_access(describe: Callable[[ApiKey, Any], Any]) -> FoundAccess:
    """As the broker describes it now. `describe` raises what its connection raises."""
    users = {
        result.user: {
            info.mechanism: SimpleNamespace(iterations=int(info.iterations)) for info in result.credential_infos
        }
        for result in describe(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, r.describe_passwords()).results
    }
    answer = describe(ApiKey.DESCRIBE_ACLS, r.describe_rules(TOPIC))
    if answer.error_code is not ErrorCode.none:
        raise AssertionError(f"the rules cannot be described: {answer.error_message}")
    rules = tuple({"principal": acl.principal} for resource in answer.resources for acl in resource.acls)
    return FoundAccess(scram_credentials=SimpleNamespace(users=users), acls=rules)
