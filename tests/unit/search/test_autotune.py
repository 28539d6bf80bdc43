"""AUTOTUNE in the search: a category beside the numbers of workers and queue, for `tf.data` alone."""

import re
import zlib
from dataclasses import replace

import numpy as np
import optuna
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import DATA_KNOBS
from autofit.records.states import Outcome
from autofit.records.trial import AUTOTUNE, AUTOTUNE_BATCHES, Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.context import SearchContext
from autofit.search.failures import dominated_by, ruled_out
from autofit.search.frontier import FrontierSearch, difference
from autofit.search.memory import Memory, host_bytes_by_part
from autofit.search.rates import Rates
from autofit.search.sampler import BoundedSampler, FrontierSampler
from autofit.search.space import build_space, cost
from autofit.storage import codec
from tests.fakes import DESCRIPTION, MIB, arrays

TF_DATA = ("batch_size", "workers", "max_queue_size")
AUTO = FitConfig(64, AUTOTUNE, AUTOTUNE)
CORES = 8


def space(asked=None, knobs=TF_DATA, **changes):
    return build_space(asked, knobs, **{"cores": CORES, "sample_count": 10_000, "autotunes": True, **changes})


def ran(config, rate, compute=8000.0, inputs=None):
    evidence, alone = (
        Evidence("ran to its end"),
        {"compute_samples_per_second": compute, "input_samples_per_second": inputs or rate},
    )
    return Trial(config, Measurement(Outcome.OK, evidence, 2.0, rate, 0.01, **alone))


def test_tf_data_may_leave_workers_and_queue_to_autotune():
    assert space().workers[0] == space().max_queue_size[0] == AUTOTUNE
    assert AUTOTUNE not in space().batch_size
    assert AUTO in set(space().configs())
    for knobs in (DATA_KNOBS, ("batch_size",)):
        other = build_space(None, knobs, cores=CORES, sample_count=10_000)
        assert all(AUTOTUNE not in values for values in other.knobs().values())


def test_each_setting_with_autotune_is_a_point_of_its_own():
    points = set(space({"batch_size": [64], "workers": [-1, 1, 2, 16], "max_queue_size": [-1, 4]}).configs())
    settings = {(point.workers, point.max_queue_size) for point in points}
    assert settings == {(-1, -1), (-1, 4), (1, -1), (1, 4), (2, -1), (16, -1), (2, 4), (16, 4)}
    assert all(space().canonical(point) == point for point in space().configs())


def test_a_queue_that_is_autotunes_alone_leaves_the_numbers_of_the_baseline_alone():
    only = space({"max_queue_size": [-1]})
    assert only.canonical(FitConfig(32, 1, 10)) == FitConfig(32, 1, 10)
    assert only.canonical(FitConfig(32, 1, AUTOTUNE)) == FitConfig(32, 1, AUTOTUNE)


@pytest.mark.parametrize(
    ("asked", "autotunes"),
    [
        ({"workers": [-1, 2]}, False),
        ({"max_queue_size": [-1]}, False),
        ({"workers": {"min": -1, "max": 4}}, True),
        ({"workers": [-2]}, True),
        ({"batch_size": [-1]}, True),
    ],
)
def test_autotune_is_refused_where_it_means_nothing(asked, autotunes):
    ((knob, value),) = asked.items()
    with pytest.raises(UsageError, match=re.escape(repr(value))) as caught:
        space(asked, autotunes=autotunes)
    assert caught.value.key == f"space.{knob}"


def test_autotune_is_named_in_words():
    assert str(AUTO) == "batch 64, auto threads, queue auto"
    assert str(FitConfig(64, 1, AUTOTUNE)) == "batch 64, 1 thread, queue auto"
    assert str(FitConfig(64, None, AUTOTUNE)) == "batch 64, queue auto"
    assert difference(AUTO, FitConfig(32, 2, 4)) == "larger batch, workers auto, queue auto"
    assert difference(FitConfig(64, 2, AUTOTUNE), AUTO) == "workers 2"


def test_what_is_known_is_cheaper_than_what_may_take_all_cores():
    assert cost(FitConfig(64, 16, 32)) < cost(AUTO) < cost(FitConfig(65, 1, 10))
    assert cost(FitConfig(64, 2, 32)) < cost(FitConfig(64, 2, AUTOTUNE)) < cost(FitConfig(64, 4, 2))


def test_a_host_oom_at_autotune_rules_out_larger_batches_of_autotune_alone():
    ruled_out = {
        config
        for config in (
            replace(AUTO, batch_size=128),
            replace(AUTO, batch_size=32),
            FitConfig(128, 16, 32),
            FitConfig(128, -1, 32),
        )
        if dominated_by(arrays(config), arrays(AUTO), Outcome.HOST_OOM)[0]
    }
    assert ruled_out == {replace(AUTO, batch_size=128)}
    assert not dominated_by(arrays(AUTO), arrays(FitConfig(64, 1, 10)), Outcome.HOST_OOM)[0]
    assert dominated_by(arrays(FitConfig(64, 1, 10)), arrays(AUTO), Outcome.DEVICE_OOM)[0]


