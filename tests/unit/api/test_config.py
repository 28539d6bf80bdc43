"""An error in a YAML file names its place and what is allowed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from autofit.api.config import load
from autofit.cli import app
from autofit.errors import ConfigError, UsageError
from autofit.tuning.settings import TuneSettings
from autofit.workload.reference import Reference, expanded
from tests.unit.api.conftest import GOOD
from tests.unit.report.snapshots import matches_snapshot

CONFIGS = Path(__file__).parents[3] / "configs"


def test_a_file_gives_the_arguments_of_tune(write):
    text = GOOD + (
        "model_kwargs: {width: 64}\ndata_kwargs: {folder: photos}\nhost_memory: 6GiB\nmax_seconds: 300\n"
        "options: {tolerance: 5%}\n"
        "space:\n  batch_size: {min: 8, max: 64}\n  workers: [0, 2]\n  use_multiprocessing: false\n"
        "baseline: {batch_size: 16}\n"
    )
    arguments = load.load(write(text))
    assert arguments["build_model"].text == "model.py:build_model"
    assert arguments["build_model"].path.name == "model.py"
    assert arguments["model_kwargs"] == {"width": 64}
    assert arguments["data_kwargs"] == {"folder": "photos"}
    assert arguments["space"] == {"batch_size": {"min": 8, "max": 64}, "workers": [0, 2], "use_multiprocessing": [False]}
    assert arguments["options"]["tolerance"] == pytest.approx(0.05)
    assert (arguments["host_memory"], arguments["max_seconds"], arguments["max_trials"]) == ("6GiB", 300.0, 12)
    assert arguments["baseline"] == {"batch_size": 16}
    assert arguments["validation"] is None


@pytest.mark.parametrize("file", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_the_shipped_files_are_valid(file):
    assert all(arguments["max_trials"] >= 1 for _, arguments in load.load_cells(CONFIGS / file))


def test_autotune_is_written_as_a_number_or_by_its_name(write):
    text = GOOD + (
        "space:\n  workers: [-1, 2]\n  max_queue_size: [auto, AUTOTUNE, 4, tf.data.AUTOTUNE]\n"
        "baseline: {workers: auto, max_queue_size: -1}\n"
    )
    arguments = load.load(write(text))
    assert arguments["space"] == {"workers": [-1, 2], "max_queue_size": [-1, -1, 4, -1]}
    assert arguments["baseline"] == {"workers": -1, "max_queue_size": -1}
    assert TuneSettings(space={"workers": "auto"}).space.values() == {"workers": [-1]}


def test_arguments_of_fit_may_name_functions_that_make_them(write):
    options = load.load(write(GOOD + "fit_kwargs: {callbacks: 'math:sqrt', class_weight: {0: 1, 1: 5}, epochs: 3}\n"))[
        "fit_kwargs"
    ]
    assert isinstance(options["callbacks"], Reference)
    assert options["class_weight"] == {0: 1.0, 1: 5.0}


def test_the_defaults_of_a_file_are_those_of_the_call(write):
    import inspect

    from autofit.api.tune import tune

    arguments = load.load(write(GOOD))
    for name, parameter in inspect.signature(tune).parameters.items():
        if name in arguments and parameter.default is not inspect.Parameter.empty:
            assert (arguments[name] or None) == (parameter.default or None), name


VARIABLES = (
    "max_trials: ${NOT_SET_ANYWHERE}\n",
    "max_trials: ${TRIALS\n",
    "max_trials: ${a b}\n",
    "max_trials: ${}\n",
    "max_trials: ${TRIALS:-many}\n",
)
WRONG = [
    # text of the file, line and key of its error; the messages are in the snapshot
    (GOOD + "max_trial: 3\n", 3, "max_trial"),
    (GOOD + "max_trials: many\n", 3, "max_trials"),
    (GOOD + "max_trials: 0\n", 3, "max_trials"),
    (GOOD + "max_seconds: .inf\n", 3, "max_seconds"),
    (GOOD + "jit_compile: !!bool maybe\n", 3, None),
    (GOOD + 'max_trials: !!int ""\n', 3, None),
    (GOOD + "data_kwargs: {from: !!timestamp soon}\n", 3, None),
    (GOOD + "options: {tolerance: 2 percent}\n", 3, "options.tolerance"),
    (GOOD + "options: {tolerance: x%}\n", 3, "options.tolerance"),
    (GOOD + "headroom: 5%\n", 3, "headroom"),
    (GOOD + "options: {headroom: 1.5}\n", 3, "options.headroom"),
    (GOOD + "space:\n  batch_size: {min: 8}\n", 4, "space.batch_size"),
    (GOOD + "space:\n  batch_sizes: [8]\n", 4, "space.batch_sizes"),
    (GOOD + "space:\n  workers: [two]\n", 4, "space.workers"),
    (GOOD + "baseline: {workers: -2}\n", 3, "baseline.workers"),
    (GOOD + "baseline: {max_queue_size: 0}\n", 3, "baseline.max_queue_size"),
    (GOOD + "space:\n  batch_size: [auto]\n", 4, "space.batch_size"),
    (GOOD + "options: {min_updates: 0}\n", 3, "options.min_updates"),
    (GOOD + "fit_kwargs:\n  epochs: 3\n  batch_size: 8\n", 5, "fit_kwargs.batch_size"),
    (GOOD + "fit_kwargs:\n  class_weights: {0: 1}\n", 4, "fit_kwargs.class_weights"),
    (GOOD + "fit_kwargs: {callbacks: early}\n", 3, "fit_kwargs.callbacks"),
    (GOOD + "fit_kwargs: {callbacks: [early]}\n", 3, "fit_kwargs.callbacks"),
    (GOOD + "batch_size: small\n", 3, "batch_size"),
    (GOOD + "data_kwargs: {folder: ${FOLDER}}\n", 3, None),
    (GOOD + "baseline: {queue: 3}\n", 3, "baseline.queue"),
    ("data: model.py:Photos\n", 1, "build_model"),
    ("build_model: nowhere.py:f\ndata: model.py:Photos\n", 1, "build_model"),
    ("build_model: model.py:f\ndata: model.py:Photos\n", 1, "build_model"),
    ("build_model: model.py\ndata: model.py:Photos\n", 1, "build_model"),
    (GOOD + "space:\n  batch_size: {min: 9, max: 8}\n", 4, "space.batch_size"),
    (GOOD + "space:\n  workers: []\n", 4, "space.workers"),
    (GOOD + "host_memory: much\n", 3, "host_memory"),
    (GOOD + "options: {launch: rocket}\n", 3, "options.launch"),
    (GOOD + "device: tpu\n", 3, "device"),
    (GOOD + "space: {\n", 4, None),
    ("- a\n", 1, None),
    ("", 1, None),
    ("# nothing\n", 1, None),
    (GOOD + "max_trials: 3\nmax_trials: 4\n", 4, "max_trials"),
    (GOOD + "space:\n  workers: [1]\n  workers: [2]\n", 5, "workers"),
    (GOOD + "space:\n\tworkers: [1]\n", 4, None),
    (GOOD + "host_memory: 6GiBs\n", 3, "host_memory"),
    (GOOD + "host_memory: 120%\n", 3, "host_memory"),
    (GOOD + "device_memory: -2GiB\n", 3, "device_memory"),
    (GOOD + "host_memory: 0\n", 3, "host_memory"),
    (GOOD + "max_seconds: -5\n", 3, "max_seconds"),
    (GOOD + "max_seconds: 5 min\n", 3, "max_seconds"),
    (GOOD + "model_kwargs: 8\n", 3, "model_kwargs"),
    (GOOD + "data_kwargs: [folder]\n", 3, "data_kwargs"),
    (GOOD + "jit_compile: maybe\n", 3, "jit_compile"),
    (GOOD + "max_trials:\n", 3, "max_trials"),
    (GOOD + "spcae: {workers: [1]}\n", 3, "spcae"),
    (GOOD + "space: {wrokers: [1]}\n", 3, "space.wrokers"),
    (GOOD + "baseline: {batch_size: -1}\n", 3, "baseline.batch_size"),
    (GOOD + "data_kwargs: !include other.yaml\n", 3, None),
    (GOOD + "---\nmax_trials: 3\n", 3, None),
    (GOOD + "data_kwargs: {? [1, 2] : 3}\n", 3, None),
    (GOOD + "data_kwargs: {when: 2026-13-45}\n", 3, None),
    (GOOD + "1: 2\n", 3, "1"),
    (GOOD + "matrix: {max_trials: [1]}\n", 3, "matrix"),
    ("build_model: model.py:build_model\ndata: [1, 2]\n", 2, "data"),
]


@pytest.mark.parametrize(("text", "line", "key"), WRONG)
def test_an_error_names_its_line_and_key(write, text, line, key):
    with pytest.raises(ConfigError) as caught:
        load.load(write(text))
    error = caught.value
    assert (error.line, error.key) == (line, key)
    assert str(error).startswith(f"{error.file}:{line}:{error.column}: " if line else f"{error.file}: ")


MANY = """\
build_model: model.py:build
dataset: model.py:Photos
fit_kwargs: {epochs: many, epoch: 3, callbacks: early, steps_per_epoch: 0}
space:
  batch_sizes: [8]
  workers: [two]
