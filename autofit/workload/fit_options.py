"""Arguments of `fit` other than data and knobs: those that the user may give, and their use in
trials and the snippet.
"""
#     given by the user ──> validated ──┬──> trials: class_weight, shuffle, callbacks, validation_…
#                                       └──> snippet: all of them, with steps scaled to the
#                                            chosen batch size
#
# Of callbacks:
#
#     a list ──────────────────> not run; their names are kept for the notice
#     def callbacks(folder) ───> called in each trial with an empty folder; all that it returns runs
#     def callbacks() ─────────> not called
#
# A trial trains on the user's machine, under the user's account. A callback of the user that runs
# there may overwrite the weights of a week, or open a run in a tracker for each trial, and no
# sandbox can prevent that: files are written by C libraries, and trackers write to sockets. So a
# trial runs none of the user's own code after a batch or an epoch, unless the user writes the
# function with a parameter `folder` for it.

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autofit.errors import Problem, UsageError
from autofit.workload import reference
from autofit.workload.accumulation import is_argument_of
from autofit.workload.arguments import Keywords, ProblemsError, collecting, no_such
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.own_modules import package_of
from autofit.workload.reference import Reference

FIT = "fit"
PREDICT = "predict"
CALLBACKS = "callbacks"
CLASS_WEIGHT = "class_weight"
VALIDATION_SPLIT = "validation_split"
STEPS_PER_EPOCH = "steps_per_epoch"
VALIDATION_STEPS = "validation_steps"
VALIDATION_BATCH_SIZE = "validation_batch_size"
FOLDER = "folder"  # the parameter of a function for callbacks that trials call

IN_TRIALS = (CLASS_WEIGHT, "shuffle")  # passed to each call of `fit`
_RENDERED_ONLY = ("epochs", "initial_epoch", "verbose", "validation_freq")
_COUNTS = (VALIDATION_STEPS, VALIDATION_BATCH_SIZE, STEPS_PER_EPOCH)
_TAKEN = (*IN_TRIALS, CALLBACKS, VALIDATION_SPLIT, *_COUNTS, *_RENDERED_ONLY)
# arguments that `predict` and `evaluate` take, too
OF_INFERENCE = (CALLBACKS, "verbose")
_HOOK = "on_epoch_end"  # a method of every callback
_HOOKS = [
    f"on_{call}batch_{moment}"
    for call in ("train_", "test_", "predict_", "")
    for moment in ("begin", "end")
]
# attributes of Keras's callbacks that are "epoch" or a number of batches
_EVERY_BATCHES = ("save_freq", "update_freq")


@dataclass(frozen=True)
class TrialCallbacks:
    """The callbacks of a trial."""

    run: tuple[Any, ...] = ()
    left_out: tuple[str, ...] = ()  # descriptions of those that do not run
    # names of those, run or left out, that the user's own `fit` calls for each batch
    of_batches: tuple[str, ...] = ()

    def notice(self, *, of_script: bool) -> str | None:
        """Return what the user should know about the callbacks that are left out; None if all
        run.
        """
        if not self.left_out:
            return None
        text = (
            f"trials leave out {', '.join(self.left_out)}, because callbacks may write files, send "
            "data or end the "
            "training; their time and memory are not in the figures"
        )
        remedy = (
            f". To include them, give a function: def callbacks({FOLDER}), which each trial calls "
            "with an empty folder"
        )
        return text if of_script else text + remedy


def takes_folder(function: Any) -> bool:
    """Return whether a function for callbacks takes a folder; of one that a YAML file names, read
    the source.
    """
    if not isinstance(function, Reference):
        return is_argument_of(function, FOLDER)
    nodes = ast.parse(function.path.read_bytes()).body if function.path else []
    return any(
        each.arg == FOLDER
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == function.name
        for each in (*node.args.args, *node.args.kwonlyargs)
    )


def _counts_batches(callback: Any) -> bool:
    """Return whether a callback has code of the user's for each batch, or counts batches."""
    if any(isinstance(getattr(callback, name, None), int) for name in _EVERY_BATCHES):
        return True
    hooks = (
        vars(callback).get(hook) or getattr(type(callback), hook, None)
        for hook in _HOOKS
    )
    return any(package_of(hook) != "keras" for hook in hooks if hook is not None)


def _names(callbacks: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(type(callback).__name__ for callback in callbacks))


