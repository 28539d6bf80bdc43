"""The walk over a step, on programs small enough to work out by hand."""

import math
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.backends.tensorflow.backend import uses_onednn
from autofit.backends.tensorflow.execution import Buffer, Operation, peak, workspace_bytes
from autofit.records.trial import FitConfig
from autofit.search.memory import host_bytes_by_part
from tests.fakes import DESCRIPTION, MIB

KIB = 1024


def made(*sizes, part="activations"):
    return [Buffer(size * KIB, part) for size in sizes]


def operation(reads=(), makes=(), after=(), reuses=(), workspace=0, seconds=1.0):
    return Operation(list(reads), list(makes), after, list(reuses), workspace * KIB, seconds)


@pytest.mark.parametrize(("reuse", "expected"), [(False, 200 * KIB), (True, 100 * KIB)])
def test_a_buffer_lives_until_its_last_reader_has_ended(reuse, expected):
    a, b, c = made(100, 100, 100)
    operations = (
        operation(makes=[a]),
        operation([a], [b], after=(0,), reuses=[a] if reuse else ()),
        operation([b], [c], after=(1,), reuses=[b] if reuse else ()),
    )
    assert sum(peak(operations, [c], threads=1).values()) == expected


def test_what_is_kept_for_the_backward_pass_is_live_at_the_turn():
    (x, y), (dx,) = made(100, 50), made(100, part="gradients")
    operations = (
        operation(makes=[x]),
        operation([x], [y], after=(0,)),
        operation([x, y], [dx], after=(1,), reuses=[x], workspace=10),  # of the size of x, which nothing else reads
    )
    assert peak(operations, [x, dx], threads=1) == {
        "activations": 150 * KIB,
        "gradients": 100 * KIB,
        "temporaries": 10 * KIB,
    }
    assert sum(peak(operations, [dx], threads=1).values()) == 160 * KIB


def test_two_threads_hold_two_workspaces_at_once():
    operations = [operation(workspace=500), operation(workspace=500)]
    assert [sum(peak(operations, [], threads).values()) for threads in (1, 2)] == [500 * KIB, 1000 * KIB]


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_peak_is_between_the_largest_buffer_and_all_of_them(seed, threads):
    chance = random.Random(seed)
    buffers = made(*(chance.randrange(1, 100) for _ in range(chance.randrange(1, 30))))
    operations = []
    for number, buffer in enumerate(buffers):
        read = {chance.randrange(number) for _ in range(min(number, 2))}
        operations.append(
            operation([buffers[n] for n in read], [buffer], read, [buffers[n] for n in read], seconds=chance.random())
        )
    found = sum(peak(operations, buffers[-1:], threads).values())
    assert max(buffer.size_bytes for buffer in buffers) <= found <= sum(buffer.size_bytes for buffer in buffers)
    assert found <= sum(peak([replace(op, reuses=[]) for op in operations], buffers[-1:], threads).values())


def test_half_precision_is_multiplied_in_single():
    assert workspace_bytes("MatMul", [(8, 4), (4, 2)], [(8, 2)], 2) == (128, 32, 64)
    assert workspace_bytes("MatMul", [(8, 4), (4, 2)], [(8, 2)], 4) == ()


def test_patches_of_volumes_are_gathered_where_they_are_not_much_larger_than_the_tensors():
    def patches(depth):
        return workspace_bytes(
            "Conv3DBackpropFilterV2", [(8, 16, 16, 16, 4), (5,), (8, 16, 16, 16, depth)], [(3, 3, 3, 4, depth)], 4
        )

    assert patches(1) == ()
    assert len(patches(512)) == 1


def test_kernels_of_onednn_have_no_workspace():
    gradient = ("Conv2DBackpropFilter", [(8, 32, 32, 3), (4,), (8, 32, 32, 16)], [(3, 3, 3, 16)])
    assert workspace_bytes(*gradient, 2, onednn=True) == ()
    patches, image, kernel = 32 * 32 * 27, 32 * 32 * 16, 27 * 16
    images = math.ceil(30 * MIB // 2 / (patches + image + kernel))  # as many as fill 30 MiB
    assert workspace_bytes(*gradient, 2, onednn=False) == (2 * images * patches,)


@pytest.mark.parametrize("module", [{}, {"_pywrap_util_port": object()}])
def test_a_tensorflow_that_does_not_report_onednn_is_described_as_unknown(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "tensorflow.python.util", SimpleNamespace(**module))
    assert uses_onednn() is None


def test_host_memory_is_that_of_process_queue_and_workers():
    none, threads, processes = (
        host_bytes_by_part(DESCRIPTION, config, 7 * MIB)
        for config in (FitConfig(8, 1, 10, False), FitConfig(8, 2, 10, False), FitConfig(8, 2, 10, True))
    )
    batch = 8 * DESCRIPTION.sample_bytes
    assert none == {"process": 100 * MIB, "step": 7 * MIB, "queue": 3 * batch, "worker_processes": 0}
    assert threads["queue"] == (11 + 3 + 2) * batch
    assert processes["worker_processes"] > 2 * 2 * batch
