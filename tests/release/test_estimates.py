"""Estimates on JAX and torch against each other, and loaders whose workers are not forked."""

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.search.memory import estimates
from tests import workloads as w
from tests.backends import loaders

SIZES = (8, 32, 128)
ON_BOTH = pytest.mark.parametrize("backend", ["jax", "torch"], scope="module")


@ON_BOTH
@pytest.mark.parametrize("build", [w.build_model, w.build_recurrent])
def test_the_estimate_of_a_size_lies_on_the_line_of_two_others(launched, play, build):
    launcher = launched(build)
    whole = play(launcher, role="describe", batch_sizes=SIZES, compile_all=True)
    assert [footprint.batch_size for footprint in whole.footprints] == list(SIZES)
    assert estimates(whole.footprints[:2], np.array([128]))[0] == pytest.approx(
        whole.footprints[-1].device_bytes, rel=0.03
    )
    parts = whole.footprints[0].device_bytes_by_part
    assert parts["weights"] >= whole.parameter_bytes
    assert parts["optimizer"] == whole.optimizer_bytes


@pytest.mark.parametrize(
    ("backend", "start_method"),
    [("jax", "spawn"), ("torch", "forkserver")],
    scope="module",
)
def test_workers_that_are_not_forked_are_tried_and_their_errors_are_shown(
    launched, play, start_method
):
    config = FitConfig(8, 2, None, True, 2)
    measurement = play(
        launched(data=loaders.loader, data_kwargs={"start_method": start_method}),
        config,
    )
    assert measurement.outcome is Outcome.OK, measurement.evidence
    failed = play(
        launched(
            data=loaders.loader,
            data_kwargs={"start_method": start_method, "case": w.RAISES},
        ),
        config,
    )
    assert failed.outcome is Outcome.ERROR
    assert "the fifth picture is broken" in failed.traceback
