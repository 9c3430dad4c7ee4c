"""Every version of every request."""

from __future__ import annotations

from tests.interop.classic_scenarios.scenario import classic_scenario
from tests.interop.classic_script import ClassicScript

JOIN, SYNC, HEARTBEAT, LEAVE, DESCRIBE = range(10), range(6), range(5), range(6), range(7)


@classic_scenario()
def all_versions(s: ClassicScript) -> None:
    s.enter("a", "a")
    s.hear("a leads", "a")
    s.sync("a syncs", "a", {"a": b"all"})
    for version in JOIN:
        s.join(f"joins again, {version}", "a", version=version)
    for version in SYNC:
        s.sync(f"wrong generation, {version}", "a", generation=99, version=version)
        s.sync(f"syncs, {version}", "a", {"a": b"all"}, version=version)
    for version in HEARTBEAT:
        s.heartbeat(f"beats, {version}", "a", version=version)
        s.heartbeat(f"unknown, {version}", "x", member="x", version=version)
    for version in LEAVE:
        s.leave_group(f"unknown leaves, {version}", "x", ("x", None), version=version)
    for version in DESCRIBE:
        s.describe_members(f"described, {version}", version)
    for version in JOIN:
        s.join(f"too short a session, {version}", "y", session_ms=1, version=version)
        s.join(f"inconsistent, {version}", "y", protocol_type="other", version=version)
    s.leave_group("a leaves", "a", version=0)
    for version in DESCRIBE:
        s.describe_members(f"empty, {version}", version)


@classic_scenario()
def new_members_of_all_versions(s: ClassicScript) -> None:
    """Before version 4 one joins at once; leaving of all versions."""
    for version in JOIN:
        who = f"m{version}"
        s.join(f"joins, {version}", who, version=version, session_ms=20_000)
        if version >= 4:
            s.join(f"joins with the id, {version}", who, version=version, session_ms=20_000)
        s.sync(f"syncs, {version}", who, {who: b"all"}, version=min(version, 4))
        s.leave_group(f"leaves, {version}", who, version=min(version, 5))
    for version in range(5, 10):
        s.join(f"static, {version}", f"s{version}", version=version, instance="s")
        s.sync(f"static syncs, {version}", f"s{version}", {f"s{version}": b"all"}, version=3, instance="s")
