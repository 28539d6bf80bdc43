"""What makes a workload another one, and what does not."""

import functools
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError
from autofit.records.machine import ON_CPU, Device, Placement
from autofit.workload import own_modules
from autofit.workload.fingerprint import identify
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.fakes import DESCRIPTION, MACHINE, MIB, make_request
from tests.unit.workload.functions import Maker, build, make, over

MODEL = '''
"""Models."""
import json
import numpy as np
from layers import Block
from packed.blocks import deep

WIDTH = 8
UNUSED = 1


def helper():
    return WIDTH


def other():
    return UNUSED


def build(width=WIDTH):
    """Build it."""
    return helper(), Block, deep, np


if __name__ == "__main__":
    print(build())
'''
LAYERS = "import keras\n\nclass Block(keras.layers.Layer):\n    size = 1\n\nclass Unused:\n    size = 2\n"


@pytest.fixture
def project(tmp_path):
    """Files of a user's; returns what writes one of them with a text replaced, and gives the fingerprint."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text("")
    (tmp_path / "packed" / "blocks.py").write_text("from .parts import DEPTH\n\ndef deep():\n    return DEPTH\n")
    (tmp_path / "packed" / "parts.py").write_text("DEPTH = 3\nHEIGHT = 4\n")

    def fingerprint(name="model.py", old="", new=""):
        path = tmp_path / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        return identify(Workload(Reference("model.py:build", str(tmp_path)), None))

    return fingerprint


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("model.py", "return helper(), Block", "return Block, helper()"),
        ("model.py", "WIDTH = 8", "WIDTH = 16"),
        ("model.py", "UNUSED = 1\n", "UNUSED = 1\nkeras.mixed_precision.set_dtype_policy('mixed_float16')\n"),
        ("layers.py", "size = 1", "size = 3"),
        ("packed/parts.py", "DEPTH = 3", "DEPTH = 5"),
        ("packed/__init__.py", "", "import keras\nkeras.config.set_floatx('float16')\n"),
        ("layers.py", "size = 2", "size = 4"),
        ("packed/parts.py", "HEIGHT = 4", "HEIGHT = 5"),
    ],
)
def test_whatever_is_in_an_own_module_changes_the_fingerprint(project, name, old, new):
    before = project()
    assert project(name, old, new) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("model.py", "def helper():\n", "def helper():  # a comment\n\n"),
        ("model.py", "return helper(), Block, deep, np", "return (\n        helper(), Block,\n        deep, np)"),
        ("model.py", "Build it.", "Build it well."),
        ("model.py", "Models.", "More models."),
        ("model.py", "def other():\n", "def other():\n    'New.'\n"),
        ("layers.py", "    size = 1\n", "    size = 1\n    'The size.'\n"),
        ("other.py", "X = 1", "X = 2"),
    ],
)
def test_comments_layout_docstrings_and_other_modules_do_not(project, tmp_path, name, old, new):
    (tmp_path / "other.py").write_text("import model\nX = 1\n")
    before = project()
    assert project(name, old, new) == before


@pytest.mark.parametrize(
    ("imports", "name", "text"),
    [
        ("from nets import resnet as block", "nets/resnet.py", "def f():\n    return SIZE\n"),
        ("from nets.resnet import block", "nets/resnet.py", "def block():\n    return SIZE\n"),
        ("from nets.whole import block", "nets/resnet.py", "def f():\n    return SIZE\n"),
        ("from nets.deep.up import block", "nets/resnet.py", "def block():\n    return SIZE\n"),
        ("import packed.parts as _, packed as block", "packed/__init__.py", "WIDTH = SIZE\n"),
        ("from starred import block", "layers.py", "block = SIZE\n"),
        ("import layers", "layers.py", "if __name__ == '__main__':\n    pass\nelse:\n    f(SIZE)\n"),
        ("if build:\n    import layers", "layers.py", "width = SIZE\n"),
        ("def block():\n    def inner():\n        from nets import resnet", "nets/resnet.py", "width = SIZE\n"),
        ("try:\n    import fast\nexcept ImportError:\n    import layers", "layers.py", "width = SIZE\n"),
        ("from gathered import *", "gathered/two.py", "f = SIZE\n"),
        ("from registry import Base as block", "derived.py", "from registry import Base\nsize = SIZE\n"),
        ("from nets import math", "nets/math.py", "width = SIZE\n"),
    ],
)
def test_what_an_import_gives_and_what_it_does_change_the_fingerprint(tmp_path, imports, name, text):
    files = {
        "model.py": f"{imports}\n\ndef build():\n    return block()\n",
        "layers.py": "",
        "starred.py": "from layers import *\n",
        "registry.py": "import derived\n\nclass Base: ...\n",
        "derived.py": "",
        "gathered/__init__.py": "from .one import f\n\n__all__ = ['one']\n",
        "gathered/one.py": "from .two import f\n",
        "gathered/two.py": "",
        "packed/__init__.py": "",
        "packed/parts.py": "",
        "nets/whole.py": "from . import resnet as block\n",  # nets/ has no __init__.py
        "nets/deep/up.py": "from ..resnet import block\n",
    }

    def fingerprint_with(size):
        for path, content in {**files, name: text.replace("SIZE", size)}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        return identify(Workload(Reference("model.py:build", str(tmp_path)), None))

    one = fingerprint_with("1")
    assert fingerprint_with("2") != one == fingerprint_with("1")


def test_folders_do_not_count(project, tmp_path):
    before = project()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in [*tmp_path.glob("*.py"), tmp_path / "packed"]:
        file.rename(moved / file.name)
    assert fingerprint(Reference("model.py:build", str(moved)), None) == before


def test_a_module_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_models").mkdir()
    file = tmp_path / "named_models" / "small.py"
    file.write_text("def build():\n    return 1\n")
    before = fingerprint(Reference("named_models.small:build"), None)
    file.write_text("def build():\n    return 2\n")
    assert fingerprint(Reference("named_models.small:build"), None) != before


@pytest.mark.parametrize("module", ["numpy.linalg", "autofit.workload.workload", "no_such_module.at_all", "sys", "json"])
def test_a_module_that_is_not_the_users_counts_by_its_name(module, monkeypatch):
    monkeypatch.setattr(own_modules, "read", lambda content: pytest.fail("a file was read"))
    assert fingerprint(Reference(f"{module}:build"), None) != fingerprint(Reference(f"{module}:other"), None)


def test_a_file_beside_the_model_comes_before_an_installed_one(tmp_path):
    (tmp_path / "model.py").write_text("import numpy\n\ndef build():\n    return 1\n")
    fingerprints = set()
    for size in (1, 1, 2):
        (tmp_path / "numpy.py").write_text(f"SIZE = {size}\n")
        fingerprints.add(fingerprint(Reference("model.py:build", str(tmp_path)), None))
    assert len(fingerprints) == 2


def fingerprint(*parts, **kwargs):
    return identify(Workload(*parts, **kwargs))


BRANCHES = "def build(x):\n    if x == 0:\n        return 0\n" + "".join(
    f"    elif x == {n}:\n        return {n}\n" for n in range(1, 800)
)


@pytest.mark.parametrize(
    ("model", "text", "name", "before", "after"),
    [
        ("scripts/model.py", "import common_layers", "common_layers.py", "SIZE = 1", "SIZE = 2"),  # above the script
        ("model.py", "import layers", "layers.py", None, "SIZE = 1"),  # written a moment ago
        ("model.py", "import layers", "layers.py", "\x7fELF\0one", "\x7fELF\0two"),
        ("model.py", "import layers\nraise SystemExit", "layers.py", "raise SystemExit", "raise SystemExit(1)"),  # not run
        ("model.py", "import layers", "layers.py", BRANCHES, f"{BRANCHES}    return 1"),  # nested deeper than Python goes
    ],
)
def test_a_file_that_the_model_imports_counts_whatever_it_is(tmp_path, model, text, name, before, after):
    (tmp_path / "scripts").mkdir()
    (tmp_path / model).write_text(f"{text}\n\ndef build():\n    return 1\n")
    fingerprints = set()
    for content in (before, before, after):
        if content is not None:
            (tmp_path / name).write_text(content)
        fingerprints.add(fingerprint(Reference(f"{model}:build", str(tmp_path)), None))
    assert len(fingerprints) == 2


def test_large_arrays_count_by_their_form_and_small_ones_by_their_values():
    x = np.zeros((1000, 3))
    one = fingerprint(build, (x, x))
    assert fingerprint(build, (x + 1, x)) == one
    assert fingerprint(build, Maker(x=x)) == fingerprint(build, Maker(x=x + 1))
    for other in ((x.astype("float32"), x), (x[:50], x[:50]), {"a": x}):
        assert fingerprint(build, other) != one
    sizes = np.arange(5.0)
    assert fingerprint(build, None, model_kwargs={"w": sizes}) != fingerprint(build, None, model_kwargs={"w": sizes + 1})


def test_arguments_count_but_for_the_order_in_which_they_are_named():
    arguments = {"model_kwargs": {"width": 2, "depth": [1, 2]}}
    one = fingerprint(build, None, **arguments)
    assert fingerprint(build, None, model_kwargs={"depth": [1, 2], "width": 2}) == one
    for other in (
        {"model_kwargs": {"width": 2, "depth": [2, 1]}},
        {"model_kwargs": {"width": 2.0, "depth": [1, 2]}},
        {"data_kwargs": {"width": 2, "depth": [1, 2]}},
        {**arguments, "dtype_policy": "mixed_float16"},
        {**arguments, "jit_compile": False},
        {**arguments, "fit_kwargs": {"shuffle": False}},
        {**arguments, "fit_kwargs": {"class_weight": {0: 1.0}}},
        {**arguments, "fit_kwargs": {"callbacks": over}},
    ):
        assert fingerprint(build, None, **other) != one
    options = [{"fit_kwargs": {"callbacks": [Maker()]}} for _ in range(2)]
    assert fingerprint(build, None, **options[0]) == fingerprint(build, None, **options[1])


def test_closures_defaults_and_objects_count():
    assert fingerprint(build, over("a")) == fingerprint(build, over("a")) != fingerprint(build, over("b"))
    assert fingerprint(build, "a".join) != fingerprint(build, "b".join)
    assert fingerprint(build, functools.partial(make, ["a"])) != fingerprint(build, functools.partial(make, ["b"]))
    assert fingerprint(build, make) != fingerprint(make, make)
    assert fingerprint(build, Maker(a=1)) == fingerprint(build, Maker(a=1)) != fingerprint(build, Maker(a=2))
    assert fingerprint(build, Maker(a=1).make) == fingerprint(build, Maker(a=1).make) != fingerprint(build, Maker(a=2).make)


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """A module of the user's, imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_blocks.py").write_text("def residual():\n    return 1\n\nclass Block:\n    size = 1\n")
    yield importlib.import_module("user_blocks")
    del sys.modules["user_blocks"]


