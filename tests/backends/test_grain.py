"""grain datasets of every kind: what is tuned about them, and what they do in a trial."""

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import grains
from tests.installed import needs

pytestmark = pytest.mark.slow
THREADS, PROCESSES = FitConfig(16, 2, 3), FitConfig(16, 2, None, True, 2)


@pytest.fixture(scope="session")
def backend(request):
    needs(request.param)
    needs("grain")
    return request.param


ONE_BACKEND = pytest.mark.parametrize("backend", ["jax"], indirect=True)
EVERY_BACKEND = pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"], indirect=True)


@ONE_BACKEND
@pytest.mark.parametrize(
    ("data", "kind", "knobs"),
    [
        (grains.mapped, "grain", {"batch_size": "batch_size"}),
        (
            grains.threads,
            "grain",
            {"batch_size": "batch_size", "workers": "num_threads", "max_queue_size": "prefetch_buffer_size"},
        ),
        (grains.buffers_samples, "grain", {"batch_size": "batch_size", "workers": "num_threads"}),
        (
            grains.processes,
            "grain with processes",
            {"batch_size": "batch_size", "workers": "num_workers", "prefetch_factor": "per_worker_buffer_size"},
        ),
        (
            grains.loader,
            "grain with processes",
            {"batch_size": "batch_size", "workers": "worker_count", "prefetch_factor": "worker_buffer_size"},
        ),
    ],
)
def test_a_grain_dataset_is_described(launched, play, data, kind, knobs):
    described = play(launched(data=data), FitConfig(8), role="describe")
    assert (described.input_kind, described.knobs, described.sample_count) == (kind, knobs, grains.ROWS)
    holds = [notice for notice in described.notices if "batches ready" in notice]
    assert bool(holds) == (data is grains.mapped)  # whose 12 batches grain would read at once


@EVERY_BACKEND
@pytest.mark.parametrize(("data", "config"), [(grains.mapped, FitConfig(16)), (grains.threads, THREADS)])
def test_a_grain_dataset_is_read_as_in_a_plain_fit(launched, play, tmp_path, data, config):
    assert len(_processes_that_read(launched, play, tmp_path, data, config)) == 1


@ONE_BACKEND
@pytest.mark.parametrize("data", [grains.processes, grains.loader])
def test_the_processes_of_grain_read_its_datasets(launched, play, tmp_path, data):
    # the first batch is looked at in the trial's own process
    assert len(_processes_that_read(launched, play, tmp_path, data, PROCESSES)) >= 3


def _processes_that_read(launched, play, tmp_path, data, config):
    witness = tmp_path / "pids"
    measurement = play(launched(data=data, data_kwargs={"witness": str(witness)}), config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    read = witness.read_text().split()
    assert len(read) >= 2 * grains.ROWS
    return set(read)


@ONE_BACKEND
@pytest.mark.parametrize(
    ("data", "config"), [(grains.threads, THREADS), pytest.param(grains.loader, PROCESSES, marks=pytest.mark.slow)]
)
def test_an_error_in_a_grain_source_is_shown(launched, play, data, config):
    failed = play(launched(data=data, data_kwargs={"case": w.RAISES}), config)
    assert failed.outcome is Outcome.ERROR
    assert "the fifth picture is broken" in failed.traceback
