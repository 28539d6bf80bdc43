"""What a fresh interpreter loads, prints and returns."""

import os
import subprocess
import sys
from pathlib import Path

import lazy_loader
import pytest

import autofit

HEAVY = ("tensorflow", "jax", "torch", "keras", "optuna", "rich", "plotly", "jinja2")


@pytest.mark.parametrize(
    "statement", ["import autofit", "import autofit; dir(autofit); autofit.FitConfig; autofit.UsageError"]
)
def test_importing_autofit_loads_nothing_heavy(statement):
    program = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_driver_loads_no_backend_and_a_known_answer_waits_for_no_heavy_library():
    libraries = ("tensorflow", "keras", "jax", "torch", "optuna", "sqlalchemy", "scipy", "plotly")
    program = f"import autofit.api, autofit.cli, sys; print([m for m in {libraries!r} if m in sys.modules])"
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


def test_the_exit_code_of_a_wrong_call():
    assert run("tune", "missing.yaml").returncode == 2


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "autofit", *arguments], capture_output=True, text=True, check=False)
