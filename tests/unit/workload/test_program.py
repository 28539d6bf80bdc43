"""What a program has set, read without its frameworks."""

import sys
from types import SimpleNamespace

import pytest

from autofit.workload.program import read_program

CONTEXT = "tensorflow.python.eager.context"


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    for name in ("keras.src.backend.config", CONTEXT, "tensorflow", "jax", "torch", "absl.flags"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_tensorflow_without_a_context_has_nothing_set(monkeypatch):
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context_safe=lambda: None))
    program = read_program()
    assert (program.lines, program.unread) == ((), ())


def test_a_seed_of_keras_is_enough(monkeypatch):
    context = SimpleNamespace(_seed=7, _intra_op_parallelism_threads=1)
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context_safe=lambda: context))
    lines = read_program().lines
    assert "tf.random.set_seed(7)" in lines
    state = SimpleNamespace(get_global_attribute=lambda name: 7 if name == "global_random_seed" else None)
    monkeypatch.setitem(sys.modules, "keras.src.backend.config", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "keras.src.backend.common.global_state", state)
    lines = read_program().lines
    assert "keras.utils.set_random_seed(7)" in lines
    assert not any(line.startswith("tf.random") for line in lines)
    assert "tf.config.threading.set_intra_op_parallelism_threads(1)" in lines
