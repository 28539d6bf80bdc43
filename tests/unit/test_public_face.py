"""What a user imports and calls."""

import pickle
import re
from pathlib import Path
from typing import get_args

import pytest

import autofit
from autofit import backends
from autofit.workload.workload import ARGUMENTS

FOREIGN_INSTALL = re.compile(r"pip install (?:-\S+ )*['\"]?autofit\b")


def test_every_public_name_is_there_and_says_what_it_is():
    for name in autofit.__all__:
        assert getattr(autofit, name).__doc__, name
    assert dir(autofit) == sorted(autofit.__all__)
    with pytest.raises(AttributeError, match="tunes"):
        getattr(autofit, "tunes")  # noqa: B009  # a plain attribute would be a useless expression


def test_every_error_is_an_autofit_error_with_an_exit_code():
    errors = [getattr(autofit, name) for name in autofit.__all__ if name.endswith("Error")]
    assert len(errors) == 10
    assert all(issubclass(error, autofit.AutofitError) and error.exit_code in (1, 2) for error in errors)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_trials": 0}, "max_trials: 0 is not allowed"),
        ({"max_trials": "5"}, "max_trials: '5' is not allowed"),
        ({"options": {"tolerance": 1.5}}, "options.tolerance: 1.5 is not allowed"),
        ({"max_seconds": 0}, "max_seconds: 0"),
        ({"baseline": {"batches": 3}}, "baseline.batches: unknown key; did you mean batch_size"),
        ({"baseline": {"batch_size": "32"}}, "baseline.batch_size: '32' is not allowed"),
        ({"space": {"workers": ["two"]}}, "space.workers: ['two'] is not allowed"),
        ({"space": {"batch_size": (8, 64)}}, "space.batch_size: (8, 64) is not allowed"),
        ({"backend": "theano"}, "backend: 'theano' is not allowed"),
        ({"model_kwargs": 3}, "model_kwargs: 3 is not allowed"),
        ({"host_memory": "lots"}, "host_memory: 'lots' is not allowed"),
        ({"device": "abacus"}, "device: 'abacus' is not allowed: write auto, cpu, gpu"),
        ({"options": {"launch": "rocket"}}, "options.launch: 'rocket' is not allowed"),
        ({"options": {"sampler": "tpe"}}, "options.sampler: 'tpe' is not allowed: in Python, give a sampler of Optuna"),
    ],
)
def test_wrong_arguments_are_said_before_anything_starts(arguments, told):
    with pytest.raises(autofit.UsageError) as caught:
        autofit.tune(lambda: None, lambda batch_size: None, **arguments)
    assert told in str(caught.value)


def test_a_name_in_place_of_a_function_is_said():
    with pytest.raises(autofit.UsageError, match=r"build_model: 'model\.py:f' is not a function"):
        autofit.tune("model.py:f", lambda batch_size: None)


def test_a_model_in_place_of_a_function_is_said():
    of_keras = type("Model", (), {"__module__": "keras.src.models.model"})
    model = type("Mine", (of_keras,), {"__call__": lambda self, inputs: inputs})()
    with pytest.raises(autofit.UsageError, match=r"(?s)^build_model: Mine is a model.*def build_model\(\):.*return model"):
        autofit.tune(model, lambda batch_size: None)


def test_a_usage_error_carries_the_key_that_is_wrong():
    error = autofit.UsageError("'x' is not allowed", key="space.workers")
    assert (error.key, error.problem) == ("space.workers", "'x' is not allowed")
    assert str(error) == f"{error.key}: {error.problem}"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.key, copy.problem) == (str(error), error.key, error.problem)
    plain = autofit.UsageError("only: 0")
    assert (str(plain), plain.key, plain.problem) == ("only: 0", None, "only: 0")


def test_no_install_command_names_the_other_project_called_autofit():
    root = Path(autofit.__file__).parents[1]
    files = [
        root / "README.md",
        *root.glob("*/README.md"),
        *(root / "autofit").rglob("*.py"),
        *(root / "examples").glob("*.py"),
    ]
    wrong = [f"{file}: {line}" for file in files for line in file.read_text().splitlines() if FOREIGN_INSTALL.search(line)]
    assert len(files) > 100
    assert wrong == []
    assert FOREIGN_INSTALL.search("run pip install 'autofit[gpu]'")


def test_the_backends_that_a_tune_may_name_are_those_that_there_are():
    annotation = ARGUMENTS["backend"].annotation
    assert set(get_args(get_args(annotation)[0])) == set(backends.NAMES)
