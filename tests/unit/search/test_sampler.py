"""FrontierSampler with plain Optuna.

That is `study.optimize`, resumption, and the attributes of a trial.
"""

import optuna
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.search.frontier import EXHAUSTED, Reason
from autofit.search.sampler import FrontierSampler
from tests.fakes import use_quick_models

ASKED = {
    "batch_size": {"min": 1, "max": 512},
    "workers": [1, 2, 4, 8],
    "max_queue_size": [2, 10],
}
DEVICE, HOST = 1000.0, 4000.0


def optimized(count, study=None):
    """Run trials of a plain Optuna user; return sampler and study.

    Samples per second follow a formula, memory is in any unit.
    """
    sampler = FrontierSampler(ASKED, cores=8)
    study = study or optuna.create_study(direction="maximize")
    study.sampler = sampler

    def objective(trial):
        config = sampler.suggest(trial)
        device = 100 + 4 * config.batch_size
        host = 500 + config.batch_size * (
            config.max_queue_size if config.has_queue else 1
        )
        trial.set_constraint("device_memory", device / DEVICE - 1)
        trial.set_constraint("host_memory", host / HOST - 1)
        if device > DEVICE or host > HOST:
            return 0.0
        compute = config.batch_size / (0.05 + 0.001 * config.batch_size)
        made = 200 * config.workers
        trial.set_user_attr("compute_samples_per_second", compute)
        trial.set_user_attr("input_samples_per_second", made)
        return min(compute, made)

    callbacks = [sampler.stop_when_settled] if count is None else []
    study.optimize(objective, n_trials=count or 30, callbacks=callbacks)
    return sampler, study


def test_study_optimize_finds_the_best_and_stops():
    sampler, study = optimized(None)
    assert len(study.trials) < 15
    assert not any(trial.value == 0 for trial in study.trials)
    assert study.best_value > 0.95 * 220 / (0.05 + 0.22)
    assert FitConfig.of(study.trials[0].params) == FitConfig(8, 1, 10)
    assert sampler.proposal.reason in (Reason.PROMISE, Reason.RISK)
    assert sampler.proposal.device_share > 0


def test_it_goes_on_where_a_study_was_and_within_what_fits_if_more_is_asked_than_is_worth_it(
    monkeypatch,
):
    use_quick_models(monkeypatch)
    sampler, straight = optimized(12)
    _, study = optimized(3)
    _, study = optimized(2, study)
    assert [trial.params for trial in study.trials] == [
        trial.params for trial in straight.trials[:5]
    ]
    assert len({tuple(trial.params.items()) for trial in straight.trials}) == 12
    assert sum(trial.value == 0 for trial in straight.trials) <= 1
    assert "expected to gain" in sampler.stop_reason(straight)


def test_a_space_that_is_exhausted_is_said_and_other_parameters_may_be_searched_beside_the_knobs():
    sampler = FrontierSampler({"batch_size": [8, 16]}, cores=2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(
        lambda trial: (
            sampler.suggest(trial).batch_size * trial.suggest_float("rate", 0.1, 1)
        ),
        n_trials=2,
    )
    assert all(0.1 <= trial.params["rate"] <= 1 for trial in study.trials)
    assert sampler.stop_reason(study) == EXHAUSTED
    with pytest.raises(RuntimeError, match=EXHAUSTED):
        study.ask(sampler.distributions)


@pytest.mark.parametrize(
    ("asked", "key", "named"),
    [
        ({"batchsize": [8]}, "space.batchsize", "batch_size"),
        ({"batch_size": {"min": 64, "max": 8}}, "space.batch_size", "min"),
        ({}, None, "batch_size"),
    ],
)
def test_an_illegal_space_is_an_error(asked, key, named):
    with pytest.raises(UsageError) as caught:
        FrontierSampler(asked)
    assert caught.value.key == key
    assert named in str(caught.value)
