"""The liveness walk and the allocator, on programs small enough to work out by hand."""

import itertools
import math
import random
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.backends.tensorflow.backend import uses_onednn
from autofit.backends.tensorflow.memory.allocator import BestFitAllocator, rounded
from autofit.backends.tensorflow.memory.kernels import onednn_takes, workspace_bytes
from autofit.backends.tensorflow.memory.liveness import Operation, Program, Value, peak
from autofit.records.trial import FitConfig
from autofit.search.surrogate.host_memory import host_bytes_by_part
from tests.fakes import DESCRIPTION, MIB

KIB = 1024
REGION = 64 * MIB  # one region, so that nothing but what is asked for is in use


def total(program, **settings):
    return sum(peak(program, **settings).values())


def chain(*, overwrite):
    """a -> b -> c, 100 KiB each; only the next reads each."""
    operations = (
        Operation("a", (), (0,)),
        Operation("b", (0,), (1,), may_overwrite=(0,) if overwrite else ()),
        Operation("c", (1,), (2,), may_overwrite=(1,) if overwrite else ()),
    )
    return Program((Value(100 * KIB),) * 3, operations, frozenset({2}))


@pytest.mark.parametrize(("overwrite", "expected"), [(False, 200 * KIB), (True, 100 * KIB)])
def test_a_buffer_lives_until_its_last_reader_has_ended(overwrite, expected):
    assert total(chain(overwrite=overwrite), workers=1, region_bytes=REGION) == expected


def test_what_is_kept_for_the_backward_pass_is_live_at_the_turn():
    values = (Value(100 * KIB, "activations"), Value(50 * KIB, "activations"), Value(100 * KIB, "gradients"))
    operations = (
        Operation("x", (), (0,)),
        Operation("y", (0,), (1,)),
        Operation("dx", (0, 1), (2,), workspace_bytes=(10 * KIB,)),
    )
    found = peak(Program(values, operations, frozenset({2}), {"optimizer": (30 * KIB,)}), workers=1, region_bytes=REGION)
    assert sum(found.values()) == 290 * KIB
    parts = {part: size for part, size in found.items() if size}
    assert parts == {"optimizer": 30 * KIB, "activations": 150 * KIB, "gradients": 100 * KIB, "temporaries": 10 * KIB}


def test_a_view_takes_nothing_and_keeps_what_it_looks_at():
    values = (Value(100 * KIB), Value(100 * KIB, alias_of=0), Value(1 * KIB), Value(1 * KIB))
    operations = (
        Operation("a", (), (0,)),
        Operation("view", (0,), (1,)),
        Operation("b", (), (2,), after=(1,)),
        Operation("c", (1, 2), (3,)),
    )
    assert total(Program(values, operations, frozenset({3})), workers=1, region_bytes=REGION) == 102 * KIB


def test_two_workers_hold_two_workspaces_at_once():
    operations = tuple(Operation(name, (), (), workspace_bytes=(500 * KIB,), seconds=1.0) for name in "ab")
    program = Program((), operations, frozenset())
    assert total(program, workers=1, region_bytes=REGION) == 500 * KIB
    assert total(program, workers=2, region_bytes=REGION) == 1000 * KIB


WEIGHT = Value(100 * KIB, "weights", is_variable=True)


def test_a_weight_is_made_from_two_more_buffers():
    assert total(Program((WEIGHT,), (), frozenset()), region_bytes=REGION) == 300 * KIB


@pytest.mark.parametrize(("use_after", "update_after", "expected"), [((), (2,), 500 * KIB), ((3,), (), 600 * KIB)])
def test_a_variable_is_updated_in_place_unless_it_is_still_read(use_after, update_after, expected):
    operations = (
        Operation("read", (), (1,)),
        Operation("gradient", (), (2,)),
        Operation("use", (1,), (), after=use_after),
        Operation("update", (2,), (), after=(0, *update_after), updates=0),
    )
    program = Program((WEIGHT, Value(100 * KIB, alias_of=0), Value(400 * KIB)), operations, frozenset())
    assert total(program, workers=1, region_bytes=REGION, steps=1) == expected


