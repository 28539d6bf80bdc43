"""grain datasets: what is tuned about them, and what they do in a trial."""

import functools

import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests.backends import grains
from tests.installed import needs

BACKEND = "jax"
THREADS, PROCESSES = FitConfig(16, 2, 3), FitConfig(16, 2, None, True, 2)
BY_THREADS = {
    "batch_size": "batch_size",
    "workers": "num_threads",
    "max_queue_size": "prefetch_buffer_size",
}
BY_PROCESSES = {
    "batch_size": "batch_size",
    "workers": "num_workers",
    "prefetch_factor": "per_worker_buffer_size",
}

ALONE = {"batch_size": "batch_size", "workers": "num_workers"}


@pytest.fixture(autouse=True)
def grain():
    needs("grain")


def test_a_dataset_that_grain_reads_with_its_defaults_is_refused_with_the_line_to_write(
    launched, play
):
    with pytest.raises(
        UsageError,
        match=r"to_iter_dataset\(grain\.ReadOptions\(num_threads, prefetch_buffer_size\)\)",
    ):
        play(launched(data=grains.mapped), FitConfig(8), role="describe")


@pytest.mark.parametrize(
    ("data", "kind", "knobs", "config"),
    [
        (grains.threads, "grain", BY_THREADS, THREADS),
        (grains.loader, "grain with processes", BY_PROCESSES, PROCESSES),
        (
            functools.partial(grains.loader, per_worker_buffer_size=1),
            "grain with processes",
            ALONE,
            FitConfig(16, 2),
        ),
    ],
)
def test_a_grain_dataset_is_described_and_read_as_in_a_plain_fit(
    launched, play, tmp_path, data, kind, knobs, config
):
    witness = tmp_path / "pids"
    launcher = launched(data=data, data_kwargs={"witness": str(witness)})
    described = play(launcher, FitConfig(8), role="describe")
    assert (described.input_kind, described.knobs) == (kind, knobs)
    assert described.defaults.get("prefetch_factor") == (
        None if config is THREADS else 1
    )
    witness.unlink()
    measurement = play(launcher, config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    read = witness.read_text().split()
    # the trial's own process looks at the first batch
    assert len(set(read)) == 1 if config is THREADS else len(set(read)) >= 3
