"""What a user imports and calls."""

import subprocess
import sys

import pytest

import autofit

HEAVY = ("tensorflow", "keras", "optuna", "rich")


@pytest.mark.parametrize(
    "statement", ["import autofit", "import autofit; dir(autofit); autofit.FitConfig; autofit.UsageError"]
)
def test_importing_autofit_loads_nothing_heavy(statement):
    program = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_driver_loads_no_backend():
    backends = ("tensorflow", "keras", "jax", "torch")
    program = f"import autofit.api, autofit.cli, sys; print([m for m in {backends!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_says_what_it_is():
    for name in autofit.__all__:
        assert getattr(autofit, name).__doc__, name
    assert dir(autofit) == sorted(autofit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        getattr(autofit, "tunes")  # noqa: B009  # a plain attribute would be a useless expression


def test_every_error_is_an_autofit_error_with_an_exit_code():
    errors = [getattr(autofit, name) for name in autofit.__all__ if name.endswith("Error")]
    assert len(errors) == 9
    assert all(issubclass(error, autofit.AutofitError) and error.exit_code in (1, 2) for error in errors)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_trials": 0},
        {"tolerance": 1.5},
        {"max_seconds": 0},
        {"baseline": {"batches": 3}},
        {"host_memory": "lots"},
        {"device": "abacus"},
    ],
)
def test_wrong_arguments_are_said_before_anything_starts(arguments):
    with pytest.raises(autofit.UsageError):
        autofit.tune(lambda: None, lambda batch_size: None, **arguments)
