"""Types of NumPy arrays for annotations, named after their elements.

Kernels read and write arrays by element, and an element of the wrong width is a wrong result or a second compilation.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BoolArray",
    "Boolean",
    "ByteArray",
    "FloatArray",
    "Int32Array",
    "Int64Array",
    "Integer",
    "IntegerArray",
    "UInt64Array",
]

ByteArray: TypeAlias = NDArray[np.uint8]
BoolArray: TypeAlias = NDArray[np.bool_]
Boolean: TypeAlias = bool | np.bool_
"""One truth value in a kernel."""
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
UInt64Array: TypeAlias = NDArray[np.uint64]
FloatArray: TypeAlias = NDArray[np.float64]
Integer: TypeAlias = int | np.int64 | np.uint64
"""One integer in a kernel: numba infers the width."""
IntegerArray: TypeAlias = NDArray[np.integer]
"""Integers of any width: row numbers, sizes."""
