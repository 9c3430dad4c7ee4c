"""Causes of failed Spark jobs, extracted from the exception without its 60 Java frames."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from headrace.errors import HeadraceError, UserCodeError

__all__ = ["FailureKind", "is_data_error", "kind_of", "raised_by_user", "reason_in", "reason_of", "user_error"]

FailureKind = Literal["worker-lost", "cancelled", "sql"]
_LOST = re.compile(
    r"Python worker exited unexpectedly|Python worker \S*crash|EOFException|Connection reset|Broken pipe|ClosedChannel"
    r"|ExecutorLostFailure|SocketException|IOException: Stream closed|PythonWorkerFactory"  # the daemon is gone
)
_CANCELLED = re.compile(r"cancelled|canceled|TaskKilled|killed by job group", re.IGNORECASE)
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\][^\n]*")
# Of an executor that ran no Python: "Lost task 0.0 in stage 1.0 (TID 0) (host executor 0): java.io.IOException: …"
_OF_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)\n]*\): ([^\n]+)")
_DATA_EXCEPTION = re.compile(r"\bSQLSTATE: 22[0-9A-Z]{3}\b")
_LIBRARIES = (str(Path(__file__).parents[2]), *(f"/{name}/" for name in ("pyspark", "pyarrow", "pandas", "numpy")))
_PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Warning)\b:?[^\n]*)$", re.MULTILINE)


def kind_of(error: BaseException) -> FailureKind:
    """Classify an error: a lost worker and a cancelled job do not concern the records, any other error may."""
    text = str(error)
    # Texts of Spark's exceptions are all there is: py4j carries no types of causes. A condition in brackets
    # ([DIVIDE_BY_ZERO]) is Spark SQL's own and wins over words that a value may contain.
    if _CONDITION.search(text) is None or "PYTHON" in text[:200]:
        if _CANCELLED.search(text) and "Traceback" not in text:
            return "cancelled"
        if _LOST.search(text) and "Traceback" not in text:
            return "worker-lost"
    elif _CANCELLED.search(text[:400]) and "Job" in text[:400]:
        return "cancelled"
    return "sql"


def is_data_error(error: BaseException) -> bool:
    """Whether a value caused it: SQLSTATE class 22 ("data exception"), or an exception of a Python function on rows."""
    text = str(error)
    return _DATA_EXCEPTION.search(text) is not None or ("PythonException" in text and "Traceback" in text)


def reason_of(error: BaseException) -> str:
    """One line: Spark's own condition and sentence, or the last line of the user's Python traceback."""
    text = str(error)
    if not type(error).__module__.startswith(("pyspark", "py4j", "headrace")):
        return f"{type(error).__name__}: {error}"
    return reason_in(text) or type(error).__name__


def reason_in(text: str) -> str:
    """The same of an exception's message."""
    python = _PYTHON.findall(text)
    # The last line of a traceback is the exception; Spark puts its own frames around it.
    if python and "Traceback" in text:
        return str(python[-1]).strip()
    condition = _CONDITION.search(text)
    task = _OF_TASK.search(text)
    first = text.strip().splitlines()[0] if text.strip() else ""
    line = condition.group(0) if condition else task.group(1) if task else first
    return line.split(" SQLSTATE")[0].strip()[:500]


def user_error(error: BaseException, what: str, *, where: str = "") -> HeadraceError:
    """The error a user sees; the original is its cause."""
    if isinstance(error, HeadraceError):
        return error
    raised = UserCodeError("user-code", f"{what}: {reason_of(error)}", "", where=where)
    raised.__cause__ = error
    return raised


@contextlib.contextmanager
def raised_by_user(what: str, *, where: str, **facts: object) -> Iterator[None]:
    """Raise UserCodeError for an exception of the user's code in the block.

    Args:
        what: What failed, such as "The processor Count failed in init".
        where: "file:line" of the user's call that passed the code.
        facts: More of what is known.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        # The error crosses processes as text, so the place in the user's code belongs to the message.
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(x in f.filename for x in _LIBRARIES)]
        place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
        raise UserCodeError("user-code", f"{what}: {reason_of(error)}{place}", "", where=where, **facts) from error
