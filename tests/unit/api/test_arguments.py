"""The arguments of `tune`: their texts, their defaults, the table that lists them, and what a wrong
call says.
"""

import inspect
import json
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

import autofit
from autofit.api.config import load
from autofit.tuning.settings import Options, TuneSettings
from autofit.workload.workload import ARGUMENTS
from tests.commands import PACKAGE

PAGE = Path(__file__).parents[3] / "configs" / "README.md"
NOT_IN_FILES = {"progress"}
ARRAYS = np.zeros((8, 2)), np.zeros((8, 1))
FIELDS = {**ARGUMENTS, **TuneSettings.model_fields}
SIGNATURE = inspect.signature(autofit.tune).parameters
EVERYDAY = 10


class Estimator:
    def __repr__(self):
        return "Estimator(\n" + 17 * "\toption=None,\n" + ")"


def default_of(field):
    """The default as a signature shows it, in which models are mappings."""
    default = field.get_default(call_default_factory=True)
    return (
        default.model_dump(exclude_unset=True)
        if hasattr(default, "model_dump")
        else default
    )


def test_a_file_takes_the_arguments_of_the_call():
    of_script = set(inspect.signature(autofit.tune_script).parameters) - {"settings"}
    of_calls = {*SIGNATURE, *of_script} - NOT_IN_FILES
    assert set(load.schema()["properties"]) == of_calls | {"host_labels", "matrix"}


def test_a_function_has_the_defaults_of_the_settings():
    for name, field in FIELDS.items():
        if not field.is_required():
            assert SIGNATURE[name].default == default_of(field), name


def row(name, field):
    """A row of a table: name, default, and the first sentence of the text."""
    default = default_of(field)
    shown = (
        default
        if isinstance(default, str)
        else f"{default:g}"
        if isinstance(default, float)
        else json.dumps(default)
    )
    first = re.split(r"(?<=[.])\s+(?=[A-Z`])", load.texts()[name], maxsplit=1)[0]
    return (
        f"| `{name}` | {f'`{shown}`' if default not in (None, {}) else ''} | "
        f"{first.replace('|', chr(92) + '|')} |\n"
    )


def test_the_page_lists_the_arguments():
    page = PAGE.read_text()
    names = list(SIGNATURE)
    for title, listed in (
        ("everyday arguments", {name: FIELDS[name] for name in names[2:EVERYDAY]}),
        (
            "other arguments",
            {
                name: FIELDS[name]
                for name in names[EVERYDAY:]
                if name not in NOT_IN_FILES
            },
        ),
        ("options", Options.model_fields),
    ):
        head = f"| {title.split()[-1].rstrip('s')} | default | |\n| --- | --- | --- |\n"
        assert (
            f"<!-- {title} -->\n{head}{''.join(row(*item) for item in listed.items())}<!-- "
            "end -->\n" in page
        )


def build_model():
    """Not called."""


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: autofit.estimate(build_model, ARRAYS, batch_sizes=[8]), "batch_sizes"),
        (lambda: autofit.estimate(build_model, ARRAYS, call="predict"), "call"),
        (lambda: autofit.measure(build_model, ARRAYS, []), "configs"),
        (
            lambda: autofit.tune(
                build_model, ARRAYS, call="predict", effective_batch_size=64
            ),
            "effective_batch_size",
        ),
        (
            lambda: autofit.sweep(build_model, ARRAYS, {"max_trials": [1]}, timeout=8),
            "timeout",
        ),
        (lambda: autofit.tune("model.py:f", ARRAYS), "build_model"),
        (
            lambda: autofit.tune(
                type("Model", (), {"__module__": "keras.src.models.model"})(), ARRAYS
            ),
            "build_model",
        ),
    ],
)
def test_an_error_names_the_argument_that_is_wrong(call, key):
    with pytest.raises(autofit.UsageError) as caught:
        call()
    assert caught.value.key == key
    assert str(caught.value) == f"{key}: {caught.value.problem}"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: autofit.tune(build_model, *ARRAYS),
            "call tune(build_model, data, ...), with arrays as data=(x, y)",
        ),
        (lambda: autofit.tune(build_model), "missing a required argument: 'data'"),
        (
            lambda: autofit.tune(build_model, ARRAYS, epochs=3),
            "epochs: is an argument of fit; give it in fit_kwargs",
        ),
        (
            lambda: autofit.tune(build_model, ARRAYS, workers=4),
            "workers: is a knob; give values to try in space",
        ),
        (
            lambda: autofit.tune(build_model, ARRAYS, max_time=3),
            "did you mean max_seconds?",
        ),
        (
            lambda: autofit.tune(Estimator(), ARRAYS),
            "build_model: Estimator is not a function; pass the function that returns a "
            "model, itself",
        ),
        (
            lambda: autofit.tune(build_model, x=ARRAYS[0], y=ARRAYS[1]),
            "x: is part of the data; give data=(x, y)",
        ),
        (
            lambda: autofit.measure(build_model, ARRAYS, [], device="tpu", colour=1),
            "colour: unknown key. Allowed",
        ),
        (lambda: autofit.Watch("no.json"), "no.json: it cannot be read"),
        (lambda: autofit.Result.load("no.json"), "no.json: it cannot be read"),
    ],
)
def test_a_wrong_call_says_what_to_write_and_shows_no_frame_of_autofit(call, told):
    with pytest.raises(autofit.UsageError, match=re.escape(told)) as caught:
        call()
    own = [
        frame.name
        for frame in traceback.extract_tb(caught.value.__traceback__)
        if frame.filename.startswith(PACKAGE)
    ]
    assert own == ["call"]


def test_all_that_is_wrong_with_a_call_is_one_error():
    wrong = {
        "fit_kwargs": {"epoch": 3},
        "space": {"worker": [1]},
        "device": "abacus",
        "options": {"sampler": "tpe"},
    }
    with pytest.raises(autofit.UsageError) as caught:
        autofit.tune(build_model, ARRAYS, **wrong, max_trials=0)
    keys = [error.key for error in (caught.value, *caught.value.others)]
    assert sorted(keys) == [
        "device",
        "fit_kwargs.epoch",
        "max_trials",
        "options.sampler",
        "space.worker",
    ]
