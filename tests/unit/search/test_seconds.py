"""The expected seconds of a run, by what is known of backends and by what was seen."""

from dataclasses import replace

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.seconds import relative_seconds
from tests.fakes import DESCRIPTION, arrays


def context_of(backend, *, on_cpu=False, **changes):
    description = replace(DESCRIPTION, versions={"backend": backend}, **changes)
    return SearchContext(description, Limits(2**40, 2**40), 8, on_cpu=on_cpu)


def ran(config, seconds, first=0.0):
    phases = {Phase.BUILDING: 1.0, Phase.FIRST_STEP: first}
    return Trial(
        config,
        Measurement(
            Outcome.OK,
            Evidence("ran"),
            seconds,
            samples_per_second=1.0,
            phase_seconds=phases,
        ),
    )


def oom(seconds):
    return Trial(
        FitConfig(512), Measurement(Outcome.DEVICE_OOM, Evidence("full"), seconds)
    )


@pytest.mark.parametrize(
    ("backend", "on_cpu", "ooms", "beyond"),
    [
        ("torch", False, [], 0.0),  # it is one of the trials all the same
        ("jax", False, [], 10.0),
        ("tensorflow", False, [], 10.0),
        ("tensorflow", True, [], 60.0),
        ("torch", False, [30.0], 20.0),
        ("jax", False, [14.0, 16.0], 5.0),
    ],
)
def test_an_oom_takes_what_it_took_or_what_it_takes_on_its_backend(
    backend, on_cpu, ooms, beyond
):
    trials = [ran(FitConfig(32), 10.0), *map(oom, ooms)]
    context = context_of(backend, on_cpu=on_cpu)
    configs = arrays(FitConfig(32), FitConfig(64))
    risk = np.array([0.0, 0.5])
    relative = relative_seconds(configs, risk, trials, context)
    assert relative == pytest.approx([1.0, 1 + 0.5 * beyond / 10.0])


@pytest.mark.parametrize(
    ("backend", "changes", "expected"),
    [
        ("jax", {"jit_compile": True}, [9.0, 9.0, 21.0]),
        ("jax", {"jit_compile": True, "stacks_steps": True}, [9.0, 21.0, 21.0]),
        ("tensorflow", {"jit_compile": True}, [9.0, 21.0, 21.0]),
        ("tensorflow", {"jit_compile": False}, [17.0, 17.0, 17.0]),
    ],
)
def test_a_step_that_is_compiled_already_takes_less(backend, changes, expected):
    """Trials take 17 s in the mean; two in three compile a step, for 12 s."""
    trials = [
        ran(FitConfig(32), 20.0, first=12.0),
        ran(FitConfig(64), 22.0, first=14.0),
        ran(FitConfig(32, 2), 9.0, first=1.0),
    ]
    calls = FitConfig(32, steps_per_execution=8)
    other = FitConfig(128)
    configs = arrays(FitConfig(32, 4), calls, other)
    seconds = 17.0 * relative_seconds(
        configs, np.zeros(3), trials, context_of(backend, **changes)
    )
    assert seconds == pytest.approx(expected)
    quick = [ran(trial.config, 20.0, first=0.9) for trial in trials]
    context = context_of(backend, **changes)
    assert relative_seconds(configs, np.zeros(3), quick, context) == pytest.approx(
        [1.0] * 3
    )
