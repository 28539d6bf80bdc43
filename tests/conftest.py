import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
UNIT = TESTS / "unit"
BEFORE_A_RELEASE = (
    "faults",
    "hosts",
    "backends/test_absent_gpu.py::test_the_memory_on_a_gpu_that_is_not_there_is_estimated[tensorflow",
    "backends/test_estimates.py::test_the_estimate_of_a_size_lies_on_the_line_of_two_others",
    "backends/test_facts.py",
    "backends/test_grain.py::test_the_processes_of_grain_read_its_datasets",
    "backends/test_keras_hub.py",
    "backends/test_reference.py::test_the_example_runs",
    "backends/test_steps_per_execution.py::test_on_torch_they_are_refused_before_a_trial",
    "backends/test_without_tensorflow.py",
    "cli/test_notebook.py::test_the_example_notebook_runs_from_top_to_bottom",
    "cli/test_secrets.py::test_arguments_are_shown_as_written_in_a_tune_and_a_sweep",
    "devices/test_tunes.py::test_a_tune_on_two_devices_tries_even_batches_and_its_snippet_trains_on_both",
    "trial/test_keras_facts.py",
    "trial/test_lifetime.py",
    "trial/test_measuring.py::test_both_kinds_of_process_give_the_same",
    "trial/test_memory.py::test_what_is_estimated_is_about_what_is_measured",
    "trial/test_tensorflow_facts.py",
)
"""The beginnings of paths, or of names of tests, in `tests/`."""
WITH_EVERY_CHANGE = {
    "grain": "jax",
    "inference": "jax",
    "inputs": "jax",
    "loaders": "torch",
    "model_arguments": "tensorflow",
    "outcomes": "torch",
    "program": "jax",
    "steps_per_execution": "tensorflow",
}
"""The backend on which the tests of a file in `backends/` run with every change; on the others, before a release."""

# no time that a busy machine could spoil, and the same examples in each run
settings.register_profile("shared machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
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
        if f"{path.as_posix()}::{item.name}".startswith(BEFORE_A_RELEASE) or is_repeated:
            item.add_marker("release")
            item.add_marker("slow")
    items.sort(key=lambda item: UNIT in item.path.parents)  # the shortest last, so that the workers end together
