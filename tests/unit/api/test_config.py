"""YAML files: their arguments, the cells of a matrix, and errors that name their place and what is
allowed.
"""

from pathlib import Path

import pytest

from autofit.api.config import load
from autofit.api.session import parse
from autofit.errors import ConfigError, Problem
from autofit.workload.reference import Reference, expanded
from tests.unit.api.conftest import GOOD
from tests.unit.report.snapshots import matches_snapshot

CONFIGS = Path(__file__).parents[3] / "configs"


def test_a_file_gives_the_arguments_of_tune(write):
    text = GOOD + (
        "model_kwargs: {width: 64}\nhost_memory: 6GiB\nmax_seconds: 300\noptions: {tolerance: "
        "0.05, min_updates: 3}\n"
        "space:\n  batch_size: {min: 8, max: 64}\n  workers: [-1, 2]\n  max_queue_size: "
        "[auto, 4, tf.data.AUTOTUNE]\n"
        "  use_multiprocessing: false\nbaseline: {batch_size: 16, workers: auto}\n"
        "fit_kwargs: {callbacks: 'math:sqrt', class_weight: {0: 1, 1: 5}}\n"
        "x-common: &common {folder: photos, part: training}\ndata_kwargs: *common\n"
        "validation: model.py:Photos\nvalidation_kwargs: {<<: *common, part: validation}\n"
    )
    arguments = load.load(write(text), {"max_trials": 3, "options": {"min_updates": 4}})
    workload, settings = parse(arguments)
    assert arguments["build_model"].text == "model.py:build_model"
    assert arguments["build_model"].path.name == "model.py"
    assert arguments["model_kwargs"] == {"width": 64}
    assert arguments["data_kwargs"] == {"folder": "photos", "part": "training"}
    assert arguments["validation_kwargs"] == {"folder": "photos", "part": "validation"}
    assert settings.space.values() == {
        "batch_size": {"min": 8, "max": 64},
        "workers": [-1, 2],
        "max_queue_size": [-1, 4, -1],
        "use_multiprocessing": [False],
    }
    assert settings.options.model_dump(exclude_unset=True) == {
        "tolerance": 0.05,
        "min_updates": 4,
    }
    assert (settings.host_memory, settings.max_seconds, settings.max_trials) == (
        "6GiB",
        300.0,
        3,
    )
    assert settings.baseline.values() == {"batch_size": 16, "workers": -1}
    assert isinstance(workload.fit_kwargs["callbacks"], Reference)
    assert workload.fit_kwargs["class_weight"] == {0: 1.0, 1: 5.0}


