"""One application instance, as `headrace run` and `headrace demo` start it: a process of its own.

`python -m headrace.cli.instance APP …` loads the application, says through `--report FILE` where its state lies (there
`status.json` is found) or why it failed, and runs. Standard input is a socket, the parent's lifeline: at its end the
parent is gone, however it went, and the instance stops gracefully. Back through it goes how brokers are reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.application import configure_by_file, load_application
from headrace.cli.terminal import end_with
from headrace.errors import BrokerError, CannotConnect, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.spark.streams_app import StreamsApp

__all__ = ["command"]


@click.command()
@click.argument("application")
@click.option("--name", required=True)
@click.option("--report", type=click.Path(path_type=Path), required=True)
@click.option("--own-state-dir", is_flag=True)
@click.option("--state-dir", type=click.Path(path_type=Path))
@click.option("--bootstrap-server", "bootstrap_servers")
@click.option("--config", "config_file", type=click.Path(path_type=Path))
@click.option("--create-topics", type=int, help="Create missing topics with this many partitions.")
@click.option("--until", type=click.Choice(["stopped", "caught-up"]), default="stopped")
def command(
    application: str,
    name: str,
    report: Path,
    own_state_dir: bool,
    state_dir: Path | None,
    bootstrap_servers: str | None,
    config_file: Path | None,
    create_topics: int | None,
    until: str,
) -> None:
    """One instance of an application; started by `headrace run` and `headrace demo`."""
    # Before the application is loaded, which takes seconds: a parent that is killed in between must not leave a Spark
    # driver behind. A daemon thread, because it ends only with the process.
    threading.Thread(target=_end_with_the_parent, name="lifeline", daemon=True).start()
    try:
        # 1. Load and configure. What the command line gives overrides the program.
        app = load_application(application)
        configure_by_file(app, bootstrap_servers=bootstrap_servers, config_file=config_file)
        if state_dir is not None:
            app.state_dir = state_dir
        # 2. Instances of one host must not share a state directory: stores are locked per process, and the second
        #    instance would be refused. Without `--own-state-dir` (one instance) the state stays where `python
        #    flights.py` keeps it.
        elif own_state_dir:
            app.state_dir = app.state_dir / name
        # 3. The table of `headrace run` finds an instance among the members by its client id, and people read it in
        #    logs of the broker.
        if own_state_dir and not app.config.get("client.id"):
            app.config["client.id"] = f"{app.name}-{name}"
        # 4. Report to the parent before anything can wait: it watches the group with these settings while the
        #    application starts.
        _send_access(app.security.to_settings())
        _report(
            report, {"group": app.name, "state_dir": str(app.state_dir), "bootstrap_servers": app.bootstrap_servers}
        )
        if create_topics is not None:
            _create_topics(app, create_topics)
        _run(app, until, report)
    except HeadraceError as error:
        traceback.print_exc()
        # The class does not survive JSON; it decides the parent's exit code (3 or 1).
        kind = "no-connection" if isinstance(error, CannotConnect) else "failed"
        _report(report, {"error": error.render(), "code": error.code, "kind": kind})
        end_with(1)
    except KeyboardInterrupt:
        end_with(130)
    except Exception as error:  # noqa: BLE001 - reported to the parent, which shows it
        traceback.print_exc()
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        _report(
            report,
            {
                "error": "",
                "code": "unexpected",
                "kind": "failed",
                "text": f"{type(error).__name__}: {error}",
                # A missing package is reported by name, so that the parent raises ModuleNotFoundError itself and prints
                # the pip command.
                "missing": missing,
            },
        )
        end_with(1)


def _create_topics(app: StreamsApp, partitions: int) -> None:
    """`--dev` consents to every topic that the program names."""
    from headrace.spark.runtime.user_topics import create_topics

    with app.network_client(f"{app.name}-topics") as client:
        created = create_topics(client, app.compile(), partitions=partitions)
    for topic, count in created.items():
        click.echo(f"Created topic {topic} with {count} partitions.", err=True)


def _run(app: StreamsApp, until: str, report: Path) -> None:
    from headrace.spark.foreground import run_in_foreground

    def waiting(missing: Sequence[BrokerError]) -> None:
        _report(report, {"waiting": [f"{error.message}; {error.fix}" for error in missing]})

    run_in_foreground(app, "caught-up" if until == "caught-up" else "stopped", start=app.start, on_waiting=waiting)


def _report(report: Path, document: dict[str, object]) -> None:
    """Add to the report, which is replaced as a whole."""
    # One writer, which never runs twice at the same time for one name, hence no lock; the parent reads at any moment,
    # hence the rename: it sees the old document or the new one.
    known: dict[str, object] = json.loads(report.read_text()) if report.exists() else {}
    aside = report.with_suffix(".new")
    aside.write_text(json.dumps(known | document))
    aside.replace(report)


def _send_access(settings: Mapping[str, str]) -> None:
    """Send the connection settings to the parent only, which watches the group. No file and no log has them."""
    with contextlib.suppress(OSError):  # no socket: started by hand
        socket.socket(fileno=os.dup(0)).sendall(json.dumps(settings).encode() + b"\n")


def _end_with_the_parent() -> None:
    with contextlib.suppress(OSError):
        # The parent never writes; `read` returns nothing but the end of the file, when its end of the socket pair is
        # closed, also by the kernel after SIGKILL. PR_SET_PDEATHSIG would do the same on Linux only, and bound to the
        # parent's thread.
        while os.read(0, 4096):
            pass
    # A signal to itself instead of `sys.exit`: this is not the main thread, and SIGTERM takes the way of every graceful
    # stop (finish the micro-batch, commit, leave).
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    command(prog_name="headrace-instance")
