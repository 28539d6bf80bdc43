"""Every input kind and knob: what is searched, and that what is rendered takes effect where it is pasted.

A real describing trial says what the knobs are; the snippet of a chosen config then runs in a fresh interpreter, in which
the witnesses write down what came of it.
"""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.result import Answer, Speedup, TuneLog
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.report import snippet
from autofit.search.space import SearchSpace, build_space
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.problem import Problem
from autofit.tuning.record import record_of
from autofit.workload.binding import call_source_of
from autofit.workload.inputs.kinds import refuse_unsupported
from autofit.workload.workload import Workload
from tests.fakes import MIB, drain, make_request, most_steps
from tests.workload import witness as w
from tests.workload.fresh import Fresh

LIMITS = Limits(None, 8 * 2**30)


class Tuned:
    """A workload as a tune would leave it, but for the search: described, a config chosen, rendered."""

    def __init__(self, fresh, launcher, folder, workload, **asked):
        self._fresh, self.folder = fresh, folder
        self._request = make_request(folder, call_source=call_source_of(workload), host_bytes=8192 * MIB, **asked)
        self._effective = asked.get("effective_batch_size")
        launcher.change(workload)
        spec = TrialSpec(Role.DESCRIBE, FitConfig(16, 1, 10, False), LIMITS, 600, effective_batch_size=self._effective)
        self.description = drain(launcher.run(spec))[1]
        assert not hasattr(self.description, "outcome"), self.description

    def space(self):
        """What would be searched."""
        return build_space({}, self.description.knobs, cores=2, sample_count=self.description.sample_count)

    def snippet(self, config):
        """The lines to paste for a config."""
        chosen = Answer(config, 1.0, None, None, None, Speedup(config, Outcome.OK))
        request = self._request
        seen = TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self.description,
            trials=(),
            seconds=1.0,
            call_source=request.call_source,
        )
        problem = Problem(request, self.description, SearchSpace(), chosen.config)
        return snippet.render(record_of(problem, seen, (chosen, chosen), "settled"))

    def run(self, config, before="", elided="..."):
        """Run them in a fresh interpreter, with code for what is elided; returns what was written down."""
        path = self.folder / f"{config.batch_size}-{config.workers}-{config.max_queue_size}.jsonl"
        code = f"{before}\n{self.snippet(config)}\n".replace("(...", f"({elided}")
        told = self._fresh.run(code, WITNESS=str(path))
        assert told == "", f"{code}\n{told}"
        lines = w.read(path)
        epoch = w.made(path)
        return {
            "samples": {line["samples"] for line in epoch},
            "processes": len({line["process"] for line in epoch}),
            "at_once": max((line["at_once"] for line in epoch), default=0),
            "ahead": next((line["ahead"] for line in lines if "ahead" in line), None),
            "updates": next((line["updates"] for line in lines if "updates" in line), None),
            "made": len(epoch),
        }


@pytest.fixture(scope="module")
def fresh():
    """What starts fresh interpreters."""
    running = Fresh("keras", "tensorflow")
    yield running
    running.close()


@pytest.fixture(scope="module")
def launcher():
    """One warm launcher for all workloads."""
    with ProcessLauncher(Workload(w.build_model, w.Dataset), None) as launcher:
        yield launcher


@pytest.fixture
def tuned(fresh, launcher, tmp_path):
    """Tune without searching."""

    def tuned(build_model, data, data_kwargs=None, fit_kwargs=None, **asked):
        workload = Workload(build_model, data, data_kwargs=data_kwargs or {}, fit_kwargs=fit_kwargs or {})
        return Tuned(fresh, launcher, tmp_path, workload, **asked)

    return tuned


def searched(tuned):
    return set(tuned.space().knobs())