def test_a_variable_takes_over_the_buffer_that_it_is_assigned():
    values = (WEIGHT, Value(100 * KIB), Value(150 * KIB))
    operations = (
        Operation("new", (), (1,)),
        Operation("assign", (1,), (), updates=0, assigned=1),
        Operation("more", (), (2,), after=(1,)),
    )
    assert total(Program(values, operations, frozenset()), workers=1, region_bytes=REGION) == 300 * KIB
    found = peak(Program((WEIGHT, values[1], Value(350 * KIB)), operations, frozenset()), workers=1, region_bytes=REGION)
    assert sum(found.values()) == 450 * KIB
    assert found["weights"] == 100 * KIB


def test_zeros_of_the_optimizer_are_one_buffer_until_they_are_updated():
    slot = Value(100 * KIB, "optimizer", is_variable=True)
    program = Program((slot, slot), (), frozenset())
    assert total(program, workers=1, region_bytes=REGION) == 100 * KIB
    updates = (Operation("first", (), (), updates=0), Operation("second", (), (), after=(0,), updates=1))
    assert total(Program((slot, slot), updates, frozenset()), workers=1, region_bytes=REGION) == 200 * KIB


def test_an_allocator_that_counts_large_buffers_alone():
    values = (Value(100 * KIB), Value(300 * KIB), Value(100 * KIB, "weights", is_variable=True))
    operations = (Operation("a", (), (0,)), Operation("b", (0,), (1,), workspace_bytes=(200 * KIB, 256 * KIB)))
    program = Program(values, operations, frozenset(), {"input_batch": (255 * KIB, 400 * KIB)})
    assert total(program, workers=1, region_bytes=REGION, least_bytes=256 * KIB) == 956 * KIB
    assert total(program, workers=1, region_bytes=REGION) == 1611 * KIB


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_every_operation_runs_and_everything_is_given_back(seed, workers):
    chance = random.Random(seed)
    count = chance.randrange(1, 30)
    values = tuple(Value(chance.randrange(1, 100) * KIB) for _ in range(count))
    operations = tuple(
        Operation(
            str(n), tuple(sorted({chance.randrange(n) for _ in range(min(n, 2))})), (n,), seconds=chance.choice((0.0, 1.0))
        )
        for n in range(count)
    )
    found = total(Program(values, operations, frozenset({count - 1})), workers=workers, region_bytes=REGION)
    assert max(rounded(v.size_bytes) for v in values) <= found <= sum(2 * rounded(v.size_bytes) for v in values)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIB)), max_size=60))
def test_chunks_in_use_are_large_enough_and_do_not_overlap(steps):
    allocator, held = BestFitAllocator(), []
    for release, size in steps:
        if release and held:
            allocator.release(held.pop())
        else:
            held.append(allocator.allocate(size))
            assert rounded(size) <= allocator.size_of(held[-1]) < 2 * rounded(size) + 256
    spans = sorted((address, address + allocator.size_of(address)) for address in held)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_chunk_less_than_twice_as_large_is_handed_out_whole():
    allocator = BestFitAllocator()
    assert allocator.size_of(allocator.allocate(40 * MIB)) == 64 * MIB


def test_half_precision_is_multiplied_in_single():
    assert workspace_bytes("MatMul", [(8, 4), (4, 2)], [(8, 2)], 2) == (128, 32, 64)
    assert workspace_bytes("MatMul", [(8, 4), (4, 2)], [(8, 2)], 4) == ()


NONE, AVX512, SAPPHIRE = frozenset(), frozenset({"avx512f", "avx512bw"}), frozenset({"avx512f", "avx512bw", "avx512_fp16"})
GRANITE = frozenset({"avx512f", "avx512bw", "amx_fp16"})


@pytest.mark.parametrize(
    ("dtype", "taken_with"),
    [
        ("float32", {NONE, AVX512, SAPPHIRE, GRANITE}),
        ("bfloat16", {AVX512, SAPPHIRE, GRANITE}),
        ("float16", {SAPPHIRE, GRANITE}),
        ("float64", set()),
        ("int32", set()),
    ],
)
def test_onednn_takes_the_dtypes_that_the_processor_supports(dtype, taken_with):
    for flags in (NONE, AVX512, SAPPHIRE, GRANITE):
        assert onednn_takes(dtype, flags, onednn=True) == (flags in taken_with)
        assert not onednn_takes(dtype, flags, onednn=False)


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
