import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from autofit.machine import gpus

TESTS = Path(__file__).parent
UNIT = TESTS / "unit"
BEFORE_A_RELEASE = (
    "faults",
    "hosts",
    "backends/test_facts.py",
    "backends/test_keras_hub.py",
    "backends/test_without_tensorflow.py",
    "devices/test_facts.py",
    "trial/test_keras_facts.py",
)
WITH_EVERY_CHANGE = {
    "adapter": "torch",
    "grain": "jax",
    "heat": "jax",
    "inference": "jax",
    "inputs": "jax",
    "loaders": "torch",
    "noise": "tensorflow",
    "outcomes": "torch",
    "program": "jax",
    "steps_per_execution": "tensorflow",
}
"""The backend on which the tests of a file in `backends/` run with every change; on the others, before a release."""

settings.register_profile("shared machine", deadline=None)  # no time that a busy machine could spoil
settings.load_profile("shared machine")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # tunes of two workers run at once, as their tests do not time them
    folder = Path(tempfile.gettempdir()) / f"autofit-tests-{os.getuid()}-{worker}"
    folder.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def pytest_configure(config):
    config.option.loadscopereorder = False  # pytest-xdist starts the files in the order below


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        path, name = item.path.relative_to(TESTS), item.path.stem.removeprefix("test_")
        backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
        is_repeated = path.parts[0] == "backends" and backend and backend != WITH_EVERY_CHANGE.get(name, backend)
        if path.as_posix().startswith(BEFORE_A_RELEASE) or is_repeated:
            item.add_marker("release")
            item.add_marker("slow")
    items.sort(key=lambda item: UNIT in item.path.parents)  # the shortest last, so that the workers end together
    if gpus.nvidia_devices():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="the NVIDIA driver reports no GPU on this machine"))
