"""What a fresh interpreter loads, prints and returns."""

import os
import subprocess
import sys
from pathlib import Path

import lazy_loader
import pytest

import autofit

HEAVY = ("tensorflow", "jax", "torch", "keras", "optuna", "plotly")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import autofit", (*HEAVY, "rich", "jinja2")),
        ("import autofit; dir(autofit); autofit.FitConfig; autofit.UsageError", (*HEAVY, "rich", "jinja2")),
        ("import autofit.api, autofit.cli", (*HEAVY, "sqlalchemy", "scipy")),  # a stored result waits for none of them
    ],
)
def test_an_import_loads_nothing_heavy(statement, heavy):
    program = f"{statement}; import sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("installed", "version"), [(True, "9.9"), (False, "0+unknown")])
def test_the_version_is_that_of_the_installed_distribution(installed, version, tmp_path):
    (tmp_path / "lazy_loader").symlink_to(Path(lazy_loader.__file__).parent)
    if installed:
        (tmp_path / "keras_autofit-9.9.dist-info").mkdir()
        (tmp_path / "keras_autofit-9.9.dist-info" / "METADATA").write_text("Name: keras-autofit\nVersion: 9.9\n")
    program = "import autofit, sys; assert 'autofit.records' not in sys.modules; print(autofit.__version__)"
    paths = os.pathsep.join((str(tmp_path), str(Path(autofit.__file__).parents[1])))
    without_site_packages = [sys.executable, "-S", "-c", program]
    done = subprocess.run(
        without_site_packages, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == version, done.stderr
