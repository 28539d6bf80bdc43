"""Run a script up to its call of `fit`, and do there what the task asks for; the script goes no
further.

    run_as_main ──> the script imports Keras ──> hook: limits are set, `Model.fit` is replaced
                ──> the script calls `fit`   ──> its data and model are the workload: `task.work`
                                             ──> `task.finish` sends what went wrong; `os._exit`
"""

from __future__ import annotations

import collections
import functools
import inspect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase, Role
from autofit.records.units import format_seconds
from autofit.trial.folder import Preload
from autofit.trial.worker import task
from autofit.trial.worker.job import TrialContext
from autofit.workload import fit_options
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.own_modules import is_own_module
from autofit.workload.script import Script, calls, guard
from autofit.workload.script.given import edits_for, places_in, save_places, workload_of
from autofit.workload.script.identity import digest_without
from autofit.workload.script.options import mark_options
from autofit.workload.script.reached import Reached, look, uses_of, watch_data
from autofit.workload.script.run import AfterImport, Code, line_at, run_as_main
from autofit.workload.workload import Workload, save_script

_SLOW_SECONDS = 10.0  # of a script before it calls `fit`: longer than a usual trial
_DEVICES = "CUDA_VISIBLE_DEVICES"
# which read the environment when they are imported
_LIBRARIES = (*backends.NAMES, "keras")
_LOOPS = (
    "train_on_batch",
    "GradientTape",
    "stateless_apply",
    "value_and_grad",
    ".backward(",
)
_SEARCHES = ("keras_tuner", "kerastuner", "optuna", "ray")


