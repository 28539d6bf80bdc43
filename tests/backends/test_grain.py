"""grain datasets: what is tuned about them, and what they do in a trial."""

import pytest

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import workloads as w
from tests.backends import grains
from tests.installed import needs

BACKEND = "jax"
THREADS, PROCESSES = FitConfig(16, 2, 3), FitConfig(16, 2, None, True, 2)
BY_THREADS = {"batch_size": "batch_size", "workers": "num_threads", "max_queue_size": "prefetch_buffer_size"}
BY_PROCESSES = {"batch_size": "batch_size", "workers": "num_workers", "prefetch_factor": "per_worker_buffer_size"}


@pytest.fixture(autouse=True)
def grain():
    needs("grain")


@pytest.mark.parametrize(
    ("data", "kind", "knobs"),
    [(grains.threads, "grain", BY_THREADS), (grains.loader, "grain with processes", BY_PROCESSES)],
)
def test_a_grain_dataset_is_described(launched, play, data, kind, knobs):
    described = play(launched(data=data), FitConfig(8), role="describe")
    assert (described.input_kind, described.knobs) == (kind, knobs)


def test_a_dataset_that_grain_reads_with_its_defaults_is_refused_with_the_line_to_write(launched, play):
    with pytest.raises(UsageError, match=r"to_iter_dataset\(grain\.ReadOptions\(num_threads, prefetch_buffer_size\)\)"):
        play(launched(data=grains.mapped), FitConfig(8), role="describe")


@pytest.mark.parametrize(("data", "config", "processes"), [(grains.threads, THREADS, 1), (grains.loader, PROCESSES, 3)])
def test_a_grain_dataset_is_read_as_in_a_plain_fit(launched, play, tmp_path, data, config, processes):
    witness = tmp_path / "pids"
    measurement = play(launched(data=data, data_kwargs={"witness": str(witness)}), config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    read = witness.read_text().split()
    assert len(read) >= 2 * grains.ROWS
    # the trial's own process looks at the first batch
    assert len(set(read)) == 1 if processes == 1 else len(set(read)) >= processes


def test_an_error_in_a_grain_source_is_shown(launched, play):
    failed = play(launched(data=grains.loader, data_kwargs={"case": w.RAISES}), PROCESSES)
    assert failed.outcome is Outcome.ERROR
    assert "the fifth picture is broken" in failed.traceback
