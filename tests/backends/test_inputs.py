"""Every kind of input on every backend: described, tried, and what is rendered takes effect where it is pasted."""

import dataclasses
import itertools

import pytest

from autofit.records.result import Answer, Speedup, TuneLog
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.report import snippet
from autofit.search.space import SearchSpace
from autofit.tuning.problem import Problem
from autofit.tuning.record import record_of
from autofit.workload.binding import call_source_of
from autofit.workload.workload import Workload
from tests.backends import loaders
from tests.fakes import MIB, make_request
from tests.workload import witness
from tests.workload.fresh import Fresh

OF_PYDATASETS = {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
CASES = {
    "arrays": (witness.make_arrays, FitConfig(24), {"batch_size"}),
    "no queue": (witness.Dataset, FitConfig(24, 1, 10, False), OF_PYDATASETS),
    "threads": (witness.Dataset, FitConfig(24, 3, 4, False), OF_PYDATASETS),
    "processes": (witness.Dataset, FitConfig(24, 2, 4, True), OF_PYDATASETS),
    "generator": (witness.make_batches, FitConfig(24), {"batch_size"}),
    "tf.data": (witness.make_tfdata, FitConfig(24, 2, 4), {"batch_size", "workers", "max_queue_size"}),
    "loader": (
        loaders.witnessed,
        FitConfig(24, 2, None, True, 2),
        {"batch_size", "workers", "use_multiprocessing", "prefetch_factor"},
    ),
}  # fmt: skip  # one item a line would be longer, not clearer


def lines_of(workload, description, config, folder):
    """The lines to paste for a config."""
    request = make_request(folder, call_source=call_source_of(workload), host_bytes=8192 * MIB)
    chosen = Answer(config, 1.0, None, None, None, Speedup(config, Outcome.OK))
    log = TuneLog(
        limits=request.limits,
        machine=request.machine,
        device=request.placement.name,
        description=description,
        trials=(),
        seconds=1.0,
        call_source=request.call_source,
    )
    problem = Problem(request, description, SearchSpace(), chosen.config)
    return snippet.render(record_of(problem, log, (chosen, chosen), "settled"))


@pytest.fixture(scope="module")
def fresh(backend):
    """What starts fresh interpreters: with Keras loaded on the backend, and without, to choose it."""
    warm, bare = Fresh("keras", KERAS_BACKEND=backend), Fresh()
    yield {True: warm, False: bare}
    warm.close()
    bare.close()


ON_BACKENDS = [*itertools.product(("jax", "torch"), CASES), ("tensorflow", "loader")]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "case"), ON_BACKENDS, indirect=["backend"])
def test_an_input_is_described_and_tried_and_its_lines_take_effect(fresh, backend, launched, play, tmp_path, case):
    data, config, knobs = CASES[case]
    launcher = launched(witness.build_model, data)
    description = play(launcher, FitConfig(24), role="describe")
    assert not hasattr(description, "outcome"), description
    assert case != "loader" or description.sample_count == 4000  # the last batch has fewer
    assert set(description.knobs) == knobs
    assert description.versions["backend"] == backend
    assert not description.estimate_problem
    measurement = play(launcher, config)
    assert measurement.outcome is Outcome.OK, measurement.evidence
    assert not measurement.device_peak_bytes  # TensorFlow counts none without a limit

    code = lines_of(Workload(witness.build_model, data, backend=backend), description, config, tmp_path)
    assert code.splitlines()[:2] == ["import os", f'os.environ["KERAS_BACKEND"] = "{backend}"']
    check = f"\nimport keras\nassert keras.backend.backend() == {backend!r}\n"
    witnessed = tmp_path / "witness"
    if case == "loader":  # whose witness is a file of another form
        code = code.replace("model = build_model()", "from tests.workloads import build_rows\nmodel = build_rows()")
    problem = fresh[case != "arrays"].run(code + check, KERAS_BACKEND="tensorflow", WITNESS=str(witnessed))
    assert problem == "", f"{code}\n{problem[-2000:]}"
    if case == "loader":
        lines = [line.split() for line in witnessed.read_text().splitlines()]
        assert {int(samples) for samples, _ in lines} <= {24, 4000 % 24}
        assert len({process for _, process in lines}) >= config.workers
        return
    made = witness.made(witnessed)
    if case != "arrays":
        assert {line["samples"] for line in made} == {24}
        processes = len({line["process"] for line in made})
        assert processes >= config.workers if config.use_multiprocessing else processes == 1
    if case == "threads":
        assert max(line["at_once"] for line in made) == config.workers
    if case == "no queue":
        assert max(line["at_once"] for line in made) == 1


def test_only_where_a_step_has_the_training_thread_to_itself_do_step_and_input_take_turns(backend, launched, play):
    for data, knobs in ((witness.Dataset, FitConfig(16)), (witness.make_tfdata, FitConfig(16))):
        description = play(launched(witness.build_model, data), knobs, role="describe")
        assert description.takes_turns == (backend == "torch" and data is witness.Dataset)
    assert dataclasses.asdict(description)["takes_turns"] is False
