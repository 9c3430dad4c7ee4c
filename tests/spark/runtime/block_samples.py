"""Arrow arrays of bytes."""

import pyarrow as pa


def binary(values):
    return pa.array(values, pa.binary())
