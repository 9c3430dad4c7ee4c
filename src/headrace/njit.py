"""Numba's `njit` with the type that numba does not declare: a compiled function has the signature of its Python text.

So mypy checks the callers of kernels. Modules of kernels import it from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Kernel = TypeVar("Kernel", bound=Callable[..., object])

    def njit(**_options: object) -> Callable[[Kernel], Kernel]: ...

else:
    from numba import njit

__all__ = ["njit"]