def test_what_is_an_argument_or_in_a_closure_counts_by_its_code(blocks):
    given = [
        lambda: fingerprint(build, None, model_kwargs={"block": blocks.residual}),
        lambda: fingerprint(build, None, model_kwargs={"blocks": [{blocks.residual}]}),
        lambda: fingerprint(build, over(blocks.residual)),
        lambda: fingerprint(build, functools.partial(make, [blocks.residual])),
        lambda: fingerprint(build, functools.lru_cache(blocks.residual)),
        lambda: fingerprint(build, Maker(block=blocks.residual)),
    ]
    as_class = [
        lambda: fingerprint(build, None, model_kwargs={"block": blocks.Block}),
        lambda: fingerprint(build, None, model_kwargs={"block": blocks.Block()}),
        lambda: fingerprint(build, over(blocks.Block())),
        lambda: fingerprint(build, blocks.Block()),
    ]
    before = [ask() for ask in given + as_class]
    assert [ask() for ask in given + as_class] == before
    file = Path(blocks.__file__)
    text = file.read_text()
    file.write_text(text.replace("return 1", "return 22"))
    assert all(ask() != was for ask, was in zip(given, before, strict=False))
    file.write_text(text.replace("size = 1", "size = 22"))
    assert all(ask() != was for ask, was in zip(as_class, before[len(given) :], strict=True))


