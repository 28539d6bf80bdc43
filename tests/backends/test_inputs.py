"""Inputs on another backend than TensorFlow: described, tried, and what is rendered takes effect where it is pasted."""

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
from tests import workloads
from tests.backends import loaders
from tests.fakes import MIB, make_request
from tests.workload import witness
from tests.workload.fresh import Fresh

BACKEND = "jax"
CASES = {
    "arrays": (witness.build_model, witness.make_arrays, FitConfig(24)),
    "threads": (witness.build_model, witness.Dataset, FitConfig(24, 3, 4, False)),
    "loader": (workloads.build_model, loaders.loader, FitConfig(24, 2, None, True, 2)),
}


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


@pytest.mark.parametrize("case", CASES)
def test_an_input_is_described_and_tried_and_its_lines_take_effect(backend, launched, play, tmp_path, case):
    build_model, data, config = CASES[case]
    launcher = launched(build_model, data)
    description = play(launcher, FitConfig(24), role="describe")
    assert not description.estimate_problem
    measurement = play(launcher, config)
    assert measurement.outcome is Outcome.OK, measurement.evidence

    code = lines_of(Workload(build_model, data, backend=backend), description, config, tmp_path)
    check = f"\nimport keras\nassert keras.backend.backend() == {backend!r}\n"
    fresh = Fresh()  # without Keras, whose backend the lines choose
    problem = fresh.run(code + check, KERAS_BACKEND="tensorflow", WITNESS=str(tmp_path / "witness"))
    fresh.close()
    assert problem == "", f"{code}\n{problem[-2000:]}"
    if case == "threads":
        made = witness.made(tmp_path / "witness")
        assert {line["samples"] for line in made} == {24}
        assert max(line["at_once"] for line in made) == config.workers
    if case == "loader":
        assert len(set((tmp_path / "witness").read_text().split())) >= config.workers