class ScriptRun:
    """Runs a script with the edits of a config; its call of `fit` does what the task asks for, and
    ends the process.

    The first run finds the places, and notes for later ones what they need.
    """

    def __init__(self, script: Script, context: TrialContext) -> None:
        self._script = script
        self._context = context
        self._environment = dict(os.environ)
        self._places = places_in(context.folder)
        self._is_first = not self._places
        self._files: guard.Files | None = None
        if self._is_first and not script.writes:
            own = Path(script.file).parent.absolute()
            allowed = guard.caches(context.folder)
            self._files = guard.Files((own, Path.cwd()), allowed)
        # what the script sets before it imports Keras or a backend
        self._switches: dict[str, str] | None = None
        self._call_count = 0
        # of a script with several calls of which none was chosen; none of them trains
        self._open_calls: list[calls.FitCall] = []
        self._began = time.monotonic()

    def run(self) -> None:
        context = self._context
        context.enter(Phase.LOADING)
        guard.turn_off_others(context.folder)
        imports = AfterImport()
        for name in _LIBRARIES:
            imports.add(name, before=self._before_libraries)
        backend = context.peaks.backend
        imports.add(backend.name, lambda _: task.limit(context))
        imports.add("keras", self._install)
        imports.add("autofit.api.tune", self._refuse_own_tune)
        imports.add("tensorflow", lambda _: tfdata.control_caches())
        if self._is_first:
            mark_options(imports)
            watch_data(imports)
        if not self._script.writes:
            guard.watch(context.folder, self._stop)
        edits = edits_for(self._places, context.spec.config)
        code = Code(edits, is_marked=self._is_first)
        options = edits.options
        if "import hydra" in self._script.text:
            # it writes into the folder of the trial
            options.append(f"hydra.run.dir={tempfile.gettempdir()}/hydra")
        ended: BaseException = SystemExit()
        try:
            run_as_main(self._script, code, options)
        except BaseException as error:
            ended = error
        if self._open_calls:  # what follows a call that did not train may fail
            self._end(self._start_again)
        if isinstance(ended, SystemExit):
            raise UsageError(self._ended(ended.code))
        if isinstance(ended, EOFError):
            raise UsageError(
                f"{self._script.name} asks for input, which trials do not have; give it as an "
                "argument"
            )
        raise ended

    def _end(self, do: Callable[[], None]) -> None:
        """Do a last thing, and end the process, which no `except` of the script can prevent."""
        task.leave(task.finish(self._context, do))

    def _start_again(self) -> None:
        """Start the process anew for the call of `fit` that is tuned; all calls of the script are
        known by now.
        """
        call = calls.chosen(self._script.name, self._open_calls)
        save_script(replace(self._script, fit=call), self._context.folder)
        # the first run is a plain process, whose last argument is the number of its pipe
        os.set_inheritable(int(sys.orig_argv[-1]), True)
        # and finds the environment as it was before the script set anything
        os.execve(sys.executable, sys.orig_argv, self._environment)

    def _stop(self, problem: str) -> None:
        def refuse() -> None:
            raise UsageError(
                f"{problem}: each trial would, too. Allow it with --writes"
            )

        self._end(self._start_again if self._open_calls else refuse)

    def _before_libraries(self) -> None:
        """Note what the script has set, and keep the devices that the tune has chosen."""
        if self._switches is None:
            self._switches = {
                name: value
                for name, value in os.environ.items()
                if self._environment.get(name) != value
            }
        chosen = self._environment.get(_DEVICES)
        devices = os.environ.get(_DEVICES)
        if devices in ("", "-1") and chosen not in ("", "-1"):
            raise UsageError(
                f"{self._script.name} hides the GPU by {_DEVICES}={devices}; give device: cpu",
                key="device",
            )
        if chosen is not None:
            os.environ[_DEVICES] = chosen

    def _refuse_own_tune(self, _: Any) -> None:
        script = self._script
        raise UsageError(
            f"{script.name} calls autofit itself; run it as {script.command}"
        )

    def _install(self, keras: Any) -> None:
        """Take the place of `keras.Model.fit` until the call that is tuned."""
        used = keras.backend.backend()
        expected = self._context.peaks.backend.name
        if used != expected:
            raise UsageError(
                f"{self._script.name} runs Keras on {used}, and autofit expected "
                f"{expected}; set backend: {used}",
                key="backend",
            )
        original = keras.Model.fit
        signature = inspect.signature(original)

        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            arguments = signature.bind(model, *args, **kwargs).arguments
            del arguments["self"]
            if not self._is_tuned(arguments, frame):
                return _untrained(keras, arguments)
            keras.Model.fit = original
            seconds = time.monotonic() - self._began
            self._end(functools.partial(self._at_fit, model, arguments, frame, seconds))
            return None

        # libraries that call it read this
        fit.__signature__ = signature  # type: ignore[attr-defined]
        keras.Model.fit = fit

    def _is_tuned(self, arguments: Mapping[str, Any], frame: FrameType) -> bool:
        self._call_count += 1
        if self._is_first and not self._script.fit and calls.is_written_often():
            self._open_calls.append(calls.call_of(line_at(frame), arguments))
        return not self._open_calls and self._call_count >= self._script.fit

    def _at_fit(
        self, model: Any, arguments: Mapping[str, Any], frame: FrameType, seconds: float
    ) -> None:
        """Describe or measure the workload of a call of `fit`, which took `seconds` to reach."""
        if searching := _search_above(frame):
            raise UsageError(
                f"{searching} calls fit at {line_at(frame)}, and searches itself; tune a script "
                "that trains one model"
            )
        found = Reached(model, arguments, line_at(frame), self._places)
        if self._is_first:
            found = look(self._script, model, arguments, frame)
        loaded = workload_of(self._script, found)
        if self._is_first:
            self._note(found)
        named = bind_all(loaded, resolve_reference)
        is_described = self._context.spec.role is Role.DESCRIBE
        of_script = (
            _of_script(self._script, found, loaded, seconds) if is_described else {}
        )
        task.work(self._context, loaded, named, of_script)

    def _note(self, found: Reached) -> None:
        """Note for later runs what they need; raise UsageError if the user's files have changed."""
        changed = [] if self._files is None else self._files.changed()
        if changed:
            raise UsageError(
                f"before fit, {', '.join(changed[:3])} changed: each trial would change it, too. "
                "Allow it with --writes"
            )
        folder = self._context.folder
        save_places(folder, found.places)
        # looking at a module may import others
        modules = [name for name in list(sys.modules) if "." not in name]
        packages = [name for name in modules if not is_own_module(name)]
        is_safe = threading.active_count() == 1
        Preload(self._switches or {}, packages, is_safe=is_safe).save(folder)

    def _ended(self, code: Any) -> str:
        """Say why a script that has ended cannot be tuned, and what to do."""
        script = self._script
        name = script.name
        if self._call_count:
            return (
                f"{name} calls fit {self._call_count} times, and --fit {script.fit} asks for a "
                "later call"
            )
        if code not in (0, None):
            return (
                f"{name} ended before it called fit (exit code {code}); if it needs arguments: "
                f"autofit tune {name} -- ARGUMENTS"
            )
        for loop in _LOOPS:
            if loop in script.text:
                return (
                    f"{name} ended without a call of fit (it uses {loop.strip('.(')}): a training "
                    "loop of its own cannot be tuned"
                )
        for library in _SEARCHES:
            if library in script.text:
                return (
                    f"{name} ended without a call of fit that reached Keras; it uses {library}: "
                    "tune a script that trains one model"
                )
        return f"{name} ended without a call of fit of a Keras model"


def _of_script(
    script: Script, found: Reached, loaded: Workload, seconds: float
) -> dict[str, Any]:
    """Return the fields of a description that only a script has, which took `seconds` to call
    `fit`.
    """
    slow = f"the script takes {format_seconds(seconds)} to call fit, in each trial"
    uses = uses_of(found.places["batch_size"])
    counts = (fit_options.STEPS_PER_EPOCH, fit_options.VALIDATION_STEPS)
    options = loaded.fit_kwargs
    given = {name: options[name] for name in counts if name in options}
    return {
        "fingerprint": digest_without(script, found.places),
        "places": dict(found.places),
        "uses": tuple(uses),
        # a count that is divided follows the batch size
        "literal_counts": {} if any(uses.values()) else given,
        "fit_call": f"{found.where} after {format_seconds(seconds)}",
        "notices": (slow,) if seconds > _SLOW_SECONDS else (),
    }


def _search_above(frame: FrameType | None) -> str:
    """Return the package of a search that a call is part of; empty if there is none."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package, _, _ = module.partition(".")
        if package in _SEARCHES:
            return package
        frame = frame.f_back
    return ""


def _untrained(keras: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the history of a call of `fit` that is not the one that is tuned, with any metric."""
    epochs = arguments.get("epochs", 1)
    values = [0.5] * epochs
    history = keras.callbacks.History()
    history.history = collections.defaultdict(lambda: values, loss=values)
    history.epoch = list(range(epochs))
    return history
