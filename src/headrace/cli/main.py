"""`headrace`: the entry point, and how a command ends.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no connection (`verify`: 0 equal, 4 differs, 5 cannot tell), 130
interrupted. An error is printed with its fix and without a traceback; `--debug` adds the traceback. With `--json` the
error is one JSON object on one line of stderr, and stdout stays free for the document of a command that succeeds.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from headrace import __version__
from headrace.cli.command_table import CommandTable, OutputClosed
from headrace.cli.terminal import echo_err, end_with, print_error
from headrace.errors import CannotConnect, HeadraceError
from headrace.extras import EXTRAS, missing_package

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DONE", "FAILED", "INTERRUPTED", "NO_CONNECTION", "WRONG_USAGE", "headrace", "main", "run"]

# 130 is 128 + SIGINT, what a shell reports for a program that Ctrl-C ended, and 2 is click's own code for wrong usage.
# 3 is ours: a script that waits for a broker can repeat on 3 and give up on 1. 4 and 5 belong to commands with a
# verdict (`verify`, `advise --check`), which return them as their result.
DONE, FAILED, WRONG_USAGE, NO_CONNECTION, INTERRUPTED = 0, 1, 2, 3, 130


@click.group(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="headrace", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="HEADRACE_DEBUG", help="Show the traceback of an error as well.")
@click.pass_context
def headrace(context: click.Context, debug: bool) -> None:
    """Kafka Streams for PySpark: start the job twice and the two share the work.

    New here: headrace demo
    """
    context.obj = {"debug": debug}


def main() -> None:
    """Run the installed `headrace` command."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # `headrace broker` sets up its own log
    end_with(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("HEADRACE_DEBUG"))
    try:
        # Not standalone: click would print errors in its own form, exit by itself, and discard what a command returns.
        # Here all three are ours, so that `--json` changes the form of every error and a command's return value is its
        # exit code.
        result = headrace.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
    except click.UsageError as error:
        return _fail_usage(error, arguments)
    except (KeyboardInterrupt, click.Abort):
        echo_err("interrupted")
        return INTERRUPTED
    except OutputClosed:
        # Python must not complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:  # noqa: BLE001 - the last net: a person gets a sentence, not forty frames
        _print_traceback(error, debug=debug)
        return _fail(_as_headrace_error(error), arguments)
    # Commands without an outcome of their own return None.
    return result if isinstance(result, int) else DONE


def _fail(error: HeadraceError, arguments: Sequence[str]) -> int:
    # The class decides the exit code, not the error's code: CannotConnect is raised with several codes, and a script
    # should not have to know them.
    exit_code = NO_CONNECTION if isinstance(error, CannotConnect) else FAILED
    print_error(error, exit_code=exit_code, as_json=_asks_for_json(arguments))
    return exit_code


def _fail_usage(error: click.UsageError, arguments: Sequence[str]) -> int:
    """Print wrong usage. A command without any argument gets its help, as click does for groups of commands."""
    # 1. A bare command is a question, not a mistake: `headrace topics` prints its help. The exit code is that of wrong
    #    usage all the same, so that a script whose variables are empty stops.
    context = error.ctx
    if context is not None and _is_bare(context, arguments):
        echo_err(context.get_help())
        return WRONG_USAGE
    # 2. One line: messages of several lines would break `grep` and the one-line JSON form.
    message = " ".join(error.format_message().split())
    fix = f"{context.command_path} --help" if context is not None else "headrace --help"
    # 3. `headrace --topic x topics` is a frequent slip. click reports an unknown option of `headrace` itself there,
    #    which is true and does not help.
    if isinstance(error, click.NoSuchOption) and context is not None and context.parent is None:
        fix = f"options of a command are given after its name; {fix}"
    wrong = HeadraceError("wrong-usage", message, fix)
    print_error(wrong, exit_code=WRONG_USAGE, as_json=_asks_for_json(arguments))
    return WRONG_USAGE


# Options before the command's name (`--debug`) do not count, everything behind it does: a command that was given some
# options and lacks a required one gets its message instead of the help.
def _is_bare(context: click.Context, arguments: Sequence[str]) -> bool:
    if context.parent is None:
        return not arguments
    name = context.info_name or ""
    return name in arguments and list(arguments).index(name) == len(arguments) - 1


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON: by its text, because wrong usage fails before options are parsed."""
    return "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _print_traceback(error: Exception, *, debug: bool) -> None:
    """The traceback without the note of our errors: code, cause and fix are printed below it."""
    if debug:
        described = traceback.TracebackException.from_exception(error)
        if isinstance(error, HeadraceError):
            described.__notes__ = []
        echo_err("".join(described.format()).rstrip())


def _as_headrace_error(error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    # A command declares its extra in `command_table.py` and is checked before it starts. This covers imports that only
    # some paths need, such as those of the user's application. `error.name` may be a submodule (`pyarrow.compute`); the
    # extra is looked up by the package.
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            return missing_package(package, EXTRAS[package])
    return _unexpected(error)


def _unexpected(error: Exception) -> HeadraceError:
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return HeadraceError(
        # 400 characters: exceptions of py4j carry whole Java stack traces in their text, and the traceback is one
        # option away.
        "unexpected",
        message[:400],
        "this is a mistake of ours: headrace --debug … shows where; please report it",
    )


if __name__ == "__main__":
    main()
