"""What is rendered for a config takes effect where it is pasted.

A real describing trial says what the knobs are; the snippet of a chosen config then
runs in a fresh interpreter, in which the witnesses write down what came of it.
"""

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, Speedup, TuneLog
from autofit.records.states import Outcome
from autofit.report import snippet
from autofit.search.space import SearchSpace, build_space
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.problem import Problem
from autofit.tuning.record import record_of
from autofit.workload.binding import call_source_of
from autofit.workload.workload import Workload
from tests.contracts import rows
from tests.fakes import MIB, make_request
from tests.trial.conftest import run
from tests.workload import fresh
from tests.workload import witness as w


class Tuned:
    """A workload as a tune would leave it, but for the search.

    It is described, a config is chosen, and that is rendered.
    """

    def __init__(self, launcher, folder, workload, effective=None):
        self.folder = folder
        asked = {
            "call_source": call_source_of(workload),
            "host_bytes": 8192 * MIB,
            "effective_batch_size": effective,
        }
        self._request = make_request(folder, **asked)
        launcher.change(workload)
        config = FitConfig(16, 1, 10, False)
        self.description = run(
            launcher, config, role="describe", effective_batch_size=effective
        )[1]
        assert not hasattr(self.description, "outcome"), self.description
        self.knobs = {
            *build_space(
                {},
                self.description.knobs,
                cores=2,
                sample_count=self.description.sample_count,
            ).knobs()
        }

    def snippet(self, config):
        """The lines to paste for a config."""
        request = self._request
        chosen = Answer(config, 1.0, None, None, None, Speedup(config, Outcome.OK))
        log = TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self.description,
            trials=(),
            seconds=1.0,
            call_source=request.call_source,
        )
        return snippet.render(
            record_of(
                Problem(request, self.description, SearchSpace(), config),
                log,
                (chosen, chosen),
                "",
            )
        )

    def run(self, config, before="", elided="..."):
        """Run them in a fresh interpreter, with code for what is elided.

        Returns what was written down.
        """
        path = (
            self.folder
            / f"{config.batch_size}-{config.workers}-{config.max_queue_size}.jsonl"
        )
        code = f"{before}\n{self.snippet(config)}\n".replace("(...", f"({elided}")
        told = fresh.run(code, WITNESS=str(path))
        assert told == "", f"{code}\n{told}"
        made = w.made(path)
        return {
            "samples": {samples for samples, _, _ in made},
            "processes": len({process for _, process, _ in made}),
            "at_once": max((at_once for _, _, at_once in made), default=0),
            "made": len(made),
            **{
                name: int(count)
                for name, count in (
                    line.split() for line in rows.read(path) if line[0].isalpha()
                )
            },
        }


@pytest.fixture(scope="module")
def launcher():
    """One warm launcher for all workloads."""
    with ProcessLauncher(Workload(w.build_model, w.Dataset)) as launcher:
        yield launcher


@pytest.fixture
def tuned(launcher, tmp_path):
    """Tune without searching."""

    def tuned(data, build_model=w.build_model, effective=None, **parts):
        return Tuned(
            launcher, tmp_path, Workload(build_model, data, **parts), effective
        )

    return tuned


IMPORT = "from tests.workload import witness"
KNOBS = {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
OF_15_STEPS = {
    "fit_kwargs": {"steps_per_epoch": 15}
}  # of the default batch size 32: 20 steps of 24
CASES = {
    "threads": (
        w.Dataset,
        FitConfig(24, 3, 4, False),
        KNOBS,
        {"samples": {24}, "processes": 1, "at_once": 3, "ahead": 7},
    ),
    # two workers, and the first batch is made where `fit` runs
    "processes": (
        w.Dataset,
        FitConfig(24, 2, 4, True),
        KNOBS,
        {"samples": {24}, "processes": 3},
    ),
    "an object": (
        w.Dataset(16),
        FitConfig(24, 3, 4, False),
        KNOBS,
        {"samples": {24}, "at_once": 3, "ahead": 7},
    ),
    "tf.data": (
        w.make_tfdata,
        FitConfig(24, 2, 4),
        KNOBS - {"use_multiprocessing"},
        {"samples": {24}, "at_once": 2},
    ),
    "generator": (
        w.make_batches,
        FitConfig(24),
        {"batch_size"},
        {"samples": {24}, "at_once": 1, "made": w.BATCHES},
    ),
    "endless generator": (
        w.make_endless,
        FitConfig(24),
        {"batch_size"},
        {"samples": {24}, "updates": 20},
    ),
    "arrays": (w.make_arrays(), FitConfig(64), {"batch_size"}, {"updates": 8}),
    "factory of arrays": (w.make_arrays, FitConfig(64), {"batch_size"}, {"updates": 8}),
}
GIVEN = {  # the code for what is elided
    "an object": (
        f"{IMPORT}\ndata, model = witness.Dataset(16), witness.build_model()",
        "data",
    ),
    "arrays": (
        f"{IMPORT}\nmodel = witness.build_model()",
        "*witness.make_arrays()[:2]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_knobs_of_each_kind_of_data_take_effect(tuned, case):
    data, config, knobs, expected = CASES[case]
    tuned = tuned(data, **(OF_15_STEPS if case.startswith("endless") else {}))
    assert tuned.knobs == knobs
    ran = tuned.run(config, *GIVEN.get(case, ()))
    assert {name: ran[name] for name in expected} == expected


def test_the_queue_of_tf_data_takes_effect_also_under_autotune(tuned):
    tuned = tuned(w.make_tfdata, data_kwargs={"batches": 0}, **OF_15_STEPS)
    short, long = (tuned.run(FitConfig(24, 2, queue)) for queue in (4, 12))
    assert long["ahead"] - short["ahead"] == 8
    assert short["updates"] == 20
    automatic = FitConfig(24, -1, -1)
    assert "num_parallel_calls=tf.data.AUTOTUNE" in tuned.snippet(automatic)
    assert tuned.run(automatic)["samples"] == {24}


def test_a_queue_that_keras_does_not_make_is_not_rendered(tuned):
    tuned = tuned(w.Dataset)
    assert "max_queue_size" not in tuned.snippet(FitConfig(24, 1, 10, False))
    assert "max_queue_size=4" in tuned.snippet(FitConfig(24, 2, 4, False))


@pytest.mark.parametrize("build", [w.build_model, w.build_accumulating])
def test_an_effective_batch_size_is_kept_by_accumulating(tuned, build):
    tuned = tuned(w.Dataset, build, 96, data_kwargs={"samples": 960})
    assert tuned.run(FitConfig(24, 1, 10, False))["updates"] == 960 / 96
    assert "gradient_accumulation_steps" not in tuned.snippet(
        FitConfig(96, 1, 10, False)
    )
