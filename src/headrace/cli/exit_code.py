"""How a program of ours ends: by its exit code, also after an interruption."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["end_with"]


def end_with(code: int) -> NoReturn:
    """Ends the program with this exit code.

    Under `python -m`, CPython ends by SIGINT instead when a KeyboardInterrupt ever went through code that was executed
    from a string, even if caught (`dataclass` and `namedtuple` make their methods that way, so an interrupt
    in the middle of an import is enough). Executing another string makes it forget that.
    """
    exec("")
    sys.exit(code)
