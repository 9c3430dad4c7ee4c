"""Types of NumPy arrays for annotations, named after their elements.

Kernels read and write arrays by element, and an element of the wrong width is a wrong result or a second compilation.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "ByteArray", "FloatArray", "Int32Array", "Int64Array", "IntegerArray", "UInt64Array"]

ByteArray: TypeAlias = NDArray[np.uint8]
BoolArray: TypeAlias = NDArray[np.bool_]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
UInt64Array: TypeAlias = NDArray[np.uint64]
FloatArray: TypeAlias = NDArray[np.float64]
IntegerArray: TypeAlias = NDArray[np.integer]
"""Integers of any width: row numbers, sizes."""
