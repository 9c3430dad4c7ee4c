"""Generated pages of docs/reference: commands, settings, errors, advice, limits, compatibility, APIs and metrics.

`python -m headrace.cli.docs --write`.

Without `--write` it says whether they are up to date (exit code 1 when not); a test does the same.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import click

from headrace.broker.requests.api_table import SERVED
from headrace.cli.advice.advise import RULES, TEMPLATES
from headrace.cli.command_table import COMMANDS
from headrace.cli.commands.explain import error_codes, error_page, rule_page
from headrace.cli.configuration_page import configuration_page
from headrace.cli.exporter.snapshot_families import METRICS
from headrace.cli.limitations_page import limitations_page
from headrace.cli.main import headrace
from headrace.protocol.api_keys import SUPPORTED

__all__ = ["broker_apis_page", "cli_page", "compatibility_page", "errors_page", "exporter_metrics_page", "pages"]

_TEMPLATES = Path(__file__).with_name("page_templates")
HELP_WIDTH = 100
# The working tree that this package is imported from: pages are written in a checkout, never in an installation.
_REPOSITORY = Path(__file__).resolve().parents[3]
_HEAD = """# Commands

This page is written by `python -m headrace.cli.docs --write`.

Data is written to stdout, messages to stderr. Colour is used only on a terminal. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 no connection, 130 interrupted; `verify` has 0 equal, 4 differs, 5 cannot tell. A command without arguments
prints its help. Without `--bootstrap-server` the variable `HEADRACE_BOOTSTRAP_SERVERS` is used, else `localhost:9092`.

An error says what failed and how to fix it; `headrace explain CODE` prints its page ([all codes](errors/index.md)), and
`headrace --debug …` adds the traceback. With `--json` a command that succeeds prints one document on stdout. A
command that fails prints the error as the last line of stderr, one JSON object, and leaves stdout empty. A command on
several groups or partitions prints its document also when some of them failed, with the code of each error, and one
such line for each.

```json
{"error": {"code": "topic-missing", "message": "…", "fix": "…", "facts": {"topic": "flights"}, "exit_code": 1}}
```

`where` and `why` are present where they are known. TAB completes commands and options after one of:

```
echo 'eval "$(headrace completion bash)"' >> ~/.bashrc
echo 'eval "$(headrace completion zsh)"' >> ~/.zshrc
headrace completion fish > ~/.config/fish/completions/headrace.fish
```
"""

_ADVICE_HEAD = """# Advice on a client's configuration

This page is written by `python -m headrace.cli.docs --write`.

`headrace advise FILE` reads the configuration of a consumer or of Kafka Streams (properties or JSON, names of Java's
client or of librdkafka), asks for the kind of group if the file does not say it, takes what you tell of your situation
(`--worst-batch`, `--longest-pause`, `--restart`, `--deploy`, `--hands-over`, `--state-size`, `--client-version`), and
prints findings, each with its reason, and a corrected file beside yours. It connects to no broker. `--check` writes
nothing and ends with exit code 4 when there are errors or risks, for a build that holds its services to it.

An *error* is refused, or breaks the group; a *risk* works until a bad day; a *hint* could be calmer.

## The four stages

| stage | what is there | what the next one buys |
|---|---|---|
| 1 | defaults, and times raised after each incident | a change stops only what moves, and a pause is no death |
| 2 | times that fit, cooperative moves, rebalances watched | a slow handler causes no rebalance |
| 3 | work apart from polls (`ParallelConsumer`), commits of what is finished | a restart causes no rebalance |
| 4 | instances keep their names; a platform hands the configuration out | no manual work is left |

| template | stage | what it is |
|---|---|---|
{templates}
## The rules

`headrace explain RULE` prints one of them.