@pytest.mark.parametrize("is_hung", [False, True])
def test_autotune_that_failed_counts_as_a_thread_a_core(is_hung):
    others = [FitConfig(b, w, 8) for b in (32, 64, 128) for w in (1, 2, 4, 8, 16)] + [replace(AUTO, batch_size=128)]

    def out(workers):
        slow = FitConfig(64, workers, 8)
        trial = Trial(slow, Measurement(Outcome.TIMEOUT, Evidence("ended at its deadline", hung=is_hung)))
        return ruled_out(arrays(*others, cores=CORES), [trial], CORES).tolist()

    assert out(AUTOTUNE) == out(CORES)
    assert [any(out(AUTOTUNE)), all(out(AUTOTUNE)), out(AUTOTUNE)[-1]] == [True, False, True]


def test_autotune_counts_as_a_thread_a_core_and_as_a_queue_in_host_memory():
    memory = Memory(SearchContext(DESCRIPTION, Limits(None, 2**33), CORES, False))
    assert memory.host(AUTO) == memory.host(FitConfig(64, CORES, AUTOTUNE_BATCHES))
    parts = host_bytes_by_part(DESCRIPTION, AUTO, 0, CORES)
    assert parts == host_bytes_by_part(DESCRIPTION, FitConfig(64, CORES, AUTOTUNE_BATCHES), 0)
    assert parts["queue"] > AUTOTUNE_BATCHES * 64 * DESCRIPTION.sample_bytes
    assert parts["worker_processes"] == 0


def predicted(trials, *configs):
    context = SearchContext(replace(DESCRIPTION, sample_bytes=1000), Limits(None, 2**33), CORES, False)
    model = Rates(trials, context)
    return np.exp(model.predict(arrays(*configs)).mean)


def test_a_reading_of_autotune_is_learned_for_autotune_and_hardly_for_the_numbers():
    numbers = [ran(FitConfig(64, 1, 10), 500.0), ran(FitConfig(64, 2, 10), 1000.0), ran(FitConfig(64, 8, 10), 2000.0)]
    before = predicted(numbers, FitConfig(128, 8, 10), replace(AUTO, batch_size=128))
    after = predicted([*numbers, ran(AUTO, 1000.0)], FitConfig(128, 8, 10), replace(AUTO, batch_size=128))
    assert before[1] == pytest.approx(before[0], rel=0.15)  # unknown: as many threads as cores
    assert after[0] == pytest.approx(before[0], rel=0.15)
    assert after[1] == pytest.approx(1000.0, rel=0.2)


def test_workers_matter_where_the_queue_is_no_knob():
    trials = [ran(FitConfig(64, 1), 500.0), ran(FitConfig(64, 4), 1900.0)]
    one, four = predicted(trials, FitConfig(96, 1), FitConfig(96, 4))
    assert four > 2.5 * one


def test_the_present_config_is_the_first_probe_where_it_leaves_the_workers_to_autotune():
    search = FrontierSearch(
        space(), AUTO, SearchContext(replace(DESCRIPTION, footprints=()), Limits(None, 2**33), CORES, False)
    )
    assert search.propose(()).proposal.config == replace(AUTO, batch_size=8)


def test_optuna_stores_autotune_as_a_choice_beside_numbers():
    limits, study = Limits(None, 2**33), optuna.create_study(direction="maximize")
    for trial in (ran(FitConfig(64, 2, 10), 900.0), ran(AUTO, 1000.0)):
        study.add_trial(codec.frozen_trial(trial, limits, space().knobs()))
    assert [codec.trial_of(stored, limits).config for stored in study.trials] == [FitConfig(64, 2, 10), AUTO]


def test_the_sampler_proposes_autotune_to_plain_optuna():
    sampler = FrontierSampler({"batch_size": [8, 64], "workers": [-1, 1, 4], "max_queue_size": [-1, 4]}, cores=CORES)
    study, tried = optuna.create_study(direction="maximize", sampler=sampler), []

    def objective(trial):
        tried.append(sampler.suggest(trial))
        return float(zlib.crc32(str(tried[-1]).encode()) % 5000 + 1)  # erratic

    study.optimize(objective, n_trials=12)
    assert len(set(tried)) == 12
    assert {config.workers for config in tried} == {-1, 1, 4}
    assert {config.max_queue_size for config in tried} == {-1, 4}
    assert [FitConfig.of(trial.params) for trial in study.trials] == tried


def test_another_sampler_proposes_autotune_as_well():
    limits, allowed = Limits(None, 2**33), space()
    sampler = BoundedSampler(optuna.samplers.RandomSampler(seed=0), allowed, baseline=AUTO, limits=limits, cores=CORES)
    study, tried = optuna.create_study(direction="maximize", sampler=sampler), []
    for _ in range(20):
        trial = study.ask()
        tried.append(sampler.suggest(trial))
        study.tell(trial, 100.0)
    assert len(set(tried)) == 20
    assert set(tried) <= set(allowed.configs())
    assert -1 in {config.workers for config in tried}
    assert -1 in {config.max_queue_size for config in tried}


def test_the_queue_of_autotune_counts_in_bytes():
    narrow = Limits(None, DESCRIPTION.process_bytes + 200 * MIB)
    memory = Memory(SearchContext(DESCRIPTION, narrow, CORES, False))
    assert memory.fits(FitConfig(64, 1, 10))
    assert not memory.fits(AUTO)