@pytest.mark.parametrize("file", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_the_shipped_files_are_valid(file):
    assert load.load_cells(CONFIGS / file)


# texts of files, after a model and data; the messages, with line, column and key, are in the
# snapshot
AFTER_GOOD = (
    "max_trial: 3",
    "data_kwargs: {from: !!timestamp soon}",
    "tolerance: 5%",
    "space:\n  batch_size: {min: 8}",
    "baseline: {workers: -2}",
    "space:\n  batch_size: [auto]",
    "fit_kwargs:\n  epochs: 3\n  batch_size: 8",
    "fit_kwargs: {callbacks: early}",
    "space:\n  batch_size: {min: 9, max: 8}",
    "host_memory: much",
    "space:\n  workers: [1]\n  workers: [2]",
    "space:\n\tworkers: [1]",
    "model_kwargs: 8",
    "data_kwargs: !include other.yaml",
    "---\nmax_trials: 3",
    "data_kwargs: {when: 2026-13-45}",
    "matrix: {max_trials: [1]}",
    "host_labels: {region: eu}",
    "max_trials: ${NOT_SET_ANYWHERE}",
    "max_trials: ${TRIALS:-many}",
    "max_trials 3\nworkers: 3",
    "storage: 'a.db\nworkers: 3",
    "space: {batch_size: [1, 2]",
    "model_kwargs: {width: ${WIDTH}}",
    "max_trials: ${}",
    'storage: "a.db\nworkers: "3"',
)
WHOLE = (
    "data: model.py:Photos",
    "build_model: nowhere.py:f\ndata: model.py:Photos",
    "build_model: model.py:build_model\ndata: [1, 2]",
    "- a",
    '{"version": 4, "call_source": {}}',
    "# nothing",
)


def test_the_messages_of_wrong_files(write):
    def message_of(text):
        path = write(text + "\n")
        with pytest.raises(ConfigError) as caught:
            load.load(path)
        assert caught.value.file == str(path)
        return str(caught.value).replace(str(path.parent), "")[1:]

    messages = [
        *(message_of(GOOD + text) for text in AFTER_GOOD),
        *map(message_of, WHOLE),
    ]
    assert matches_snapshot(
        "".join(f"{message}\n" for message in messages), "wrong_files.txt"
    )


def test_all_errors_of_a_file_are_one_error_in_the_order_of_the_file(write):
    text = (
        "build_model: model.py:build\ndataset: model.py:Photos\nfit_kwargs: {epoch: 3}\n"
        "max_trials: ${NOT_SET_ANYWHERE}\nmax_trials: 3\n"
    )
    with pytest.raises(ConfigError) as caught:
        load.load(write(text))
    assert [
        (error.line, error.key) for error in (caught.value, *caught.value.others)
    ] == [
        (1, "build_model"),
        (1, "data"),
        (2, "dataset"),
        (3, "fit_kwargs.epoch"),
        (4, None),
        (5, "max_trials"),
    ]


def test_a_wrong_value_is_one_problem_from_where_it_is_checked_to_its_place_in_the_file(
    write, monkeypatch
):
    made = []
    make = Problem.__init__

    def count(problem, *arguments, **named):
        make(problem, *arguments, **named)
        made.append(problem)

    monkeypatch.setattr(Problem, "__init__", count)
    with pytest.raises(ConfigError) as caught:
        load.load(write(f"{GOOD}fit_kwargs: {{steps_per_epoch: 0}}\n"))
    assert [problem.key for problem in made] == ["fit_kwargs.steps_per_epoch"]
    assert [problem.text for problem in caught.value.problems] == [made[0].text]


@pytest.mark.parametrize("raw", [b"build_model: a.py:f\ndata: \xff\xfe\n", None])
def test_a_file_that_is_not_a_text_is_an_error(tmp_path, raw):
    if raw is not None:
        (tmp_path / "tune.yaml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load.load(tmp_path / "tune.yaml")
    assert (caught.value.file, caught.value.key) == (str(tmp_path / "tune.yaml"), None)


def test_a_value_from_the_environment_is_shown_as_written(write, monkeypatch):
    monkeypatch.setenv("PW", r"it's\s3cret")
    text = (
        "max_trials: ${PW}\nhost_memory: ${PW}\nbaseline: {workers: '${PW}'}\nstorage: {a: "
        "'${PW}'}\nvalidation: ${PW}\n"
        "max_seconds: !!float ${PW}\ndata_kwargs: ['${PW}']\nfit_kwargs: {validation_split: "
        "'${PW}'}\n"
        "matrix: {dtype_policy: [['${PW}']], jit_compile: ['${PW}']}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text))
    problems = [error.problem for error in (caught.value, *caught.value.others)]
    assert len(problems) == 10
    assert all("s3cret" not in problem and "${PW}" in problem for problem in problems)


def test_environment_variables_are_put_in_and_read_as_yaml(write, monkeypatch):
    monkeypatch.setenv("FOLDER", "photos")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("PIN", "12")
    text = GOOD + (
        "max_trials: ${TRIALS:-7}\nmax_seconds: ${EMPTY:-60}\nhost_memory: ${GIB:-6}GiB\n"
        "data_kwargs: {folder: '${FOLDER}/${EMPTY}x', plain: &plain '$FOLDER', list: "
        '["${FOLDER}", "$${A}"],\n'
        "  number: !!int '${PIN}', again: *plain}\n"
    )
    arguments = load.load(write(text))
    assert (
        arguments["max_trials"],
        arguments["max_seconds"],
        arguments["host_memory"],
    ) == (
        7,
        60,
        "6GiB",
    )
    as_written = {
        "folder": "${FOLDER}/${EMPTY}x",
        "plain": "$FOLDER",
        "list": ["${FOLDER}", "$${A}"],
        "number": "${PIN}",
    }
    assert arguments["data_kwargs"] == as_written | {"again": "$FOLDER"}
    values = {
        "folder": "photos/x",
        "plain": "$FOLDER",
        "list": ["photos", "${A}"],
        "number": 12,
    }
    assert expanded(arguments["data_kwargs"]) == values | {"again": "$FOLDER"}


def test_a_file_may_name_a_script_relative_to_it_and_a_matrix_vary_its_arguments(write):
    path = write(
        "script: train.py\nmatrix:\n  arguments: [[--width, 8], [--width, 16]]\n"
    )
    (path.parent / "train.py").write_text("model.fit(x)\n")
    cells = [
        load.cell_request(values, given) for values, given in load.load_cells(path)
    ]
    scripts = [cell.workload.script for cell in cells]
    assert [script.arguments for script in scripts] == [
        ("--width", "8"),
        ("--width", "16"),
    ]
    assert {script.file for script in scripts} == {str(path.parent / "train.py")}


def test_a_variable_in_the_arguments_of_a_script_is_shown_as_written(
    write, monkeypatch
):
    monkeypatch.setenv("KEY", "a-secret-key")
    path = write("script: train.py\narguments: [--key, '${KEY}']\n")
    (path.parent / "train.py").write_text("model.fit(x)\n")
    script = load.load(path)["script"]
    assert script.arguments == ("--key", "a-secret-key")
    assert "a-secret-key" not in script.command
    assert "${KEY}" in script.command


def test_what_a_script_sets_itself_is_not_allowed_beside_it(write):
    path = write("script: train.py\ndata_kwargs: {folder: photos}\n")
    (path.parent / "train.py").write_text("model.fit(x)\n")
    with pytest.raises(ConfigError, match="data_kwargs: is not allowed with a script"):
        load.load(path)


def test_the_cells_of_a_sweep_have_values_as_written(write, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("MEMORY", "2GiB")
    text = (
        "matrix:\n  model_kwargs.token: ['${TOKEN}', other]\n"
        "  device_memory: [1GiB, '${MEMORY}']\n"
    )
    cells = load.load_cells(write(GOOD + text))
    assert [values["model_kwargs.token"] for values, _ in cells] == [
        "${TOKEN}",
        "${TOKEN}",
        "other",
        "other",
    ]
    assert [expanded(arguments["model_kwargs"])["token"] for _, arguments in cells] == [
        "s3cret"
    ] * 2 + ["other"] * 2
    assert [arguments["device_memory"] for _, arguments in cells] == [
        "1GiB",
        "2GiB",
    ] * 2


def test_values_are_set_deep_in_a_copy_and_an_axis_may_set_several():
    arguments = {"model_kwargs": {"depth": 2}, "data": "d"}
    changed = load.apply(
        {"model_kwargs.pixels, data_kwargs.pixels": 64, "space.workers": [1]}, arguments
    )
    assert changed == {
        "model_kwargs": {"depth": 2, "pixels": 64},
        "data": "d",
        "data_kwargs": {"pixels": 64},
        "space": {"workers": [1]},
    }
    assert arguments == {"model_kwargs": {"depth": 2}, "data": "d"}


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("", 1, None),
        ("matrix: {}\n", 3, "matrix"),
        ("matrix: {max_trials: []}\n", 3, "matrix.max_trials"),
        ("matrix: {max_trials: [3, none]}\n", 3, "matrix.max_trials"),
        ("matrix:\n  widht: [8]\n", 4, "matrix.widht"),
        ("matrix:\n  build_model: [model.py:f]\n", 4, "matrix.build_model"),
        (
            "model_kwargs: {width: 8}\nmatrix: {model_kwargs.width.low: [1]}\n",
            4,
            "matrix.model_kwargs.width.low",
        ),
        ("matrix: {max_trials: [1]}\nhost_labels: [eu]\n", 4, "host_labels"),
    ],
)
def test_an_error_in_a_matrix_or_a_cell_names_its_line_and_key(write, text, line, key):
    with pytest.raises(ConfigError) as caught:
        load.load_cells(write(GOOD + text), sweep=True)
    assert (caught.value.line, caught.value.key) == (line, key)


NINES = [", ".join([f"*a{n - 1}" if n else "x"] * 9) for n in range(9)]
TOO_LARGE = {
    "bomb": (
        "".join(f"x-{n}: &a{n} [{NINES[n]}]\n" for n in range(9)),
        "with aliases expanded",
    ),
    "cycle": ("data_kwargs: &a {b: [*a]}", r"\*a contains itself"),
    "merged cycle": ("data_kwargs: &a\n  <<: *a", r"\*a contains itself"),
    "brackets": ("data_kwargs: " + "[" * 100_000, "levels of nesting"),
    "dashes": ("data_kwargs:\n  " + "- " * 100_000, "levels of nesting"),
    "minus signs": ("model_kwargs: " + "-" * 100_000, "-- is not allowed"),
    "chain": (
        "x-0: &a0 []\n" + "".join(f"x-{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 90)),
        "levels of nesting",
    ),
    "list": ("data_kwargs: [" + "1," * 100_000 + "]", "values, with aliases expanded"),
    "large": ("# " + "x" * 10**6, "is larger than 256 KiB"),
}


@pytest.mark.parametrize(("text", "problem"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_file_too_large_to_expand_is_refused_in_one_line(write, text, problem):
    path = write(GOOD + text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