epochs: 3
max_trials: ${NOT_SET_ANYWHERE}
options: {launch: rocket}
max_trials: 3
"""


def test_all_errors_of_a_file_are_one_error_in_the_order_of_the_file(write):
    with pytest.raises(ConfigError) as caught:
        load.load(write(MANY))
    errors = [caught.value, *caught.value.others]
    assert [(error.line, error.key) for error in errors] == [
        (1, "build_model"),
        (1, "data"),
        (2, "dataset"),
        (3, "fit_kwargs.epoch"),
        (3, "fit_kwargs.callbacks"),
        (3, "fit_kwargs.steps_per_epoch"),
        (5, "space.batch_sizes"),
        (6, "space.workers"),
        (7, "epochs"),
        (8, None),
        (9, "options.launch"),
        (10, "max_trials"),
    ]
    lines = str(caught.value).splitlines()
    assert lines[0] == "12 errors:"
    assert lines[1].startswith(f"  {errors[0].file}:1:1: build_model: 'model.py:build': ")
    assert lines[3].endswith("tune.yaml:2:1: dataset: unknown key; did you mean data?")
    assert (len(lines), lines[-1]) == (12, "  and 2 more")


def test_a_value_from_the_environment_is_shown_as_written(write, monkeypatch):
    monkeypatch.setenv("PW", r"it's\s3cret")
    text = (
        "max_trials: ${PW}\nhost_memory: ${PW}\ndevice: ${PW}\nbaseline: {workers: '${PW}'}\nstorage: {a: '${PW}'}\n"
        "space: {batch_size: ['${PW}']}\nvalidation: ${PW}.py:f\nmax_seconds: !!float ${PW}\ndata_kwargs: ['${PW}']\n"
        "fit_kwargs: {validation_split: '${PW}', class_weight: '${PW}', steps_per_epoch: ['${PW}']}\n"
    )
    for sweeps in ("", "matrix: {dtype_policy: [['${PW}']], jit_compile: ['${PW}']}\n"):
        with pytest.raises(ConfigError) as caught:
            load.load_cells(write(GOOD + text + sweeps))
        errors = [caught.value, *caught.value.others]
        assert len(errors) == (14 if sweeps else 12)
        for error in errors:
            assert "s3cret" not in error.problem
            assert "${PW}" in error.problem


def test_the_messages_of_wrong_files(write):
    messages = [*(message_of(write(text)) for text, _, _ in WRONG), *(message_of(write(GOOD + text)) for text in VARIABLES)]
    assert matches_snapshot("".join(f"{message}\n" for message in messages), "wrong_files.txt")


def message_of(path):
    with pytest.raises(ConfigError) as caught:
        load.load(path)
    return str(caught.value).replace(str(path.parent), "")[1:]


def test_the_column_is_that_of_the_key_or_of_the_item(write):
    with pytest.raises(ConfigError) as caught:
        load.load(write(GOOD + "space: {batch_size: [8], workers: none}\n"))
    assert (caught.value.line, caught.value.column, caught.value.key) == (3, 26, "space.workers")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "tune.yaml:1: "),
        (b"build_model: a.py:f\ndata: \xff\xfe\n", "tune.yaml:2: "),
        (b"build_model: a\x00b\n", "tune.yaml:1: is not YAML: "),
        (b"a: " + b"[" * 5_000, "tune.yaml: is nested too deeply"),
        (b"a: &a {a: *a}\n", "tune.yaml: is nested too deeply, or an alias (*name) refers to a value that contains it"),
    ],
    ids=["picture", "latin", "null", "deep", "alias"],
)
def test_a_file_that_is_not_a_tuning_file_is_an_error(tmp_path, raw, message):
    (tmp_path / "tune.yaml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load.load(tmp_path / "tune.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory"):
        load.load(tmp_path)


def test_environment_variables_are_put_in_and_read_as_yaml(write, monkeypatch):
    monkeypatch.setenv("FOLDER", "photos")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("PIN", "12")
    text = GOOD + (
        "max_trials: ${TRIALS:-7}\nmax_seconds: ${EMPTY:-60}\nhost_memory: ${GIB:-6}GiB\n"
        "data_kwargs: {folder: '${FOLDER}/${EMPTY}x', plain: '$${FOLDER}', list: [\"${FOLDER}\", $5],\n"
        "  number: !!int '${PIN}'}\n"
    )
    arguments = load.load(write(text))
    assert (arguments["max_trials"], arguments["max_seconds"], arguments["host_memory"]) == (7, 60.0, "6GiB")
    as_written = {"folder": "${FOLDER}/${EMPTY}x", "plain": "$${FOLDER}", "list": ["${FOLDER}", "$5"], "number": "${PIN}"}
    assert arguments["data_kwargs"] == as_written
    assert expanded(arguments["data_kwargs"]) == {
        "folder": "photos/x",
        "plain": "${FOLDER}",
        "list": ["photos", "$5"],
        "number": 12,
    }


@pytest.mark.parametrize("text", VARIABLES)
def test_a_variable_that_cannot_be_substituted_is_an_error(write, text):
    with pytest.raises(ConfigError) as caught:
        load.load(write(GOOD + text))
    assert caught.value.line == 3


def test_anchors_and_keys_of_ones_own_say_things_once(write):
    text = GOOD + (
        "x-common: &common {folder: photos, part: training}\ndata_kwargs: *common\n"
        "validation: model.py:Photos\nvalidation_kwargs: {<<: *common, part: validation}\n"
    )
    arguments = load.load(write(text))
    assert arguments["data_kwargs"] == {"folder": "photos", "part": "training"}
    assert arguments["validation_kwargs"] == {"folder": "photos", "part": "validation"}


def test_a_value_that_aliases_share_is_expanded_once(write):
    text = GOOD + 'x-plain: &plain "$${FOLDER}"\ndata_kwargs: {folder: *plain, part: *plain}\n'
    assert expanded(load.load(write(text))["data_kwargs"]) == {"folder": "${FOLDER}", "part": "${FOLDER}"}


def test_the_cells_of_a_sweep_have_values_as_written(write, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("MEMORY", "2GiB")
    text = "matrix:\n  model_kwargs.token: ['${TOKEN}', other]\n  device_memory: [1GiB, '${MEMORY}']\n"
    cells = load.load_cells(write(GOOD + text))
    assert [values["model_kwargs.token"] for values, _ in cells] == ["${TOKEN}", "${TOKEN}", "other", "other"]
    assert [expanded(arguments["model_kwargs"])["token"] for _, arguments in cells] == ["s3cret"] * 2 + ["other"] * 2
    assert [arguments["device_memory"] for _, arguments in cells] == ["1GiB", "2GiB"] * 2


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load.load(tmp_path / "nothing.yaml")


def test_an_error_with_a_key_gets_its_place_in_the_file(write):
    path = write(GOOD + "space: {workers: [1], batch_size: [8]}\n")
    with pytest.raises(ConfigError) as caught, load.placing_errors(path):
        raise UsageError("is wrong", key="space.batch_size")
    error = caught.value
    assert (error.line, error.column, error.key, error.problem) == (3, 23, "space.batch_size", "is wrong")


@pytest.mark.parametrize(
    "error",
    [UsageError("device: a text alone names no key"), UsageError("x", key="only"), UsageError("x", key="device"),
     ConfigError("other.yaml", 1, 1, "space", "has its place already")],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_an_error_without_a_key_of_the_file_stays_as_it_is(write, error):
    with pytest.raises(UsageError) as caught, load.placing_errors(write(GOOD), overrides={"device": "cpu"}):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("command", ["tune", "estimate", "check"])
def test_an_error_that_the_machine_shows_has_its_place_in_the_file(write, command):
    done = CliRunner().invoke(app, [command, str(write(GOOD + "device: gpu:99\n"))])
    assert done.exit_code == ConfigError.exit_code
    assert ":3:1: device: " in done.output
