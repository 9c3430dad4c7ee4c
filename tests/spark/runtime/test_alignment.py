"""Arrow says nothing about unaligned buffers in a process of ours, and what rows are decoded to is aligned."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from headrace.spark.runtime.rows.rows import decode_rows, encode_rows

UNALIGNED = """
import numpy as np, pyarrow as pa
raw = np.arange(81, dtype=np.uint8)
numbers = pa.Array.from_buffers(pa.int64(), 10, [None, pa.py_buffer(raw[1:])])
assert pa.table({"n": numbers}).group_by("n").aggregate([]).num_rows == 10
"""


def said_on_stderr(code):
    environment = {name: value for name, value in os.environ.items() if name != "ACERO_ALIGNMENT_HANDLING"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_arrow_does_not_warn():
    assert "poorly aligned" in said_on_stderr(UNALIGNED)
    assert said_on_stderr("import headrace.spark.runtime\n" + UNALIGNED) == ""


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_decoded_rows_are_aligned(rows):
    columns = [
        pa.array(np.arange(rows), pa.int64()),
        pa.array([f"k{n}" for n in range(rows)]),
        pa.array(np.arange(rows, dtype=np.int8)),
        pa.array(np.arange(rows, dtype=np.float64)),
        pa.array([True] * rows),
    ]
    decoded = decode_rows(encode_rows(columns), [column.type for column in columns])
    widths = [8, 4, 1, 8, 1]  # of values, or of a string's offsets
    for column, width in zip(decoded, widths, strict=True):
        assert column.buffers()[1].address % width == 0
