"""The wheel as a user gets it: built, installed from the file into a new environment, and run there."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]


def run(*command, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "timeout": 800}
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built with what is installed, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `bin` of a new environment with the wheel in it; the dependencies are those of the running environment."""
    folder = tmp_path_factory.mktemp("new")
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    running = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *filter(is_site_packages, sys.path)}
    (packages / "running.pth").write_text("\n".join(sorted(running)))
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, folder=folder)
    return folder / "bin"


def is_site_packages(path):
    return Path(path).name == "site-packages"


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"autofit"}
    tracked = {str(file.relative_to(ROOT)) for file in (ROOT / "autofit").rglob("*") if file.is_file()}
    assert names == {name for name in tracked if "__pycache__" not in name}


@pytest.mark.slow
def test_the_installed_commands_work(installed, tmp_path):
    where = run(installed / "python", "-c", "import autofit; print(autofit.__file__, autofit.__version__)", folder=tmp_path)
    file, version = where.split()
    assert Path(file).is_relative_to(installed.parent)
    assert version == VERSION
    assert run(installed / "autofit", "--version", folder=tmp_path) == f"autofit {VERSION}\n"
    result = ROOT / "tests" / "data" / "pinned" / "result.json"
    run(installed / "autofit", "report", result, "--output", "page.html", folder=tmp_path)
    assert "</html>" in (tmp_path / "page.html").read_text()
