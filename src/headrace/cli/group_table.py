"""The live table of a group, as `top`, `run` and `demo` draw it: rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.terminal import align
from headrace.client.membership.assignment import tasks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from headrace.cli.group_view import GroupView, MemberView
    from headrace.cli.instances import Instance, InstanceStatus

__all__ = [
    "Row",
    "byte_text",
    "clock_text",
    "group_line",
    "instance_rows",
    "member_rows",
    "plain_rows",
    "short_line",
    "table",
    "tasks_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instance of the table; unknown numbers are None. `note` stands in for tasks (starting, killed)."""

    name: str
    pid: int | None = None
    tasks: int = 0
    which: str = ""
    records_per_s: float | None = None
    lag: int | None = None
    batch_ms: int | None = None
    state_bytes: int | None = None
    note: str = ""
    gone: bool = False


def member_rows(view: GroupView) -> list[Row]:
    """Members as the broker knows them, by client id."""
    return [_of_member(member, _name(member)) for member in sorted(view.members, key=_order)]


def instance_rows(view: GroupView | None, instances: Iterable[Instance]) -> list[Row]:
    """Our own processes, with what only they know (batch time, state), and members of the group that are not ours."""
    # 1. Match processes and members by member id, which an instance reports in `status.json` once it has joined.
    members = {member.member_id: member for member in view.members} if view is not None else {}
    rows = []
    for instance in instances:
        status = instance.status()
        member = members.pop(status.member_id or "", None)
        # 2. Processes in the order of their names; members that remain were started elsewhere and follow.
        rows.append(_of_instance(instance, status, member))
    return rows + [_of_member(member, _name(member)) for member in sorted(members.values(), key=_order)]


def _order(member: MemberView) -> tuple[str, str]:
    return (member.client_id, member.member_id)


def _name(member: MemberView) -> str:
    name = member.client_id or member.member_id
    return name if member.instance_id is None else f"{name} (static {member.instance_id})"


def _of_member(member: MemberView, name: str) -> Row:
    return Row(
        name=name,
        tasks=member.tasks,
        which=_tasks_cell(member),
        records_per_s=member.records_per_s,
        lag=member.lag,
        note=_note(member),
    )


def _note(member: MemberView) -> str:
    if member.is_away:
        return "away for a while, its tasks wait"
    return "" if member.active == member.target else _moving(member)


def _tasks_cell(member: MemberView) -> str:
    """Return the text of the active, standby and warm-up tasks."""
    roles = (("", member.active), ("standby ", member.standby), ("warm-up ", member.warmup))
    return "   ".join(f"{title}{tasks_text(tasks)}" for title, tasks in roles if tasks)


def _of_instance(instance: Instance, status: InstanceStatus, member: MemberView | None) -> Row:
    if not instance.alive:
        code = instance.exit_code
        note = "killed (SIGKILL)" if instance.killed else "not started" if code is None else f"ended, exit code {code}"
        # After a SIGKILL the group keeps the member until its guardian or the session timeout (45 s) ends it: its tasks
        # are shown as still its own, because they are.
        which = tasks_text(member.active) if member is not None else ""  # the broker does not know yet
        tasks = member.tasks if member is not None else 0
        return Row(
            name=instance.name,
            pid=instance.pid,
            tasks=tasks,
            which=which,
            lag=member.lag if member else None,
            note=note,
            gone=True,
        )
    if member is None:
        starting = "waits for source topics" if instance.waiting() else "starts its Spark"
        return Row(name=instance.name, pid=instance.pid, note="joins" if status.member_id else starting)
    note = "" if member.active == member.target else _moving(member)
    if status.opening:
        note = f"opens {status.opening} tasks"
    return Row(
        name=instance.name,
        pid=instance.pid,
        tasks=member.tasks,
        which=_tasks_cell(member),
        records_per_s=member.records_per_s,
        lag=member.lag,
        batch_ms=status.batch_ms,
        state_bytes=status.state_bytes,
        note=note,
    )


def _moving(member: MemberView) -> str:
    goal = sum(len(partitions) for partitions in member.target.values())
    return f"on the way to {goal} tasks"


def byte_text(count: int | None) -> str:
    """Return a size in KiB, MiB or GiB."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def clock_text(seconds: float) -> str:
    """`1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _cells(row: Row) -> tuple[str, str, str, str, str, str, str]:
    which = f"{row.which}   ({row.note})" if row.which and row.note else row.which or row.note
    return (
        f"{row.name}  {row.pid}" if row.pid is not None else row.name,
        str(row.tasks),
        which,
        "-" if row.records_per_s is None or row.gone else f"{row.records_per_s:,.0f}",
        "-" if row.lag is None else f"{row.lag:,}",
        "-" if row.batch_ms is None else f"{row.batch_ms / 1000:.2f} s",
        byte_text(row.state_bytes),
    )


TITLES = ("instance", "tasks", "which", "records/s", "lag", "batch", "state")


def plain_rows(rows: Sequence[Row]) -> list[str]:
    """The table as text."""
    if not rows:
        return ["  no members"]
    return align([TITLES, *(_cells(row) for row in rows)], indent="  ")


def short_line(row: Row) -> str:
    """`A 12 tasks, 1,811/s, lag 402`, for one line every few seconds."""
    if row.gone or not row.which:
        return f"{row.name} {row.note or 'no tasks'}"
    rate = f", {row.records_per_s:,.0f}/s" if row.records_per_s is not None else ""
    note = f" ({row.note})" if row.note else ""
    return f"{row.name} {row.tasks} tasks{rate}, lag {row.lag or 0:,}{note}"


def group_line(view: GroupView) -> str:
    """`flight-delays   Stable   epoch 4   2 members   24 of 24 tasks owned   lag 779`."""
    epoch = "classic group" if view.group_type == "classic" else f"epoch {view.group_epoch}"
    if view.assignment_epoch != view.group_epoch:
        epoch += f" (assignment {view.assignment_epoch})"
    members = f"{len(view.members)} member" + ("" if len(view.members) == 1 else "s")
    owned = f"{view.assigned} of {view.tasks} tasks owned"
    return f"{view.group_id}   {view.state}   {epoch}   {members}   {owned}   lag {view.lag:,}"


def table(rows: Sequence[Row]) -> RenderableType:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SQUARE, header_style="dim", border_style="dim", expand=True)
    for title in TITLES:
        drawn.add_column(
            title,
            justify="left" if title in ("instance", "which") else "right",
            no_wrap=title != "which",
            ratio=1 if title == "which" else None,
        )
    for row in rows:
        style = "dim" if row.gone else "yellow" if row.note else ""
        drawn.add_row(*(Text(cell) for cell in _cells(row)), style=style)
    return drawn
