"""Inputs on another backend than TensorFlow: described, tried, and what is rendered takes effect where it is pasted."""

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.workload.workload import Workload
from tests import workloads
from tests.backends import loaders
from tests.workload import fresh, witness
from tests.workload.test_snippets import Tuned

BACKEND = "jax"
CASES = {
    "arrays": (witness.build_model, witness.make_arrays, FitConfig(24)),
    "threads": (witness.build_model, witness.Dataset, FitConfig(24, 3, 4, False)),
    "loader": (workloads.build_rows, loaders.rows, FitConfig(24, 2, None, True, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_input_is_described_and_tried_and_its_lines_take_effect(backend, launched, play, tmp_path, case):
    build_model, data, config = CASES[case]
    launcher = launched(build_model, data)
    tuned = Tuned(launcher, tmp_path, Workload(build_model, data, backend=backend))
    assert not tuned.description.estimate_problem
    measurement = play(launcher, config)
    assert measurement.outcome is Outcome.OK, measurement.evidence

    code = f"{tuned.snippet(config)}\nimport keras\nassert keras.backend.backend() == {backend!r}\n"
    # without Keras, whose backend the lines choose
    problem = fresh.run(code, "spawn", KERAS_BACKEND="tensorflow", WITNESS=str(tmp_path / "witness"))
    assert problem == "", f"{code}\n{problem[-2000:]}"
    if case == "threads":
        made = witness.made(tmp_path / "witness")
        assert {line["samples"] for line in made} == {24}
        assert max(line["at_once"] for line in made) == config.workers
    if case == "loader":
        assert len(set((tmp_path / "witness").read_text().split())) >= config.workers
