"""What makes a workload another one, and what does not."""

import functools
import sys

import numpy as np
import pytest

from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError
from autofit.workload.fingerprint import identify
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.unit.workload.functions import Maker, build, make, over

FILES = {
    "model.py": (
        "import numpy, layers\nfrom user_nets import resnet\n\n"
        "def build(width=8):\n    return layers.Block()\n"
    ),
    "layers.py": "import math\nfrom user_nets.deep.up import DEPTH\n\nclass Block: ...\n",
    "user_nets/resnet.py": "SIZE = 1\n",  # a package without __init__.py
    "user_nets/parts.py": "DEPTH = 1\n",
    "user_nets/math.py": "",
    "user_nets/deep/__init__.py": "from user_nets import math\n",
    "user_nets/deep/up.py": "from ..parts import DEPTH\n\ndef late():\n    from . import later\n",
    "user_nets/deep/later.py": "",
    "other.py": "import model\n",
}


def fingerprint(*parts, **kwargs):
    return identify(**vars(Workload(*parts, **kwargs)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's files, in a folder of the search path.

    What a test imports of them is forgotten.
    """
    monkeypatch.syspath_prepend(tmp_path)
    loaded = {*sys.modules}
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in {*sys.modules} - loaded:
        del sys.modules[name]


@pytest.mark.parametrize("changed", [*FILES, "user_nets/__init__.py", "numpy.py"])
def test_every_own_file_that_the_model_imports_counts(folder, changed):
    reference = Reference("model.py:build", str(folder))
    before = fingerprint(reference, None)
    (folder / changed).write_text(f"# a comment\n{FILES.get(changed, '')}")
    assert fingerprint(reference, None) == before or changed not in FILES
    (folder / changed).write_text(f"ANOTHER = 1\n{FILES.get(changed, '')}")
    assert (fingerprint(reference, None) != before) == (changed != "other.py")
    assert fingerprint(Reference("model:build"), None) != fingerprint(
        Reference("math:build"), None
    )


def test_packages_that_pip_installed_anywhere_are_not_the_users_files(folder):
    (folder / "nets-1.0.dist-info").mkdir()
    (folder / "nets-1.0.dist-info/RECORD").write_text("user_nets/resnet.py,,\n")
    before = fingerprint(Reference("model.py:build", str(folder)), None)
    (folder / "user_nets/resnet.py").write_text("SIZE = 2\n")
    assert fingerprint(Reference("model.py:build", str(folder)), None) == before


def test_a_file_that_is_not_python_code_counts(folder):
    fingerprints = set()
    for text in ("SIZE = (", "\x7fELF\0one", "\x7fELF\0two"):
        (folder / "layers.py").write_text(text)
        fingerprints.add(fingerprint(Reference("model.py:build", str(folder)), None))
    assert len(fingerprints) == 3


def run_cell(text, **scope):
    """Run a notebook's cell, whose text is in no file; returns its `build`."""
    scope["__name__"] = "__main__"
    exec(compile(text, "<cell>", "exec"), scope)
    return scope["build"]


@pytest.mark.parametrize(
    "text",
    [
        "def part():\n    return {}  # a comment\n\ndef build():\n    return part()",
        "SIZE = {}\ndef build():\n    class Inner:\n        size = SIZE\n    return Inner",
        "class Part:\n    size = {}\n\n"
        "class Derived(Part): ...\n\n"
        "def build():\n    return Derived()",
        "class Part:\n    def __init__(self):\n        self.size = {}\n\n"
        "def build(part=Part()):\n    return part",
        "def build():\n    return {{{}, 3}}.pop()",
        "def build(a, b=2 - {}): return a, b",
    ],
)
def test_functions_of_a_notebook_count_with_what_they_use(text):
    one = fingerprint(run_cell(text.format(1)), None)
    assert fingerprint(run_cell("\n\n" + text.format(1)), None) == one
    assert fingerprint(run_cell(text.format(2)), None) != one


@pytest.mark.parametrize(
    "text",
    [
        "from layers import Block\ndef build():\n    return Block()",
        "def build():\n    import layers, user_nets.resnet",
        "from layers import Block\nbuild = lambda block=Block(): block",
    ],
)
def test_own_modules_that_a_notebook_uses_count(folder, monkeypatch, text):
    monkeypatch.chdir(folder)
    function = run_cell(text)
    before = fingerprint(function, None)
    assert fingerprint(function, None) == before
    (folder / "layers.py").write_text("ANOTHER = 1\n")
    assert fingerprint(function, None) != before


X = np.zeros((1000, 3))
held = Maker()
held.itself = [held]


def test_arguments_arrays_closures_and_objects_count():
    workloads = [
        lambda: {
            "data": (X + np.random.rand(), X)
        },  # values of a large array do not count
        lambda: {"data": (X.astype("float32"), X)},
        lambda: {"model_kwargs": {"sizes": np.arange(5.0)}},
        lambda: {"model_kwargs": {"sizes": np.arange(5.0) + 1}},
        lambda: {"model_kwargs": {"width": 2}},
        lambda: {"data_kwargs": {"width": 2}},
        lambda: {"dtype_policy": "mixed_float16"},
        lambda: {"fit_kwargs": {"shuffle": False}},
        lambda: {"fit_kwargs": {"callbacks": over}},
        lambda: {"data": over("a")},
        lambda: {"data": over("b")},
        lambda: {"data": functools.partial(make, ["a"])},
        lambda: {"data": Maker(a=1)},
        lambda: {"data": Maker(a=1).make},
        lambda: {"data": held},
    ]
    first, again = (
        [fingerprint(build, **{"data": None, **make()}) for make in workloads]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == len(workloads)
    # the order of keywords does not count
    one = {"width": 2, "depth": 1}
    other = {"depth": 1, "width": 2}
    assert fingerprint(build, None, model_kwargs=one) == fingerprint(
        build, None, model_kwargs=other
    )


def test_only_changed_settings_in_the_file_of_keras_count(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr("autofit.backends.protocol.version", lambda name: "1.0")
    before = TensorFlow().settings()
    for text, same in (
        ('{"floatx": "float32", "epsilon": 1e-07}', True),
        ("no JSON", True),
        ('{"floatx": "float16"}', False),
    ):
        (tmp_path / "keras.json").write_text(text)
        assert (TensorFlow().settings() == before) == same


def test_what_cannot_be_pickled_is_an_error_of_the_user():
    with pytest.raises(UsageError, match="frame"):
        fingerprint(build, sys._getframe())