def validated(fit_kwargs: Keywords) -> dict[str, Any]:
    """Check the user's arguments of `fit`; return them with plain numbers as `class_weight`, and
    callbacks for trials.
    """
    options = {}
    problems: list[Problem] = []
    for name, value in fit_kwargs.items():
        with collecting(problems):
            options[name] = _validated(name, value)
    if problems:
        raise ProblemsError(problems)
    return {name: value for name, value in options.items() if value is not None}


def _validated(name: str, value: Any) -> Any:
    key = f"fit_kwargs.{name}"
    if name in ("batch_size", "validation_data"):
        raise UsageError(
            f"is an argument of tune; give it as {name.removesuffix('_data')}", key=key
        )
    if name not in _TAKEN:
        raise UsageError(no_such(name, _TAKEN), key=key)
    if (
        value is None
        or isinstance(value, TrialCallbacks)
        or (name == CALLBACKS and is_made(value))
    ):
        return value
    if name in _COUNTS and (
        not isinstance(value, int) or isinstance(value, bool) or value < 1
    ):
        form = "a whole number of at least 1"
    elif name == VALIDATION_SPLIT and not (
        isinstance(value, int | float) and 0 <= value < 1
    ):
        form = "a share of the samples: at least 0 and less than 1"
    elif name == CALLBACKS:
        if hasattr(value, _HOOK) or (
            isinstance(value, list | tuple)
            and all(hasattr(one, "__dict__") for one in value)
        ):
            # no object crosses: some cannot be pickled
            callbacks = value if isinstance(value, list | tuple) else [value]
            return TrialCallbacks(
                (), _names(callbacks), _names(filter(_counts_batches, callbacks))
            )
        form = (
            "a list of callbacks, or a function that returns one (in a YAML file: "
            "path/to/file.py:function)"
        )
    elif name == CLASS_WEIGHT:
        # plain numbers, because NumPy's cannot be saved as JSON
        with contextlib.suppress(TypeError, ValueError):
            return {int(label): float(weight) for label, weight in dict(value).items()}
        form = "a weight for each class number, such as {0: 1.0, 1: 5.0}"
    else:
        return value
    raise UsageError(f"{value!r} is not allowed; give {form}", key=key)


def is_made(value: Any) -> bool:
    """Return whether callbacks are given as a function that returns them."""
    return isinstance(value, Reference) or (
        callable(value) and not hasattr(value, _HOOK)
    )


def resolved(options: Keywords, folder: Path) -> dict[str, Any]:
    """Return the arguments for a trial, with its callbacks: those that a function which takes a
    folder returns for it.
    """
    made = options.get(CALLBACKS, TrialCallbacks())
    if not isinstance(made, TrialCallbacks):
        function = made.resolve() if isinstance(made, Reference) else made
        if takes_folder(function):
            returned = function(**{FOLDER: str(folder)})
            several = isinstance(returned, list | tuple)
            callbacks = tuple(returned) if several else (returned,)
            made = TrialCallbacks(
                callbacks, of_batches=_names(filter(_counts_batches, callbacks))
            )
        else:
            call = f"{getattr(function, '__name__', 'the function')}()"
            made = TrialCallbacks(
                (), (f"the callbacks of {call}",), (f"those of {call}",)
            )
    patches = sorted(reference.left_out)
    return {**options, CALLBACKS: replace(made, left_out=(*made.left_out, *patches))}


def rendered(
    options: Keywords,
    chosen: int | None,
    written_for: int | None,
    *,
    scale_validation: bool,
) -> dict[str, Any]:
    """Return the user's arguments, which were `written_for` a batch size, so that an epoch keeps
    its number of samples.
    """
    # the chosen batch size may apply to the validation data, too
    if not chosen or not written_for:
        return dict(options)
    scaled = dict(options)
    for name in (STEPS_PER_EPOCH, *[VALIDATION_STEPS] * scale_validation):
        if name in options:
            scaled[name] = math.ceil(options[name] * written_for / chosen)
    return scaled


def validations_per_epoch(options: Keywords) -> float:
    """Return how often `fit` validates: `validation_freq` is every how many epochs, or a list of
    them.
    """
    frequency = options.get("validation_freq", 1)
    if isinstance(frequency, int):
        return 1 / max(1, frequency)
    epochs: int = options.get("epochs", 1)
    return len(frequency) / max(1, epochs)


def with_class_weight(batch: Any, options: Keywords) -> Any:
    """Add sample weights to a batch (x, y) if there are class weights, because `fit` passes them to
    `train_step`.
    """
    if CLASS_WEIGHT not in options or not isinstance(batch, tuple) or len(batch) != 2:
        return batch
    return (*batch, np.ones(length_of(leaves(batch)[0]), np.float32))