def test_what_holds_itself_is_told():
    held = Maker()
    held.itself = [held]
    assert fingerprint(build, held) == fingerprint(build, held) != fingerprint(build, Maker())


def run_cell(text, scope=None):
    """Run a notebook's cell, whose text is in no file."""
    scope = {"__name__": "__main__"} if scope is None else scope
    exec(compile(text, "<cell>", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "text",
    [
        "def part():\n    return {}\n\ndef build():\n    return part()",
        "SIZE = {}\ndef build():\n    return [Dense(SIZE) for _ in range(3)]",
        "SIZE = {}\ndef build():\n    def inner():\n        return SIZE\n    return inner",
        "SIZE = {}\ndef build():\n    class Inner:\n        size = SIZE\n    return Inner",
        "SIZES = {{'a': [{}]}}\ndef build():\n    return SIZES",
        "class Part:\n    def size(self):\n        return {}\n\ndef build():\n    return Part()",
        "class Part:\n    size = {}\n\nclass Derived(Part):\n    pass\n\ndef build():\n    return Derived()",
        "class Part:\n    @property\n    def size(self):\n        return {}\n\npart = Part()\nbuild = lambda: part",
        "class Part:\n    def __init__(self):\n        self.size = {}\n\ndef build(part=Part()):\n    return part",
        "class Part:\n    size = {}\n\n    def __call__(self):\n        return 1\n\nbuild = Part()",
        "def build():\n    return {}",
        "build = lambda: {}",
    ],
)
def test_functions_of_a_notebook_take_with_them_what_they_name(text):
    one = fingerprint(run_cell(text.format(1))["build"], None)
    assert fingerprint(run_cell("\n\n" + text.format(1))["build"], None) == one
    assert fingerprint(run_cell(text.format(2))["build"], None) != one


def test_a_notebooks_functions_take_with_them_the_users_files(blocks):
    scopes = [
        run_cell("def build():\n    return residual()", {"__name__": "__main__", "residual": blocks.residual}),
        run_cell("def build():\n    return blocks.residual()", {"__name__": "__main__", "blocks": blocks}),
    ]
    before = [fingerprint(scope["build"], None) for scope in scopes]
    Path(blocks.__file__).write_text("def residual():\n    return 22\n")
    assert all(fingerprint(scope["build"], None) != was for scope, was in zip(scopes, before, strict=True))


def test_the_modules_of_a_package_that_a_notebook_names_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_nets" / "deep").mkdir(parents=True)
    (tmp_path / "user_nets" / "deep" / "resnet.py").write_text("SIZE = 1\n")
    scope = run_cell("import user_nets.deep.resnet", {"__name__": "__main__"})
    build = run_cell("def build():\n    return user_nets.deep.resnet.SIZE", scope)["build"]
    before = fingerprint(build, None)
    assert fingerprint(build, None) == before
    (tmp_path / "user_nets" / "deep" / "resnet.py").write_text("SIZE = 2\n")
    assert fingerprint(build, None) != before
    for name in ("user_nets", "user_nets.deep", "user_nets.deep.resnet"):
        del sys.modules[name]


def test_modules_that_a_cell_imports_count(blocks, monkeypatch):
    monkeypatch.chdir(Path(blocks.__file__).parent)
    build = run_cell("def build():\n    import user_blocks")["build"]
    before = fingerprint(build, None)
    Path(blocks.__file__).write_text("def residual():\n    return 22\n")
    assert fingerprint(build, None) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def build(a, b=1): return a, b", "def build(a, *, b=1): return a, b"),
        ("def build(a, b): return a, b", "def build(a, /, b): return a, b"),
        (
            "def build():\n    try:\n        a()\n    except OSError:\n        pass\n    return 1",
            "def build():\n    a()\n    try:\n        pass\n    except OSError:\n        pass\n    return 1",
        ),
        ("def build():\n    return {1, 2}.pop()", "def build():\n    return {1, 3}.pop()"),
        ("build = lambda: 1", "build = lambda: 1.0"),
        ("class build:\n    def f(self): return 1", "class build:\n    f = staticmethod(lambda self: 1)"),
    ],
)
def test_code_that_differs_in_little_counts_as_different(one, other):
    assert fingerprint(run_cell(one)["build"], None) != fingerprint(run_cell(other)["build"], None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def build():\n    return 1", "def build():\n    'Build.'\n    # a comment\n\n    return 1"),
        ("def build():\n    return lambda: 1", "def build():\n    'Build.'\n    return (\n        lambda: 1)"),
        (
            "class build:\n    def f(self):\n        return 1",
            "class build:\n    'B.'\n    def f(self):\n        'F.'\n        return 1",
        ),
    ],
)
def test_comments_layout_and_docstrings_of_a_notebook_do_not_count(one, other):
    assert fingerprint(run_cell(one)["build"], None) == fingerprint(run_cell(other)["build"], None)


