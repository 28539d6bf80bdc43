"""Trials of models that several devices train together.

The devices are logical ones of this CPU, by real strategies of Keras.
"""

import pytest

import autofit
from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.machine import Placement
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload
from tests.devices import jobs
from tests.installed import needs


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def backend(request):
    needs(request.param)
    return request.param


@pytest.fixture(scope="module")
def on_two(backend):
    """Warm servers on two devices, which get another workload for each test."""
    with ProcessLauncher(
        Workload(jobs.build, jobs.Table, backend=backend), Placement(count=2)
    ) as launcher:

        def on_two(build_model, **kwargs):
            launcher.change(
                Workload(build_model, jobs.Table, backend=backend, **kwargs)
            )
            return launcher

        yield on_two


def test_both_devices_train_with_batches_that_are_global(backend, on_two, play):
    launcher = on_two(jobs.build, distribution="data_parallel")
    described = play(launcher, FitConfig(), role="describe")
    (sizes,) = (text for text in described.notices if "2 devices" in text)
    assert "multiples of 2" in sizes
    limit = (
        64 * 2**20 if backend == "tensorflow" else None
    )  # which the devices of a CPU share
    measured = play(launcher, FitConfig(64, 1, 10, False), device_bytes=limit)
    assert measured.samples_per_second * measured.step_seconds == pytest.approx(64)
    assert limit is None or 0 < measured.device_peak_bytes < limit


def test_a_model_that_does_not_train_on_both_devices_is_refused_with_a_remedy(
    backend, on_two, play
):
    build_model, remedy = (
        (jobs.build, "MirroredStrategy")
        if backend == "tensorflow"
        else (jobs.build_by_model, "DataParallel")
    )
    with pytest.raises(UsageError, match=remedy) as caught:
        play(on_two(build_model), FitConfig(), role="describe")
    assert caught.value.key == "device"


@pytest.mark.parametrize(
    ("arguments", "key", "name"),
    [
        ({"backend": "torch"}, "device", "torch"),
        ({"call": "predict"}, "device", "predict"),
        (
            {"device": "3x cpu", "baseline": {"batch_size": 32}},
            "baseline.batch_size",
            "32",
        ),
    ],
)
def test_arguments_that_do_not_suit_are_refused_before_anything_runs(
    arguments, key, name
):
    needs(arguments.get("backend", "tensorflow"))
    with pytest.raises(UsageError) as caught:
        autofit.tune(
            jobs.build,
            jobs.Table,
            **{"device": "2x cpu", "progress": False, **arguments},
        )
    assert caught.value.key == key
    assert name in caught.value.problem
