"""What is rendered for a loader takes effect where it is pasted.

The backend is another one than TensorFlow.
"""

from autofit.records.knobs import FitConfig
from autofit.workload.workload import Workload
from tests.backends import loaders
from tests.workload import fresh
from tests.workload.test_snippets import Tuned
from tests.workloads import build_rows

BACKEND = "jax"


def test_the_lines_for_a_loader_take_effect_on_their_backend(backend, warm, tmp_path):
    config = FitConfig(24, 2, None, True, 2)
    tuned = Tuned(warm, tmp_path, Workload(build_rows, loaders.rows, backend=backend))
    code = f"{tuned.snippet(config)}\nimport keras\nassert keras.backend.backend() == {backend!r}\n"
    # without Keras, whose backend the lines choose
    problem = fresh.run(
        code, "spawn", KERAS_BACKEND="tensorflow", WITNESS=str(tmp_path / "witness")
    )
    assert problem == "", f"{code}\n{problem[-2000:]}"
    assert len(set((tmp_path / "witness").read_text().split())) >= config.workers
