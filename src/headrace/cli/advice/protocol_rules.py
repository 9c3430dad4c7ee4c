"""Rules about what the group's protocol allows: which settings count at all, and who assigns.

Sources: KIP-848 (settings that move to the broker), KIP-1071 (the same for streams groups), KIP-429 (cooperative
rebalancing), and what the clients of Kafka 4.3 and librdkafka 2.x refuse.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.cli.advice.given_configuration import DEFAULTS, Client, GivenConfiguration, Version, assignor_for
from headrace.cli.advice.situation import Finding, Level, Situation
from headrace.client.configuration import IGNORED_UNDER_STREAMS
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "client_release",
    "eager_assignor",
    "is_supported",
    "mistyped_setting",
    "no_number",
    "set_on_the_broker",
    "standby_replicas",
    "written_twice",
]

_NUMBERS = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "auto.commit.interval.ms",
    "num.standby.replicas",
)
_ON_THE_BROKER = {
    "consumer": {
        "session.timeout.ms": "consumer.session.timeout.ms",
        "heartbeat.interval.ms": "consumer.heartbeat.interval.ms",
        "partition.assignment.strategy": "consumer.assignors (and group.remote.assignor here)",
    },
    "streams": {
        setting: there or "nothing: the group coordinator assigns tasks by itself"
        for setting, there in IGNORED_UNDER_STREAMS.items()
    },
}
# What a release must have for a setting to work: (client, capability) → the first release that has it.
_SINCE: Mapping[tuple[Client, str], Version] = MappingProxyType(
    {
        ("java", "static members"): (2, 3),  # KIP-345
        ("librdkafka", "static members"): (1, 4),
        ("java", "cooperative-sticky"): (2, 4),  # KIP-429
        ("librdkafka", "cooperative-sticky"): (1, 6),
        ("java", "group.protocol=consumer"): (4, 0),  # KIP-848
        ("librdkafka", "group.protocol=consumer"): (2, 12),
        ("java", "group.protocol=streams"): (4, 2),  # KIP-1071
    }
)
_WITHOUT: Mapping[str, str] = MappingProxyType(
    {
        "static members": "an older one ignores it or refuses the name",
        "cooperative-sticky": "an older one does not start with it",
        "group.protocol=consumer": "an older one joins as a member of a classic group",
        "group.protocol=streams": "an older one joins as a member of a classic group",
    }
)
_EAGER = frozenset({"range", "roundrobin", "sticky"})
_COOPERATIVE = "cooperative-sticky"
_STOP = "All members stop and give everything back whenever one comes or goes."
_STATE_WORTH_A_STANDBY = 1_000_000_000


def no_number(given: GivenConfiguration, _situation: Situation) -> Iterator[Finding]:
    """Report values that must be numbers and are not."""
    for setting in _NUMBERS:
        text = given.given(setting)
        if text is not None and given.integer(setting) is None:
            yield Finding(
                rule="no-number",
                setting=setting,
                given=text,
                level="error",
                word="no number",
                reason=f"The client refuses it; {setting} is a whole number of "
                + ("milliseconds." if setting.endswith("ms") else "things."),
                changes={setting: None},
            )


def written_twice(given: GivenConfiguration, _situation: Situation) -> Iterator[Finding]:
    """Report settings that occur twice in the file."""
    for setting in given.twice:
        yield Finding(
            rule="written-twice",
            setting=setting,
            given=given.given(setting),
            level="risk",
            word="twice",
            reason="The last one counts, and readers see the first.",
        )


def mistyped_setting(given: GivenConfiguration, _situation: Situation) -> Iterator[Finding]:
    """Report misspelled names of settings that matter here. Other settings are not checked."""
    known = {*DEFAULTS["java"], *DEFAULTS["librdkafka"], "group.instance.id", "group.remote.assignor", "group.id"}
    for setting, text in given.values.items():
        meant = nearest(setting, known) if setting not in known else None
        if meant is not None and _is_misspelling(setting, meant):
            known_already = given.given(meant) is not None
            yield Finding(
                rule="mistyped-setting",
                setting=setting,
                given=text,
                level="error",
                word="unknown",
                reason=f"{meant} was probably meant: Java passes an unknown name over with a line in the log, "
                "librdkafka refuses it.",
                changes={setting: None} | ({} if known_already else {meant: text}),
            )


def _is_misspelling(setting: str, meant: str) -> bool:
    """Whether two names differ only in punctuation, case, or one letter."""
    # Stricter than `nearest`, which finds names that merely look alike. Client configurations are full of settings that
    # this command does not know, and each false alarm would be an error in a build that uses --check.
    ours, theirs = (name.lower().replace("_", "").replace(".", "").replace("-", "") for name in (setting, meant))
    if ours == theirs:
        return True
    if abs(len(ours) - len(theirs)) > 2 or ours[:4] != theirs[:4]:
        return False
    # 1. Skip the common beginning. 2. After up to two letters on either side the rest must agree: a missing, doubled,
    #    wrong or transposed letter. Edit distance would allow slips in two places, where real settings differ as well.
    same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return any(ours[same + skip :] == theirs[same + other :] for skip in (0, 1, 2) for other in (0, 1, 2))


def is_supported(given: GivenConfiguration, capability: str) -> bool:
    """Whether the client's release has the capability; True where no release was given."""
    since = _SINCE.get((given.client, capability))
    return given.version is None or since is None or given.version >= since