"""


def pages() -> dict[str, str]:
    """Path below docs/ → what should stand there."""
    return {
        "reference/advice.md": advice_page(),
        "reference/broker-apis.md": broker_apis_page(),
        "reference/cli.md": cli_page(),
        "reference/exporter-metrics.md": exporter_metrics_page(),
        "reference/compatibility.md": compatibility_page(_REPOSITORY),
        "reference/limitations.md": limitations_page(_template("limitations")),
        "reference/settings.md": configuration_page(),
        "reference/errors/index.md": errors_page(),
    }


def cli_page() -> str:
    """Return the page of the CLI: one section per command, in the order of `headrace --help`."""
    parts = [_HEAD, _section("headrace", headrace, None)]
    # A fixed width: click would take the terminal's, and the page would differ between machines.
    root = click.Context(headrace, info_name="headrace", terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
    for name in COMMANDS:
        command = headrace.get_command(root, name)
        if command is not None:
            parts.append(_section(f"headrace {name}", command, root))
    return "\n".join(parts)


def _section(title: str, command: click.Command, parent: click.Context | None) -> str:
    name = title.rpartition(" ")[2]
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    return f"## {title}\n\n```\n{command.get_help(context)}\n```\n"


def advice_page() -> str:
    """The four stages, the templates, and the page of each rule, in the order in which they are asked."""
    templates = "".join(
        f"| `--template {name}` | {found.stage} | {found.what} |\n" for name, found in TEMPLATES.items()
    )
    # Pages begin with a title of level 1; below "The rules" it becomes level 3.
    rules = "\n".join((rule_page(rule.name) or "").replace("# ", "### ", 1) for rule in RULES)
    return _ADVICE_HEAD.format(templates=templates) + rules


def errors_page() -> str:
    """A table of all codes with their first sentence."""
    rows = []
    for code in error_codes():
        # A page is a title, an empty line, the meaning.
        meaning = (error_page(code) or "").split("\n\n")[1]
        rows.append(f"| [{code}](../../../src/headrace/cli/errors/{code}.md) | {meaning} |")
    head = (
        "# Errors\n\nThis page is written by `python -m headrace.cli.docs --write`. "
        "`headrace explain CODE` prints a page.\n\n| code | meaning |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """The exit code: 0 when the pages are, or now are, up to date."""
    directory = _REPOSITORY / "docs"
    stale = [name for name, text in pages().items() if _read(directory / name) != text]
    if "--write" in arguments:
        for name in stale:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(pages()[name], encoding="utf-8")
        return 0
    for name in stale:
        click.echo(f"docs/{name} is not up to date: python -m headrace.cli.docs --write", err=True)
    return 1 if stale else 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def compatibility_page(repository: Path) -> str:
    """Return the page; the versions are those of `.ci/matrix.toml` in the working tree `repository`."""
    matrix = tomllib.loads((repository / ".ci" / "matrix.toml").read_text(encoding="utf-8"))
    versions = {name: ", ".join(matrix[name]) for name in ("python", "pyspark", "kafka")}
    names = {"python": "Python", "pyspark": "PySpark", "kafka": "Apache Kafka"}
    ran = [
        f"| {names[axis]} {', '.join(listed)} | {row['tests']} | {row['result']} |"
        for row in matrix["ran"]
        for axis, listed in row["versions"].items()
    ]
    return _template("compatibility").format(default=matrix["default"], ran="\n".join(ran), **versions)


def broker_apis_page() -> str:
    """Return the page: every API of the broker's table with its advertised versions, then notes on behaviour."""
    rows = []
    for key in SERVED:
        versions = SUPPORTED[key]
        shown = str(versions.lowest) if versions.lowest == versions.highest else f"{versions.lowest}-{versions.highest}"
        rows.append(f"| {key.value} | {''.join(part.capitalize() for part in key.name.split('_'))} | {shown} |")
    return _template("broker_apis").format(count=len(rows), rows="\n".join(rows))


def exporter_metrics_page() -> str:
    """Return the page: every family of `headrace exporter`."""
    rows = "\n".join(
        f"| `{metric.name}` | {', '.join(f'`{label}`' for label in metric.labels) or '–'} | {metric.kind} "
        f"| {metric.help} |"
        for metric in METRICS.values()
    )
    return _template("exporter_metrics").format(rows=rows)


def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
