"""The API reference is built from the docstrings without a warning.

The examples of public names run.
"""

import doctest
import re
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import autofit
from tests.commands import run

MODEL = "import keras\nimport numpy as np\n\n" + textwrap.dedent(
    re.search(r"on arrays:\n\n(.*?)\n\n`__init__", autofit.__doc__, re.DOTALL)[1]
)
TUNE = """\
build_model: model.py:build_model
data: model.py:make_arrays
"""
SWEEP = (
    f"{TUNE}space: {{batch_size: [64], steps_per_execution: [1]}}\n"
    "matrix: {model_kwargs.width: [8, 16]}\n"
)
NAMES = [name for name in autofit.__all__ if name != "__version__"]
SHOWN_ELSEWHERE = (
    "Estimate",
    "Progress",
    "SweepResult",
)  # in the examples of estimate, tune and sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for all examples, so that what several of them tune is tuned once."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def names(folder, monkeypatch):
    """What the examples use, in a folder with YAML files.

    It has the model and the arrays of the module's documentation.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.syspath_prepend(folder)
    Path("model.py").write_text(f"{MODEL}\n\ndef make_arrays():\n    return arrays\n")
    Path("train.py").write_text(
        f"{MODEL}\n\nmodel = build_model()\nmodel.fit(*arrays, epochs=2)\n"
    )
    Path("tune.yaml").write_text(TUNE)
    Path("sweep.yaml").write_text(SWEEP)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    import model
    import optuna

    monkeypatch.setattr(optuna.logging.get_logger("optuna"), "disabled", True)
    return {
        "autofit": autofit,
        "build_model": model.build_model,
        "arrays": model.arrays,
        "optuna": optuna,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, names):
    is_error = isinstance(getattr(autofit, name), type) and issubclass(
        getattr(autofit, name), Exception
    )
    (example,) = doctest.DocTestFinder(recurse=False).find(
        getattr(autofit, name), name, module=False, globs=names
    )
    assert example.examples or is_error or name in SHOWN_ELSEWHERE, (
        f"{name} has no example"
    )
    printed = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that the examples use
        doctest.DocTestRunner(optionflags=options).run(example, out=printed.append)
    assert printed == []


def test_the_reference_is_built_without_a_warning(tmp_path):
    built = run(
        sys.executable, "-m", "pdoc", "-d", "google", "autofit", "-o", str(tmp_path)
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    page = (tmp_path / "autofit.html").read_text()
    assert all(f'id="{name}"' in page for name in autofit.__all__)
