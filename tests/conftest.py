import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from autofit.machine import gpus

UNIT = Path(__file__).parent / "unit"

settings.register_profile("shared machine", deadline=None)  # no time that a busy machine could spoil
settings.load_profile("shared machine")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # tunes of two workers run at once, as their tests do not time them
    folder = Path(tempfile.gettempdir()) / f"autofit-tests-{os.getuid()}-{worker}"
    folder.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def pytest_configure(config):
    config.option.loadscopereorder = False  # pytest-xdist starts the files in the order below


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: UNIT in item.path.parents)  # the shortest last, so that the workers end together
    if gpus.nvidia_devices():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="the NVIDIA driver reports no GPU on this machine"))
