"""The callbacks of `fit`: which of them run in trials."""
#     a list ──────────────────> those of Keras in `_RUN_IN_TRIALS` run, the names of the others are kept for the notice
#     def callbacks(folder) ───> called in each trial with an empty folder; all that it returns runs
#     def callbacks() ─────────> not called
#
# A trial trains on the user's machine, under the user's account. A callback of the user that runs there may overwrite the
# weights of a week, or open a run in a tracker for each trial, and no sandbox can prevent that: files are written by C
# libraries, and trackers write to sockets. So a trial runs none of the user's own code after a batch or an epoch, unless
# the user writes the function with a parameter `folder` for it.

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.workload.accumulation import is_argument_of
from autofit.workload.reference import Reference

FOLDER = "folder"  # the parameter of a function for callbacks that trials call

# Keras's callbacks that write no file, send nothing, end no training and call none of the user's functions. A subclass
# is the user's own, and a LearningRateScheduler calls the user's function.
_RUN_IN_TRIALS = ("History", "SwapEMAWeights")
_HOOKS = [f"on_{call}batch_{moment}" for call in ("train_", "test_", "predict_", "") for moment in ("begin", "end")]


@dataclass(frozen=True)
class TrialCallbacks:
    """The callbacks of a trial."""

    run: tuple[Any, ...] = ()
    left_out: tuple[str, ...] = ()  # descriptions of those that do not run
    of_batches: tuple[str, ...] = ()  # names of those, run or left out, that the user's own `fit` calls for each batch

    @classmethod
    def of_objects(cls, given: Any) -> TrialCallbacks:
        """Divide a list of callbacks, or a single one, by their classes; none of them runs here."""
        callbacks = list(given) if isinstance(given, list | tuple) else [given]
        left_out = _names(callback for callback in callbacks if not _runs(callback))
        return cls(tuple(filter(_runs, callbacks)), left_out, _of_batches(callbacks))

    @classmethod
    def of_function(cls, function: Callable[..., Any], folder: Path) -> TrialCallbacks:
        """Call a function that takes a folder, and run all that it returns; leave out any other function."""
        if not takes_folder(function):
            call = f"{getattr(function, '__name__', 'the function')}()"
            return cls(left_out=(f"the callbacks of {call}",), of_batches=(f"those of {call}",))
        made = function(**{FOLDER: str(folder)})
        callbacks = tuple(made) if isinstance(made, list | tuple) else (made,)
        return cls(callbacks, of_batches=_of_batches(callbacks))

    def notice(self) -> str | None:
        """Return what the user should know about the callbacks that are left out; None if all run."""
        if not self.left_out:
            return None
        return (
            f"trials leave out {', '.join(self.left_out)}, because callbacks may write files, send data or end the "
            "training; their time and memory are not in the figures. To include them, give a function: "
            f"def callbacks({FOLDER}), which each trial calls with an empty folder"
        )


def is_callback(value: Any) -> bool:
    """Return whether a value is a callback, and not a function that makes callbacks."""
    return hasattr(value, "on_epoch_end")


def takes_folder(function: Any) -> bool:
    """Return whether a function for callbacks takes a folder; of one that a YAML file names, read the source."""
    if isinstance(function, Reference):
        if function.path is None:
            return False
        nodes = ast.parse(function.path.read_bytes()).body
        named = [node.args for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function.name]
        return any(each.arg == FOLDER for taken in named for each in (*taken.args, *taken.kwonlyargs))
    return is_argument_of(function, FOLDER)


def _runs(callback: Any) -> bool:
    return _is_of_keras(type(callback)) and type(callback).__name__ in _RUN_IN_TRIALS


def _of_batches(callbacks: Iterable[Any]) -> tuple[str, ...]:
    return _names(callback for callback in callbacks if any(_is_own(callback, hook) for hook in _HOOKS))


def _names(callbacks: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(type(callback).__name__ for callback in callbacks))


def _is_own(callback: Any, hook: str) -> bool:
    function = vars(callback).get(hook) or getattr(type(callback), hook, None)
    return function is not None and not _is_of_keras(function)


def _is_of_keras(part: Any) -> bool:
    return (getattr(part, "__module__", None) or "").partition(".")[0] == "keras"
