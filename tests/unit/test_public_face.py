"""What a user imports and calls."""

import pickle
import re
from pathlib import Path

import pytest

import autofit

FOREIGN_INSTALL = re.compile(r"pip install (?:-\S+ )*['\"]?autofit\b")


def test_every_public_name_is_there_and_says_what_it_is():
    for name in autofit.__all__:
        assert getattr(autofit, name).__doc__, name
    assert dir(autofit) == sorted(autofit.__all__)
    with pytest.raises(AttributeError, match="tunes"):
        getattr(autofit, "tunes")  # noqa: B009  # a plain attribute would be a useless expression


def test_every_error_is_an_autofit_error_with_an_exit_code():
    errors = [
        getattr(autofit, name) for name in autofit.__all__ if name.endswith("Error")
    ]
    assert len(errors) == 10
    assert all(
        issubclass(error, autofit.AutofitError) and error.exit_code in (1, 2)
        for error in errors
    )


def test_a_usage_error_carries_the_key_that_is_wrong():
    error = autofit.UsageError("'x' is not allowed", key="space.workers")
    assert (error.key, error.problem) == ("space.workers", "'x' is not allowed")
    assert str(error) == f"{error.key}: {error.problem}"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.key, copy.problem) == (str(error), error.key, error.problem)


def test_no_install_command_names_the_other_project_called_autofit():
    root = Path(autofit.__file__).parents[1]
    files = [
        root / "README.md",
        *root.glob("*/README.md"),
        *(root / "autofit").rglob("*.py"),
        *(root / "examples").glob("*.py"),
    ]
    wrong = [
        f"{file}: {line}"
        for file in files
        for line in file.read_text().splitlines()
        if FOREIGN_INSTALL.search(line)
    ]
    assert len(files) > 100
    assert wrong == []
    assert FOREIGN_INSTALL.search("run pip install 'autofit[gpu]'")
