"""The walk over a step, on programs small enough to work out by hand."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.backends.tensorflow.execution import (
    Buffer,
    Operation,
    peak,
    workspace_bytes,
)

KIB = 1024


def made(*sizes):
    return [Buffer(size * KIB, "activations") for size in sizes]


def operation(reads=(), makes=(), after=(), overwrites=False, seconds=1.0):
    return Operation(list(reads), list(makes), after, overwrites, seconds)


@pytest.mark.parametrize(
    ("overwrites", "expected"), [(False, 200 * KIB), (True, 100 * KIB)]
)
def test_a_buffer_lives_until_its_last_reader_has_ended(overwrites, expected):
    a, b, c = made(100, 100, 100)
    operations = (
        operation(makes=[a]),
        operation([a], [b], (0,), overwrites),
        operation([b], [c], (1,), overwrites),
    )
    assert peak(operations, [c], threads=1).total() == expected


def test_two_threads_hold_two_workspaces_at_once():
    operations = [operation(makes=made(500)), operation(makes=made(500))]
    assert [peak(operations, [], threads).total() for threads in (1, 2)] == [
        500 * KIB,
        1000 * KIB,
    ]


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_peak_is_between_the_largest_buffer_and_all_of_them(seed, threads):
    chance = random.Random(seed)
    buffers = made(*(chance.randrange(1, 100) for _ in range(chance.randrange(1, 30))))
    operations = []
    for number, buffer in enumerate(buffers):
        read = {chance.randrange(number) for _ in range(min(number, 2))}
        operations.append(
            operation([buffers[n] for n in read], [buffer], read, True, chance.random())
        )
    sizes = [buffer.size_bytes for buffer in buffers]
    found = peak(operations, buffers[-1:], threads).total()
    without = peak(
        [replace(op, overwrites=False) for op in operations], buffers[-1:], threads
    ).total()
    assert max(sizes) <= found <= without <= sum(sizes)


def test_kernels_of_onednn_have_no_workspace():
    gradient = (
        "Conv2DBackpropFilter",
        [(8, 32, 32, 3), (4,), (8, 32, 32, 16)],
        [(3, 3, 3, 16)],
    )
    assert workspace_bytes(*gradient, 2, onednn=True) == []
    patches, image, kernel = 32 * 32 * 27, 32 * 32 * 16, 27 * 16
    images = math.ceil(
        30 * 2**20 // 2 / (patches + image + kernel)
    )  # as many as fill 30 MiB
    assert workspace_bytes(*gradient, 2, onednn=False) == [2 * images * patches]
