"""Nobody asks a kind of input or a backend for its name.

What differs is an attribute of its class.
"""

import ast
from pathlib import Path

import pytest

import autofit
from autofit.backends import BACKENDS
from autofit.workload.inputs.kinds import KINDS

PACKAGE = Path(autofit.__file__).parent
NAMES = {*BACKENDS, *KINDS}
CLASSES = {kind.__name__ for kind in (*BACKENDS.values(), *KINDS.values())}
LISTS = {"backends/__init__.py", "workload/inputs/kinds.py"}  # where all are listed
# What a file may name, and why: a library that has the name of a backend, or a name
# with another use.
ALLOWED = {
    (
        "backends/absent_gpu.py",
        "jax",
    ): "JAX compiles for GPUs that are not there, for any backend",
    ("backends/jax/backend.py", "tensorflow"): "tf.data must not take the GPU's memory",
    (
        "records/__init__.py",
        "tensorflow",
    ): "Keras's default, of which stored keys say nothing",
    ("records/result.py", "arrays"): "a form of data in generated code",
    ("report/snippet.py", "arrays"): "a form of data in generated code",
    ("search/memory.py", "arrays"): "a part of the host memory",
    (
        "trial/worker/job.py",
        "tensorflow",
    ): "the library of tf.data, which Keras may miss",
    ("trial/worker/script.py", "tensorflow"): "the library of tf.data",
    ("tuning/request.py", "arrays"): "a form of data in generated code",
    (
        "tuning/request.py",
        "DEFAULT_BACKEND",
    ): "keys stored without a backend are of the default",
    ("workload/binding.py", "arrays"): "a form of data in generated code",
    (
        "workload/fingerprint.py",
        "torch",
    ): "a tensor of torch is an array, on any backend",
    (
        "workload/inputs/knobs.py",
        "PyDataset",
    ): "Keras's class, whose attributes are knobs",
    ("workload/inputs/tfdata.py", "tensorflow"): "the library of tf.data",
    ("workload/inputs/torch_streams.py", "jax"): "libraries whose objects hold no rank",
    (
        "workload/inputs/torch_streams.py",
        "tensorflow",
    ): "libraries whose objects hold no rank",
    (
        "workload/inputs/torch_streams.py",
        "torch",
    ): "libraries whose objects hold no rank",
    (
        "workload/script/reached.py",
        "Arrays",
    ): "other arguments by position are no arrays",
    ("workload/script/reached.py", "tensorflow"): "the library of tf.data",
}


def own_names(path: str) -> set[str]:
    """Return the names of the kind or backend that a file defines."""
    module = f"autofit.{path.removesuffix('.py').replace('/', '.')}"
    defined = {
        name: cls
        for name, cls in {**BACKENDS, **KINDS}.items()
        if cls.__module__ == module
    }
    return {*defined, *(cls.__name__ for cls in defined.values())}


def asked_in(source: str) -> set[str]:
    """Return the names of kinds, backends and their classes in code.

    What the code compares with one of them is included.
    """
    asked = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            asked.add(node.value)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            "autofit."
        ):
            asked.update(alias.name for alias in node.names if alias.name in CLASSES)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_name_of_one, sides)):
                asked.update(side.id for side in sides if isinstance(side, ast.Name))
                asked.discard("backend")
    return asked


def is_name_of_one(node: ast.expr) -> bool:
    """Return whether an expression is the name of the backend or of the kind that is used."""
    return ast.unparse(node) in {
        "backend",
        "backend.name",
        "data.kind",
        "description.backend",
        "description.input_kind",
        "keras.backend.backend()",
    }


def test_no_file_asks_a_kind_or_a_backend_for_its_name_without_a_reason():
    files = {str(file.relative_to(PACKAGE)): file for file in PACKAGE.rglob("*.py")}
    found = {
        (path, name)
        for path, file in files.items()
        if path not in LISTS
        for name in asked_in(file.read_text()) - own_names(path)
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set()  # no reason outlives what it excuses


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if backend.name == JAX: pass", {"JAX"}),
        ("stacks = keras.backend.backend() != 'torch'", {"torch"}),
        ("seconds = {'torch': 1.0}.get(backend.name)", {"torch"}),
        ("from autofit.workload.inputs.arrays import Arrays", {"Arrays"}),
        ("is_dead = description.input_kind == 'PyDataset'", {"PyDataset"}),
        ("from collections.abc import Generator", set()),
        ("kind = KINDS[description.input_kind].takes_turns", set()),
        ("if backend is None: raise ValueError", set()),
    ],
)
def test_names_are_found_in_each_form_in_which_they_are_asked(source, expected):
    assert asked_in(source) == expected