@pytest.mark.slow
def test_a_pydataset_takes_all_knobs_in_its_constructor(tuned):
    tuned = tuned(w.build_model, w.Dataset)
    assert searched(tuned) == {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
    threads = tuned.run(FitConfig(24, 3, 4, False))
    assert (threads["samples"], threads["processes"], threads["at_once"]) == ({24}, 1, 3)
    assert threads["ahead"] == 4 + 1 + 2  # the queue and one more, and two that tf.data has taken
    processes = tuned.run(FitConfig(24, 2, 4, True))
    assert processes["processes"] == 3  # two workers, and the first batch is made where `fit` runs
    assert tuned.run(FitConfig(8, 3, 8, False))["ahead"] - threads["ahead"] == 4


def test_a_queue_that_keras_does_not_make_is_not_rendered(tuned):
    tuned = tuned(w.build_model, w.Dataset)
    assert "max_queue_size" not in tuned.snippet(FitConfig(24, 1, 10, False))
    assert "max_queue_size=4" in tuned.snippet(FitConfig(24, 2, 4, False))


def test_a_queue_without_workers_to_fill_it_is_not_searched(tuned):
    assert searched(tuned(w.build_model, NoWorkers)) == {"batch_size"}


class NoWorkers(w.Dataset):
    def __init__(self, batch_size, max_queue_size=10):
        super().__init__(batch_size, max_queue_size=max_queue_size)


def test_a_ready_made_pydataset_is_given_the_knobs_as_attributes(tuned):
    tuned = tuned(w.build_model, w.Dataset(16))
    assert searched(tuned) == {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
    before = "from tests.workload import witness\ndata, model = witness.Dataset(16), witness.build_model()"
    ran = tuned.run(FitConfig(24, 3, 4, False), before, "data")
    assert (ran["samples"], ran["at_once"], ran["ahead"]) == ({24}, 3, 7)


@pytest.mark.parametrize("factory", [w.make_tfdata, w.make_tfdata_by_keras_names])
def test_a_tf_data_factory_takes_its_own_names_or_keras_ones(tuned, factory):
    tuned = tuned(w.build_model, factory)
    assert tuned.description.input_kind == "tf.data"
    assert searched(tuned) == {"batch_size", "workers", "max_queue_size"}
    ran = tuned.run(FitConfig(24, 2, 4))  # of more calls only as many as there are cores run at once
    assert (ran["samples"], ran["processes"], ran["at_once"]) == ({24}, 1, 2)
    assert tuned.run(FitConfig(24, 2, 12))["ahead"] - ran["ahead"] == 8
    alone = tuned.run(FitConfig(24, 1, 10))
    assert alone["at_once"] == 1
    assert alone["ahead"] < ran["ahead"]


def test_autotune_is_pasted_as_tensorflow_names_it(tuned):
    tuned = tuned(w.build_model, w.make_tfdata)
    config = FitConfig(24, -1, -1)
    assert "num_parallel_calls=tf.data.AUTOTUNE" in tuned.snippet(config)
    assert tuned.run(config)["samples"] == {24}


def test_the_steps_of_an_endless_tf_data_follow_the_batch_size(tuned):
    tuned = tuned(w.build_model, w.make_tfdata, {"batches": 0}, fit_kwargs={"steps_per_epoch": 15})  # of 32
    assert "steps_per_epoch=20" in tuned.snippet(FitConfig(24, 2, 2))
    assert tuned.run(FitConfig(24, 2, 2))["updates"] == 20


def test_a_generator_factory_takes_the_batch_size(tuned):
    tuned = tuned(w.build_model, w.make_batches)
    assert tuned.description.input_kind == "generator"
    assert searched(tuned) == {"batch_size"}
    ran = tuned.run(FitConfig(24))
    assert (ran["samples"], ran["at_once"], ran["made"]) == ({24}, 1, w.BATCHES)


def test_the_steps_of_an_endless_generator_follow_the_batch_size(tuned):
    tuned = tuned(w.build_model, w.make_endless, fit_kwargs={"steps_per_epoch": 15})
    assert tuned.run(FitConfig(24))["updates"] == 20


def test_arrays_take_the_batch_size_in_fit(tuned):
    tuned = tuned(w.build_model, w.make_arrays())
    assert searched(tuned) == {"batch_size"}
    before = "from tests.workload import witness\nmodel = witness.build_model()"
    ran = tuned.run(FitConfig(64), before, "*witness.make_arrays()[:2]")
    assert ran["updates"] == 512 // 64


def test_a_factory_of_arrays_is_called_and_fit_takes_the_batch_size(tuned):
    tuned = tuned(w.build_model, w.make_arrays)
    assert "x, y, sample_weight = make_arrays()" in tuned.snippet(FitConfig(64))
    assert tuned.run(FitConfig(64))["updates"] == 8


def test_nests_of_arrays_with_weights_are_trained_on(tuned, launcher):
    x = {"left": np.ones((100, w.WIDTH), "float32"), "right": np.ones((100, w.WIDTH), "float32")}
    tuned = tuned(w.build_two_inputs, (x, np.ones((100, 1)), np.ones(100)))
    assert tuned.description.sample_bytes == 2 * 4 * w.WIDTH + 4 + 4  # `fit` casts floats to Keras's precision
    measured = drain(launcher.run(TrialSpec(Role.MEASURE, FitConfig(32), LIMITS, 600, 0.3)))[1]
    assert measured.outcome.value == "ok", measured.evidence


@pytest.mark.parametrize("build", [w.build_model, w.build_accumulating])
def test_an_effective_batch_size_is_kept_by_accumulating(tuned, build):
    tuned = tuned(build, w.Dataset, {"samples": 960}, effective_batch_size=96)
    assert tuned.run(FitConfig(24, 1, 10, False))["updates"] == 960 / 96
    assert "gradient_accumulation_steps" not in tuned.snippet(FitConfig(96, 1, 10, False))


def test_ready_made_data_whose_batch_size_cannot_be_set_is_refused_at_once():
    with pytest.raises(UsageError, match=r"def make_data\(batch_size, \*\*knobs\):"):
        refuse_unsupported(ReadOnly())
    with pytest.raises(UsageError, match=r"\.batch\(batch_size\)"):
        refuse_unsupported(w.make_tfdata(8, 1, 1))


class ReadOnly(w.Dataset):
    batch_size = property(lambda self: 8, lambda self, value: None)

    def __setattr__(self, name, value):
        if name == "batch_size" and hasattr(self, "samples"):
            raise AttributeError("it is fixed")
        super().__setattr__(name, value)


@pytest.mark.parametrize("factory", [w.make_tfdata, w.make_batches])
@pytest.mark.parametrize("role", ["measure", "confirm"])
def test_trials_of_other_kinds_measure_what_their_producers_make(launcher, factory, role):
    workload = Workload(w.build_model, factory, validation=factory)
    config = FitConfig(24, 2, 4) if factory is w.make_tfdata else FitConfig(24)
    launcher.change(workload)
    measured = drain(launcher.run(TrialSpec(Role(role), config, LIMITS, 600, 1.0)))[1]
    assert measured.outcome.value == "ok", measured.evidence
    assert measured.steps <= most_steps(measured, config.workers or 1, w.SECONDS, config.max_queue_size or 0)
