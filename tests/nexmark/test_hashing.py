"""Hashes and what is made of them: known values, uniform numbers, powers without the platform's `pow`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.nexmark.hashing import _GAMMA, _MASK, _mix_int, field_hash, integers_below, powers_of_ten, text_slices


def test_hashes_are_those_of_splitmix64() -> None:
    # The first outputs of SplitMix64 with seed 1234567, as published with its reference implementation.
    outputs = [_mix_int((1234567 + i * 0x9E3779B97F4A7C15) % (1 << 64)) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_vectors_and_single_numbers_agree() -> None:
    numbers = np.array([0, 1, 49, 1 << 40], np.int64)
    key = _mix_int((_mix_int(7) + 3 * _GAMMA) & _MASK)
    # `_mix_int` adds the increment first, the vectors have it in their key.
    expected = [_mix_int((int(n) * _GAMMA + key - _GAMMA) & _MASK) for n in numbers]
    assert field_hash(7, numbers, 3).tolist() == expected


@pytest.mark.parametrize(("seed", "field"), [(1, 0), (1, 1), (2, 0)])
def test_numbers_are_uniform(seed: int, field: int) -> None:
    drawn = integers_below(field_hash(seed, np.arange(100_000), field), 10)
    counts = np.bincount(drawn, minlength=10)
    # Chi-square with 9 degrees of freedom: 27.9 is exceeded once in a thousand fair draws.
    assert float(np.sum((counts - 10_000) ** 2 / 10_000)) < 27.9


def test_fields_and_seeds_are_independent() -> None:
    numbers = np.arange(50_000)
    one, other, third = (
        field_hash(seed, numbers, field).astype(np.float64) for seed, field in ((1, 0), (1, 1), (2, 0))
    )
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.02
    assert abs(float(np.corrcoef(one, third)[0, 1])) < 0.02


def test_powers_are_within_two_units_of_pow() -> None:
    hashes = field_hash(3, np.arange(20_000), 0)
    exact = [math.pow(10, 6 * (int(h) >> 11) / (1 << 53)) for h in hashes.tolist()]
    assert np.max(np.abs(powers_of_ten(hashes, 6) / np.array(exact) - 1)) < 4e-15
    edges = powers_of_ten(np.array([0, (1 << 64) - 1], np.uint64), 6)
    assert edges[0] == 1.0
    assert 999_999.999 < edges[1] <= 1_000_000.0


def test_texts_have_the_asked_lengths_and_letters() -> None:
    lengths = np.array([0, 3, 500], np.int64)
    offsets, letters = text_slices(np.array([5, 65_535, (1 << 64) - 1], np.uint64), lengths)
    assert offsets.tolist() == [0, 0, 3, 503]
    assert bytes(letters).isalpha()
    assert bytes(letters).islower()
