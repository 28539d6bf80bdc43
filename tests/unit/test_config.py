"""A YAML file that is wrong says where, and what is allowed."""

import pytest

from autofit import config
from autofit.errors import ConfigError

MODEL = "def build_model():\n    pass\n\n\nclass Photos:\n    pass\n"
GOOD = "build_model: model.py:build_model\ndata: model.py:Photos\n"


@pytest.fixture
def write(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)

    def write(text):
        (tmp_path / "tune.yaml").write_text(text)
        return tmp_path / "tune.yaml"

    return write


def test_a_file_gives_the_arguments_of_tune(write):
    text = GOOD + (
        "model_kwargs: {width: 64}\ndata_kwargs: {folder: photos}\nhost_memory: 6GiB\ntolerance: 5%\nmax_seconds: 300\n"
        "space:\n  batch_size: {min: 8, max: 64}\n  workers: [0, 2]\n  use_multiprocessing: false\n"
        "baseline: {batch_size: 16}\n"
    )
    arguments = config.load(write(text))
    assert arguments["build_model"].text == "model.py:build_model"
    assert arguments["build_model"].path.name == "model.py"
    assert arguments["model_kwargs"] == {"width": 64}
    assert arguments["data_kwargs"] == {"folder": "photos"}
    assert arguments["space"] == {"batch_size": (8, 64), "workers": [0, 2], "use_multiprocessing": [False]}
    assert arguments["tolerance"] == pytest.approx(0.05)
    assert (arguments["host_memory"], arguments["max_seconds"], arguments["max_trials"]) == ("6GiB", 300.0, 12)
    assert arguments["baseline"] == {"batch_size": 16}
    assert arguments["validation"] is None


def test_the_defaults_of_a_file_are_those_of_the_call(write):
    import inspect

    from autofit.api import tune

    arguments = config.load(write(GOOD))
    for name, parameter in inspect.signature(tune).parameters.items():
        if name in arguments and parameter.default is not inspect.Parameter.empty:
            assert (arguments[name] or None) == (parameter.default or None), name


@pytest.mark.parametrize(
    ("text", "line", "key", "told"),
    [
        (GOOD + "max_trial: 3\n", 3, "max_trial", "did you mean max_trials"),
        (GOOD + "max_trials: many\n", 3, "max_trials", "'many' is not allowed: input should be a valid integer"),
        (GOOD + "max_trials: 0\n", 3, "max_trials", "greater than or equal to 1"),
        (GOOD + "tolerance: 2 percent\n", 3, "tolerance", "valid number"),
        (GOOD + "tolerance: x%\n", 3, "tolerance", "'x%' is not allowed"),
        (GOOD + "space:\n  batch_size: {min: 8}\n", 4, "space.batch_size", "{min: 8, max: 1024}"),
        (GOOD + "space:\n  batch_sizes: [8]\n", 4, "space.batch_sizes", "did you mean batch_size"),
        (GOOD + "space:\n  workers: [two]\n", 4, "space.workers", "a list of values"),
        (GOOD + "baseline: {queue: 3}\n", 3, "baseline.queue", "Allowed here: batch_size, workers"),
        ("data: model.py:Photos\n", 1, "build_model", "is missing"),
        ("build_model: nowhere.py:f\ndata: model.py:Photos\n", 1, "build_model", "there is no file"),
        ("build_model: model.py:f\ndata: model.py:Photos\n", 1, "build_model", "it defines Photos, build_model"),
        ("build_model: model.py\ndata: model.py:Photos\n", 1, "build_model", "neither path/to/file.py:function"),
        (GOOD + "space:\n  batch_size: {min: 9, max: 8}\n", 4, "space.batch_size", "write a value"),
        (GOOD + "space:\n  workers: []\n", 4, "space.workers", "write a value"),
        (GOOD + "host_memory: much\n", 3, "host_memory", "is not an amount of memory; write a percentage"),
        (GOOD + "launch: rocket\n", 3, "launch", "'auto', 'fork' or 'plain'"),
        (GOOD + "device: tpu\n", 3, "device", "auto|cpu|gpu"),
        (GOOD + "space: {\n", 4, None, "is not YAML"),
        ("- a\n", 1, None, "must be a mapping"),
        ("", 1, None, "must be a mapping"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(write, text, line, key, told):
    with pytest.raises(ConfigError) as caught:
        config.load(write(text))
    error = caught.value
    assert (error.line, error.key) == (line, key)
    assert told in error.problem
    assert str(error).startswith(f"{error.file}:{line}: ")


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load(tmp_path / "nothing.yaml")
