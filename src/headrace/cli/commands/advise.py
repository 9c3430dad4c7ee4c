"""`headrace advise`: findings on a client's configuration, with reasons, and a corrected file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from headrace.cli.advice.advise import TEMPLATES, advice_document, advice_lines, advise, situation_words, template_text
from headrace.cli.advice.given_configuration import (
    Client,
    GivenConfiguration,
    Version,
    client_version,
    corrected_text,
    read_configuration,
)
from headrace.cli.advice.situation import Deploy, GroupKind, Situation, duration_ms, size_bytes
from headrace.cli.options import json_option
from headrace.cli.terminal import data, echo_err, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]

_KINDS: tuple[GroupKind, ...] = get_args(GroupKind)
_DEPLOYS: dict[str, Deploy] = {
    "kept-names": "kept-names",
    "changing-names": "changing-names",
    "statefulset": "kept-names",
    "deployment": "changing-names",
}
# The first line of every file this command writes; a file without it is never overwritten.
_OURS = "# Advised by headrace advise."
# As `verify` uses 4 for "differs": apart from 1 (failed) and 2 (wrong usage), so that a build can tell findings from a
# command that could not run.
ADVICE_TO_FOLLOW = 4


class _Amount(click.ParamType[int]):
    """A number with a unit behind it, as `read` takes it."""

    def __init__(self, name: str, read: Callable[[str], int]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_DURATION = _Amount("duration", duration_ms)
_SIZE = _Amount("size", size_bytes)


class _Release(click.ParamType[Version]):
    """A client's release, as `client_version` takes it."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Version:
        try:
            return value if isinstance(value, tuple) else client_version(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("advise")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--group", "kind", type=click.Choice(_KINDS), help="The kind of group. [default: from FILE, or prompted]")
@click.option("--worst-batch", type=_DURATION, metavar="TIME", help="From a poll to the next on the worst day: 240s.")
@click.option("--longest-pause", type=_DURATION, metavar="TIME", help="Of the whole process, as by its collector.")
@click.option("--restart", type=_DURATION, metavar="TIME", help="From an instance's end to its successor's start.")
@click.option(
    "--deploy",
    type=click.Choice(_DEPLOYS),
    help="Whether an instance keeps its name over a restart (a StatefulSet does, a Deployment does not).",
)
@click.option("--hands-over", is_flag=True, help="Records are handed to other threads behind the poll.")
@click.option("--state-size", type=_SIZE, metavar="SIZE", help="State of an instance of a streams group: 20GB.")
@click.option("--client", type=click.Choice(["java", "librdkafka"]), help="Client of FILE. [default: detected]")
@click.option(
    "--client-version", "release", type=_Release(), metavar="X.Y", help="The client's release. [default: a current one]"
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="The corrected file.")
@click.option("--check", is_flag=True, help="Write nothing; exit code 4 when there are errors or risks.")
@click.option("--template", type=click.Choice(TEMPLATES), help="Print a configuration to hand out, nothing else.")
@json_option
def command(
    file: Path | None,
    kind: GroupKind | None,
    worst_batch: int | None,
    longest_pause: int | None,
    restart: int | None,
    deploy: str | None,
    hands_over: bool,
    state_size: int | None,
    client: Client | None,
    release: Version | None,
    output: Path | None,
    check: bool,
    template: str | None,
    as_json: bool,
) -> int:
    """Read a client's configuration and a described situation; print what to change, why, and a corrected file.

    FILE has Java's properties or JSON, with the names of Java's client or of librdkafka. What it costs you to follow is
    shown, too. Each finding ends with the name of its rule: headrace explain RULE prints its page.

    \b
      headrace advise consumer.properties --worst-batch 240s --deploy statefulset
      headrace advise librdkafka.json --group classic --longest-pause 8s --check
      headrace advise --template k8s-static
    """
    if template is not None:
        data(template_text(template, client or "java").rstrip())
        return 0
    if file is None:
        raise click.UsageError("Give FILE, or --template NAME.")
    given, text = read_configuration(file, client, release)
    situation = Situation(
        kind=kind or _kind(given),
        worst_batch_ms=worst_batch,
        longest_pause_ms=longest_pause,
        restart_ms=restart,
        deploy=_DEPLOYS[deploy] if deploy else None,
        hands_over=hands_over,
        state_bytes=state_size,
    )
    return _advise(file, given, text, situation, output, check=check, as_json=as_json)


def _kind(given: GivenConfiguration) -> GroupKind:
    """Return the kind of group: from the file, else prompted on a terminal, else classic, the clients' default."""
    # Only "consumer" and "streams" appear in group.protocol in practice; classic groups leave it out. A missing setting
    # is therefore no statement, and the question is asked where a person can answer it.
    said = (given.given("group.protocol") or "").lower()
    for kind in _KINDS:
        if said == kind:
            return kind
    if sys.stdin.isatty() and sys.stderr.isatty():
        asked: GroupKind = click.prompt(
            "Which kind of group is it for", type=click.Choice(_KINDS), default="classic", err=True
        )
        return asked
    echo_err("It does not say which kind of group it is for: taken for a classic one (--group says otherwise).")
    return "classic"


def _advise(
    file: Path,
    given: GivenConfiguration,
    text: str,
    situation: Situation,
    output: Path | None,
    *,
    check: bool,
    as_json: bool,
) -> int:
    advice = advise(given, situation)
    written = None
    if advice.corrected.values != given.values and not check:
        written = _written(file, output, corrected_text(text, given, advice.corrected), given)
    if as_json:
        print_json(advice_document(advice, situation, str(file), str(written) if written else None))
    else:
        data(f"{file.name}   read as a configuration of {_client_words(given)}; {situation_words(situation)}")
        for line in advice_lines(advice):
            data(line)
        if not advice.findings:
            data("  Nothing to say against it.")
        data(f"Stage {advice.stage} of 4 (docs/reference/advice.md says what the next one buys you).")
        if written is not None:
            echo_err(f"Wrote {written}.")
    serious = any(finding.level != "hint" for finding in advice.findings)
    return ADVICE_TO_FOLLOW if check and serious else 0


def _client_words(given: GivenConfiguration) -> str:
    return given.client if given.version is None else f"{given.client} {given.version[0]}.{given.version[1]}"


def _written(file: Path, output: Path | None, text: str, given: GivenConfiguration) -> Path:
    """Never over a file that is not ours; with the rights of the file it corrects, since it holds the same secrets."""
    advised = file.with_name(f"{file.stem}.advised{file.suffix}")
    target = output or advised
    if given.form == "properties":
        text = f"{_OURS}\n{text}"
        ours = not target.exists() or target.read_text(encoding="utf-8", errors="replace").startswith(_OURS)
    else:
        # JSON has no comment to sign with: the name we give is the sign.
        ours = not target.exists() or target == advised
    if not ours:
        raise click.UsageError(f"{target} is there and was not written by this command; name another by --output.")
    # Permissions before content: with `write_text` first, secrets would be readable under the umask's mode for a
    # moment.
    mode = file.stat().st_mode & 0o777
    target.touch(mode=mode)
    target.chmod(mode)
    target.write_text(text, encoding="utf-8")
    return target
