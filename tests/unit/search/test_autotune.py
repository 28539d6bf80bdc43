"""AUTOTUNE in the search, for `tf.data` alone.

It is a category beside the numbers of workers and queue.
"""

import zlib
from dataclasses import replace

import optuna

from autofit.records.knobs import AUTOTUNE, AUTOTUNE_BATCHES, DATA_KNOBS, FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Limits
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.failures import dominated_by
from autofit.search.memory import Memory, host_bytes_by_part
from autofit.search.sampler import FrontierSampler
from autofit.search.space import build_space
from tests.fakes import DESCRIPTION, MIB, arrays, use_quick_models

AUTO = FitConfig(64, AUTOTUNE, AUTOTUNE)
CORES = 8


def space(asked=None, **changes):
    knobs = ("batch_size", "workers", "max_queue_size")
    return build_space(
        asked,
        knobs,
        **{"cores": CORES, "sample_count": 10_000, "autotunes": True, **changes},
    )


def test_tf_data_may_leave_workers_and_queue_to_autotune_and_each_setting_is_a_point_of_its_own():
    assert AUTO in set(space().configs())
    other = build_space(None, DATA_KNOBS, cores=CORES, sample_count=10_000)
    assert not any(AUTOTUNE in values for values in other.knobs().values())
    points = space(
        {"batch_size": [64], "workers": [-1, 1, 2, 16], "max_queue_size": [-1, 4]}
    ).configs()
    settings = [(point.workers, point.max_queue_size) for point in points]
    assert sorted(settings) == [
        (-1, -1),
        (-1, 4),
        (1, -1),
        (1, 4),
        (2, -1),
        (2, 4),
        (16, -1),
        (16, 4),
    ]


def test_a_host_oom_at_autotune_rules_out_larger_batches_of_autotune_alone():
    others = (
        replace(AUTO, batch_size=128),
        replace(AUTO, batch_size=32),
        FitConfig(128, 16, 32),
        FitConfig(128, -1, 32),
    )
    assert dominated_by(arrays(*others), arrays(AUTO), Outcome.HOST_OOM).tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert not dominated_by(
        arrays(AUTO), arrays(FitConfig(64, 1, 10)), Outcome.HOST_OOM
    )[0]
    assert dominated_by(arrays(FitConfig(64, 1, 10)), arrays(AUTO), Outcome.DEVICE_OOM)[
        0
    ]


def test_autotune_counts_as_a_thread_a_core_and_as_a_queue_in_host_memory():
    narrow = Limits(None, DESCRIPTION.process_bytes + 200 * MIB)
    memory = Memory(SearchContext(DESCRIPTION, narrow, CORES, False))
    as_numbers = FitConfig(64, CORES, AUTOTUNE_BATCHES)
    one, auto, in_numbers = memory.upper_bytes(
        ConfigArrays([FitConfig(64, 1, 10), AUTO, as_numbers], CORES)
    )[1]
    assert one <= narrow.host_bytes < auto == in_numbers
    assert host_bytes_by_part(DESCRIPTION, AUTO, 0, CORES) == host_bytes_by_part(
        DESCRIPTION, as_numbers, 0
    )


ASKED = {"batch_size": [8, 64], "workers": [-1, 1], "max_queue_size": [-1, 4]}


def test_the_sampler_proposes_autotune_to_plain_optuna(monkeypatch):
    use_quick_models(monkeypatch)
    sampler = FrontierSampler(ASKED, cores=CORES)
    tried = []
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def objective(trial):
        tried.append(sampler.suggest(trial))
        return float(zlib.crc32(str(tried[-1]).encode()) % 5000 + 1)  # erratic

    study.optimize(objective, n_trials=8)
    assert set(tried) == set(space(ASKED).configs())
    assert [FitConfig.of(trial.params) for trial in study.trials] == tried