def client_release(given: GivenConfiguration, _situation: Situation) -> Iterator[Finding]:
    """Settings that the client's release does not support."""
    wanted = {
        "static members": ("group.instance.id", bool(given.given("group.instance.id"))),
        "cooperative-sticky": ("partition.assignment.strategy", _COOPERATIVE in given.strategies()),
        "group.protocol=consumer": ("group.protocol", given.text("group.protocol").lower() == "consumer"),
        "group.protocol=streams": ("group.protocol", given.text("group.protocol").lower() == "streams"),
    }
    for capability, (setting, is_used) in wanted.items():
        if is_used and not is_supported(given, capability):
            first = ".".join(map(str, _SINCE[given.client, capability]))
            yield Finding(
                rule="client-release",
                setting=setting,
                given=given.given(setting),
                level="error",
                word="too new",
                reason=f"It needs {given.client} {first} or later; {_WITHOUT[capability]}. Upgrade the client first.",
                changes={setting: None},
            )


def set_on_the_broker(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """Settings that a consumer or streams group has on the broker."""
    if situation.kind == "classic":
        return
    for setting, there in _ON_THE_BROKER[situation.kind].items():
        text = given.given(setting)
        if text is not None:
            # The new consumer throws ConfigException for these settings (ConsumerConfig, KIP-848); Kafka Streams
            # ignores them with a warning (StreamsConfig, KIP-1071).
            refused = situation.kind == "consumer"
            yield Finding(
                rule="set-on-the-broker",
                setting=setting,
                given=text,
                level="error" if refused else "risk",
                word="refused" if refused else "unused",
                reason=f"A {situation.kind} group has it on the broker: {there}.",
                changes={setting: None},
            )
    if given.text("group.protocol").lower() != situation.kind and is_supported(
        given, f"group.protocol={situation.kind}"
    ):
        yield Finding(
            rule="set-on-the-broker",
            setting="group.protocol",
            given=given.given("group.protocol"),
            level="error",
            word="missing",
            reason=f"Without it this client joins as a member of a classic group, not of a {situation.kind} group.",
            changes={"group.protocol": situation.kind},
        )


def eager_assignor(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """With eager assignors all members revoke all partitions at each change (KIP-429)."""
    if situation.kind != "classic":
        return
    strategies = given.strategies()
    eager = [name for name in strategies if name in _EAGER]
    if not eager or not is_supported(given, _COOPERATIVE):
        return
    level: Level = "risk"
    word = "eager"
    # KIP-429's way for Java: a first rolling restart with both assignors, a second one without the eager one. With both
    # listed the group still uses the eager one, which all members have in common.
    wanted: tuple[str, ...] = (eager[0], _COOPERATIVE)
    # librdkafka refuses a list of both kinds (its configuration check), so there is no rolling way.
    if given.client == "librdkafka":
        wanted = (_COOPERATIVE,)
        reason = f"{_STOP} The change needs one stop of the whole group."
        if _COOPERATIVE in strategies:
            level, word = "error", "refused"
            reason = "librdkafka takes eager or cooperative assignors, never both: stop the group once to change over."
    elif _COOPERATIVE in strategies:
        level, word, wanted = "hint", "half way", (_COOPERATIVE,)
        reason = "While an eager one is listed all stop at each change. Take it out when every member lists both."
    else:
        reason = f"{_STOP} Two rolling restarts lead over: the first with both, the second with the cooperative one."
    yield Finding(
        rule="eager-assignor",
        setting="partition.assignment.strategy",
        given=given.given("partition.assignment.strategy"),
        level=level,
        word=word,
        reason=reason,
        changes={"partition.assignment.strategy": ",".join(assignor_for(given.client, each) for each in wanted)},
    )


def standby_replicas(given: GivenConfiguration, situation: Situation) -> Iterator[Finding]:
    """State that is copied beforehand need not be restored when an instance dies."""
    state = situation.state_bytes
    if situation.kind != "streams" or state is None or state < _STATE_WORTH_A_STANDBY:
        return
    if given.given("num.standby.replicas") is not None:
        return  # `set_on_the_broker` has told where it belongs
    yield Finding(
        rule="standby-replicas",
        setting="streams.num.standby.replicas",
        given=None,
        level="hint",
        word="consider",
        reason=f"{state / 1e9:.0f} GB of state are restored before a dead instance's tasks go on; a standby has them "
        "already. It is a setting of the group: headrace configs --alter --entity-type groups.",
    )