def test_decorators_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    wrapping = "def NAME(f):\n    @wraps(f)\n    def wrapper():\n        return f(), 'NAME'\n    return wrapper\n"
    text = "from functools import wraps\n" + wrapping.replace("NAME", "once") + wrapping.replace("NAME", "twice")
    (tmp_path / "user_decorators.py").write_text(text)
    decorators = importlib.import_module("user_decorators")
    for function in (build, run_cell("def build():\n    return 1")["build"]):
        before = fingerprint(decorators.once(function), None)
        assert fingerprint(decorators.once(function), None) == before != fingerprint(decorators.twice(function), None)
        (tmp_path / "user_decorators.py").write_text(f"{text}SIZE = {function.__module__!r}\n")
        assert fingerprint(decorators.once(function), None) != before
    del sys.modules["user_decorators"]


@pytest.mark.parametrize("variable", ["KERAS_HOME", "HOME"])
def test_the_file_that_keras_writes_on_its_first_import_changes_nothing(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    file = (tmp_path if variable == "KERAS_HOME" else tmp_path / ".keras") / "keras.json"
    file.parent.mkdir(exist_ok=True)
    before = TensorFlow().settings()
    written = {"floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow", "image_data_format": "channels_last"}
    file.write_text(json.dumps(written, indent=4))
    assert TensorFlow().settings() == before
    file.write_text("no JSON")  # Keras passes over it
    assert TensorFlow().settings() == before
    file.write_text(json.dumps({**written, "floatx": "float16"}))
    assert TensorFlow().settings() != before


@pytest.mark.parametrize("placement", [ON_CPU, Placement.on(Device(0, "a GPU", "GPU-0", 8192 * MIB, 8000 * MIB))])
def test_the_processor_counts_and_the_memory_does_not(tmp_path, placement):
    asked = make_request(tmp_path, placement=placement)
    another = replace(asked, machine=replace(MACHINE, processor="another CPU"))
    assert another.fingerprint() != asked.fingerprint()
    assert another.warm_start_key(DESCRIPTION) != asked.warm_start_key(DESCRIPTION)
    grown = replace(asked, machine=replace(MACHINE, memory_bytes=40 * 1024 * MIB))  # as on some virtual machines
    assert grown.fingerprint() == asked.fingerprint()
    assert grown.warm_start_key(DESCRIPTION) == asked.warm_start_key(DESCRIPTION)


class Raising:
    def __init__(self, error):
        self.error = error

    def __reduce_ex__(self, protocol):
        raise self.error


def test_what_cannot_be_pickled_is_an_error_of_the_user_and_ctrl_c_is_not():
    with pytest.raises(UsageError, match="frame"):
        fingerprint(build, sys._getframe())
    with pytest.raises(UsageError, match="a lock is shared by inheritance"):
        fingerprint(build, None, model_kwargs={"lock": Raising(RuntimeError("a lock is shared by inheritance"))})
    with pytest.raises(KeyboardInterrupt):
        fingerprint(build, None, model_kwargs={"slow": Raising(KeyboardInterrupt())})


def test_what_pip_installs_in_a_folder_of_its_own_is_installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg-1.5.dist-info").mkdir()
    (tmp_path / "pkg-1.5.dist-info" / "METADATA").write_text("Name: pkg\nVersion: 1.5\n")
    (tmp_path / "pkg-1.5.dist-info" / "RECORD").write_text("pkg/__init__.py,sha256=x,10\nsingle.py,sha256=y,10\n")
    (tmp_path / "own_model.py").write_text("import pkg, own_layers\n\ndef build(): ...\n")  # in the same folder

    def identify_with(package, own):
        (tmp_path / "pkg" / "__init__.py").write_text(f"def make():\n    return {package}\n")
        (tmp_path / "own_layers.py").write_text(f"SIZE = {own}\n")
        return identify(Workload(Reference("own_model:build"), importlib.import_module("pkg").make))

    assert identify_with(2, 1) == identify_with(1, 1) != identify_with(2, 2)
    del sys.modules["pkg"]


def test_a_generator_of_random_numbers_is_hashed():
    rng = np.random.default_rng(3)  # a class compiled by Cython

    def make_data(batch_size):
        return rng.random((batch_size, 4))

    assert fingerprint(make_data, make_data) == fingerprint(make_data, make_data)
