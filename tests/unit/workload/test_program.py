"""What a program has set, read without its frameworks."""

import sys
from types import SimpleNamespace

import pytest

from autofit.workload.program import read_program

CONTEXT = "tensorflow.python.eager.context"


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    for name in ("keras.src.backend.config", CONTEXT, "tensorflow", "jax", "torch"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_tensorflow_without_a_context_has_nothing_set(monkeypatch):
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context_safe=lambda: None))
    program = read_program()
    assert program.lines == ()


def test_what_is_set_is_a_line_that_sets_it_again(monkeypatch):
    context = SimpleNamespace(_intra_op_parallelism_threads=1, _inter_op_parallelism_threads=None)
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context_safe=lambda: context))
    program = read_program()
    assert program.lines == ("tf.config.threading.set_intra_op_parallelism_threads(1)",)
    assert program.imports == ["import tensorflow as tf"]


def test_a_setting_that_another_version_does_not_have_counts_as_its_default(monkeypatch):
    monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context_safe=object))
    assert read_program().lines == ()
