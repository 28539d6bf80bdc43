"""The arguments of `tune`: their texts, their defaults, the table that lists them, and what a wrong call says."""

import inspect
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import autofit
from autofit.api.config import load
from autofit.api.signature import texts_of
from autofit.tuning.settings import Options, TuneSettings
from autofit.workload import arguments, fit_options
from autofit.workload.workload import ARGUMENTS

PAGE = Path(__file__).parents[3] / "configs" / "README.md"
NOT_IN_FILES = {"progress"}
FIELDS = {**ARGUMENTS, **TuneSettings.model_fields}
SIGNATURE = inspect.signature(autofit.tune).parameters
EVERYDAY = 10


def default_of(field):
    """The default as a signature shows it, in which models are mappings."""
    default = field.get_default(call_default_factory=True)
    return default.model_dump(exclude_unset=True) if hasattr(default, "model_dump") else default


def test_each_argument_and_option_has_a_text_and_the_everyday_ones_come_first():
    texts = texts_of(autofit.tune)
    assert list(texts) == [*SIGNATURE, *Options.model_fields]
    assert all(text.endswith(".") and len(text) > 20 for text in texts.values())
    further = inspect.getdoc(autofit.tune).partition("Other Parameters:")[2]
    assert list(SIGNATURE)[EVERYDAY] == re.search(r"\w+", further)[0]


def test_a_file_takes_the_arguments_of_the_call():
    assert set(load.schema()["properties"]) == set(SIGNATURE) - NOT_IN_FILES | {"host_labels", "matrix"}


def test_a_function_has_the_defaults_of_the_settings():
    for name, field in FIELDS.items():
        if not field.is_required():
            assert SIGNATURE[name].default == default_of(field), name


def test_without_docstrings_the_texts_are_empty_and_nothing_fails():
    code = "from autofit.cli import app; from autofit.api.config import load; load.schema(); app(['tune', '--help'])"
    ran = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "--batch-size" in ran.stdout


def row(name, field):
    """A row of a table: name, default, and the first sentence of the text."""
    default = default_of(field)
    shown = default if isinstance(default, str) else f"{default:g}" if isinstance(default, float) else json.dumps(default)
    first = re.split(r"(?<=[.])\s+(?=[A-Z`])", texts_of(autofit.tune)[name], maxsplit=1)[0]
    return f"| `{name}` | {f'`{shown}`' if default not in (None, {}) else ''} | {first.replace('|', chr(92) + '|')} |\n"


def test_the_page_lists_the_arguments():
    page, names = PAGE.read_text(), list(SIGNATURE)
    for title, listed in (
        ("everyday arguments", {name: FIELDS[name] for name in names[2:EVERYDAY]}),
        ("other arguments", {name: FIELDS[name] for name in names[EVERYDAY:] if name not in NOT_IN_FILES}),
        ("options", Options.model_fields),
    ):
        head = f"| {title.split()[-1].rstrip('s')} | default | |\n| --- | --- | --- |\n"
        assert f"<!-- {title} -->\n{head}{''.join(row(*item) for item in listed.items())}<!-- end -->\n" in page


def test_the_names_that_belong_elsewhere_are_those_that_there_are():
    of_fit, options, knobs, *_ = (set(names.split()) for names in arguments._PLACES.values())
    assert of_fit == set(fit_options._TAKEN)
    assert options == set(Options.model_fields)
    assert knobs >= {"workers", "max_queue_size", "use_multiprocessing", "prefetch_factor", "steps_per_execution"}
    assert set(arguments._SYNONYMS) <= set(SIGNATURE)


def build_model():
    """Not called."""


ARRAYS = np.zeros((8, 2)), np.zeros((8, 1))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: autofit.tune(build_model, *ARRAYS), "call tune(build_model, data, ...), with arrays as data=(x, y)"),
        (lambda: autofit.tune(build_model), "missing a required argument: 'data'"),
        (lambda: autofit.tune(build_model, ARRAYS, epochs=3), "epochs: is an argument of fit; give it in fit_kwargs"),
        (lambda: autofit.tune(build_model, ARRAYS, gpu_memory="6GiB"), "did you mean device_memory?"),
        (lambda: autofit.tune(build_model, ARRAYS, workers=4), "workers: is a knob; give values to try in space"),
        (lambda: autofit.tune(build_model, ARRAYS, tolerance=0.1), "tolerance: is one of the options; give it in options"),
        (lambda: autofit.tune(build_model, ARRAYS, max_time=3), "did you mean max_seconds?"),
        (lambda: autofit.tune(build_model, x=ARRAYS[0], y=ARRAYS[1]), "x: is part of the data; give data=(x, y)"),
        (lambda: autofit.measure(build_model, ARRAYS, [], device="tpu", colour=1), "colour: unknown key. Allowed"),
        (lambda: autofit.estimate(build_model, ARRAYS, batch_sizes=[8]), "did you mean batch_size?"),
        (lambda: autofit.sweep(build_model, ARRAYS, {"max_trials": [1]}, timeout=8), "did you mean max_seconds?"),
        (lambda: autofit.sweep(build_model, ARRAYS), "missing a required argument: 'matrix'"),
    ],
)  # fmt: skip  # one item a line would be longer, not clearer
def test_a_wrong_call_says_what_to_write(call, told):
    with pytest.raises(autofit.UsageError) as caught:
        call()
    assert told in str(caught.value)
    own = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__) if "/autofit/" in frame.filename]
    assert own == ["call"]


def test_all_that_is_wrong_with_a_call_is_one_error():
    with pytest.raises(autofit.UsageError) as caught:
        autofit.tune(
            build_model,
            ARRAYS,
            fit_kwargs={"epoch": 3, "shuffle": True, "batch_size": 3},
            space={"batch_size": [0.5], "worker": [1]},
            max_trials=0,
            options={"tolerance": 2},
        )
    assert str(caught.value).splitlines()[0] == "6 errors:"
    keys = [error.key for error in (caught.value, *caught.value.others)]
    assert sorted(keys) == [
        "fit_kwargs.batch_size", "fit_kwargs.epoch", "max_trials", "options.tolerance", "space.batch_size", "space.worker"
    ]  # fmt: skip  # one item a line would be longer, not clearer
