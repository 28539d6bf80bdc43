"""Run a script up to its call of `fit`, and do there what the task asks for; the script goes no
further.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from autofit import backends
from autofit.backends.protocol import Backend
from autofit.errors import UsageError
from autofit.records.places import Edits, Place
from autofit.records.states import Phase, Role
from autofit.records.units import format_seconds
from autofit.trial.folder import Preload
from autofit.trial.worker.job import TrialContext
from autofit.workload import fit_options
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.own_modules import is_own_module
from autofit.workload.script import Script, calls, guard
from autofit.workload.script.given import edits_for, places_in, save_places, workload_of
from autofit.workload.script.identity import digest_without
from autofit.workload.script.options import mark_options
from autofit.workload.script.reached import Reached, call_at, divides, look, uses_of, watch_data
from autofit.workload.script.run import AfterImport, Code, run_as_main
from autofit.workload.workload import Workload, save_script

_SLOW_SECONDS = 10.0  # of a script before it calls `fit`: longer than a usual trial
_DEVICES = "CUDA_VISIBLE_DEVICES"
_LOOPS = ("train_on_batch", "GradientTape", "stateless_apply", "value_and_grad", ".backward(")
_SEARCHES = ("keras_tuner", "kerastuner", "optuna", "ray")

Finish = Callable[[Callable[[], None]], int]


def run_script(script: Script, context: TrialContext, backend: Backend, finish: Finish) -> None:
    """Run a script with the edits of a config; its call of `fit` does what the task asks for, and
    ends the process.
    """
    from autofit.trial.worker import main

    environment = dict(os.environ)
    places = places_in(context.folder)
    edits = edits_for(places, context.spec.config)
    first = _FirstRun(script, context.folder) if not places else None
    imports = AfterImport()

    def stop(problem: str) -> None:
        if hook.calls_seen:
            _run_again(script, context, finish, hook, environment)
        error = UsageError(f"{problem}: each trial would, too. Allow it with --writes")
        main.leave(finish(lambda: _raise(error)))

    def reached(found: Reached) -> None:
        seconds = time.monotonic() - began
        main.leave(finish(lambda: _at_fit(script, context, found, first, seconds)))

    began = time.monotonic()
    context.enter(Phase.LOADING)
    guard.turn_off_others(context.folder)
    hook = _FitHook(script, backend, places, reached, is_first=first is not None)
    imports.add(backend.name, lambda _: main.limit(context, backend), hook.before_keras)
    imports.add("keras", hook.install, hook.before_keras)
    imports.add("autofit.api.tune", functools.partial(_refuse_own_tune, script))
    imports.add("tensorflow", lambda _: tfdata.control_caches())
    if first is not None:
        first.watch(imports)
        mark_options(imports)
        watch_data(imports)
    if not script.writes:
        guard.Guard(context.folder, stop)
    code = Code(edits, is_marked=first is not None)
    status: Any = 0
    try:
        run_as_main(script, code, [*edits.options, *_of_hydra(script)])
    except BaseException as error:
        if hook.calls_seen:  # what follows a call that did not train may fail
            _run_again(script, context, finish, hook, environment)
        if isinstance(error, EOFError):
            raise UsageError(
                f"{script.name} asks for input, which trials do not have; give it as an argument"
            ) from None
        if not isinstance(error, SystemExit):
            raise
        status = error.code
    if hook.calls_seen:
        _run_again(script, context, finish, hook, environment)
    raise UsageError(_ended(script, hook, status))


def _run_again(
    script: Script,
    context: TrialContext,
    finish: Finish,
    hook: _FitHook,
    environment: Mapping[str, str],
) -> NoReturn:
    """Start the process anew for the call of `fit` that is tuned; all calls of the script are known
    by now.
    """
    from autofit.trial.worker import main

    def begin() -> None:
        call = calls.chosen(script.name, hook.calls_seen)
        save_script(replace(script, fit=call), context.folder)
        # the first run is a plain process, whose last argument is the number of its pipe
        os.set_inheritable(int(sys.orig_argv[-1]), True)
        # and finds the environment as it was before the script set anything
        os.execve(sys.executable, sys.orig_argv, environment)

    main.leave(finish(begin))


def _of_hydra(script: Script) -> list[str]:
    """Return the options with which Hydra writes into the folder of the trial."""
    text = script.path.read_text(errors="replace") if script.path else ""
    return [f"hydra.run.dir={tempfile.gettempdir()}/hydra"] if "import hydra" in text else []


def _refuse_own_tune(script: Script, _: Any) -> None:
    raise UsageError(f"{script.name} calls autofit itself; run it as {script.command}")


def _raise(error: UsageError) -> None:
    raise error


def _at_fit(
    script: Script,
    context: TrialContext,
    found: Reached,
    first: _FirstRun | None,
    seconds: float,
) -> None:
    """Describe or measure the workload of a call of `fit`."""
    from autofit.trial.worker import main

    loaded = workload_of(script, found)
    if first is not None:
        if not script.writes:
            first.require_unchanged()
        first.save(found.places)
    named = bind_all(loaded, resolve_reference)
    is_first = context.spec.role is Role.DESCRIBE
    of_script = _of_script(script, found, loaded, seconds) if is_first else {}
    main.work(context, loaded, named, of_script)


def _of_script(script: Script, found: Reached, loaded: Workload, seconds: float) -> dict[str, Any]:
    """Return the fields of a description that only a script has, which took `seconds` to call
    `fit`.
    """
    slow = f"the script takes {format_seconds(seconds)} to call fit, in each trial"
    size = found.places["batch_size"]
    counts = (fit_options.STEPS_PER_EPOCH, fit_options.VALIDATION_STEPS)
    given = {name: loaded.fit_kwargs[name] for name in counts if name in loaded.fit_kwargs}
    return {
        "fingerprint": digest_without(script, Edits(found.places, {})),
        "places": dict(found.places),
        "uses": tuple(uses_of(size)),
        "literal_counts": {} if divides(size) else given,
        "fit_call": f"{found.where} after {format_seconds(seconds)}",
        "notices": (slow,) if seconds > _SLOW_SECONDS else (),
    }


class _FitHook:
    """Takes the place of `keras.Model.fit` until the call that is tuned."""

    def __init__(
        self,
        script: Script,
        backend: Backend,
        places: Mapping[str, Place],
        reached: Callable[[Reached], None],
        *,
        is_first: bool,
    ) -> None:
        self._script = script
        self._backend = backend
        self._places = places
        self._reached = reached
        self._devices = os.environ.get(_DEVICES)
        self._is_first = is_first
        self.calls = 0
        # of a script with several of which none was chosen; none of them trains
        self.calls_seen: list[calls.FitCall] = []

    def before_keras(self) -> None:
        """Keep the devices that the tune has chosen, whatever the script has set."""
        devices = os.environ.get(_DEVICES)
        if devices in ("", "-1") and self._devices not in ("", "-1"):
            raise UsageError(
                f"{self._script.name} hides the GPU by {_DEVICES}={devices}; give device: cpu",
                key="device",
            )
        if self._devices is not None:
            os.environ[_DEVICES] = self._devices

    def install(self, keras: Any) -> None:
        used = keras.backend.backend()
        if used != self._backend.name:
            raise UsageError(
                f"{self._script.name} runs Keras on {used}, and autofit expected "
                f"{self._backend.name}; set backend: {used}",
                key="backend",
            )
        model = keras.Model
        had_own = "fit" in vars(model)
        original = model.fit
        signature = inspect.signature(original)
        hook = self

        def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            frame = sys._getframe(1)
            arguments = dict(signature.bind(self, *args, **kwargs).arguments)
            arguments.pop("self")
            is_open = hook._is_first and not hook._script.fit and calls.is_written_often()
            if is_open:
                hook.calls_seen.append(calls.call_of(call_at(frame)[1], arguments))
            if is_open or hook.calls < hook._script.fit:
                return _untrained(keras, arguments)
            if had_own:
                model.fit = original
            else:
                del model.fit
            hook._reach(self, arguments, frame)
            return None

        fit.__signature__ = signature  # type: ignore[attr-defined]  # read by libraries that call it
        model.fit = fit

    def _reach(self, model: Any, arguments: Mapping[str, Any], frame: FrameType) -> None:
        if searching := _search_above(frame):
            raise UsageError(
                f"{searching} calls fit at {call_at(frame)[1]}, and searches itself; tune a script "
                "that trains one model"
            )
        if self._places:
            found = Reached(model, arguments, call_at(frame)[1], self._places)
        else:
            found = look(self._script, model, arguments, frame)
        self._reached(found)


def _search_above(frame: FrameType | None) -> str:
    """Return the package of a search that a call is part of; empty if there is none."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _SEARCHES:
            return package
        frame = frame.f_back
    return ""


class _AnyMetric(dict[str, list[float]]):
    """The history of a call of `fit` that is not the one that is tuned."""

    def __init__(self, epochs: int) -> None:
        super().__init__(loss=[0.5] * epochs)
        self._epochs = epochs

    def __missing__(self, name: str) -> list[float]:
        return [0.5] * self._epochs


def _untrained(keras: Any, arguments: Mapping[str, Any]) -> Any:
    history = keras.callbacks.History()
    history.history = _AnyMetric(arguments.get("epochs", 1))
    history.epoch = list(range(arguments.get("epochs", 1)))
    return history


class _FirstRun:
    """What the first run of a script notes for those that follow."""

    def __init__(self, script: Script, folder: Path) -> None:
        self._folder = folder
        self._environment = dict(os.environ)
        self._switches: dict[str, str] | None = None
        self._folders = _folders(script)
        self._allowed = guard.caches(folder)
        self._before = guard.state_of(self._folders, self._allowed)

    def watch(self, imports: AfterImport) -> None:
        for name in (*backends.NAMES, "keras"):
            imports.add(name, lambda _: None, self._note)

    def _note(self) -> None:
        """Note what the script has set in the environment before its first import of Keras or a
        backend.
        """
        if self._switches is None:
            self._switches = {
                name: value
                for name, value in os.environ.items()
                if self._environment.get(name) != value
            }

    def require_unchanged(self) -> None:
        outputs = {*_outputs()}
        changed = guard.changed(self._before, guard.state_of(self._folders, self._allowed))
        if mine := [path for path in changed if path not in outputs]:
            raise UsageError(
                f"before fit, {', '.join(mine[:3])} changed: each trial would change it, too. Allow "
                "it with --writes"
            )

    def save(self, places: Mapping[str, Place]) -> None:
        save_places(self._folder, places)
        packages = [
            name
            for name in list(sys.modules)
            if "." not in name and name != "__main__" and not is_own_module(name)
        ]
        Preload(self._switches or {}, packages, is_safe=threading.active_count() == 1).save(
            self._folder
        )


def _folders(script: Script) -> list[Path]:
    return [Path.cwd(), *([Path(script.file).parent] if script.file else [])]


def _outputs() -> Iterator[str]:
    """Yield the files that standard output and error of the processes above go to."""
    for process in psutil.Process().parents():
        for number in (1, 2):
            with contextlib.suppress(OSError):  # another user's process
                yield str(Path(f"/proc/{process.pid}/fd/{number}").readlink())


def _ended(script: Script, hook: _FitHook, code: Any) -> str:
    """Say why a script that has ended cannot be tuned, and what to do."""
    name = script.name
    if hook.calls:
        return f"{name} calls fit {hook.calls} times, and --fit {script.fit} asks for a later call"
    if code not in (0, None):
        return (
            f"{name} ended before it called fit (exit code {code}); if it needs arguments: "
            f"autofit tune {name} -- ARGUMENTS"
        )
    text = Path(script.file).read_text(errors="replace") if script.file else ""
    if loops := [loop.strip(".(") for loop in _LOOPS if loop in text]:
        return (
            f"{name} ended without a call of fit (it uses {loops[0]}): a training loop of its own "
            "cannot be tuned"
        )
    if searches := [library for library in _SEARCHES if library in text]:
        return (
            f"{name} ended without a call of fit that reached Keras; it uses {searches[0]}: tune a "
            "script that trains one model"
        )
    return f"{name} ended without a call of fit of a Keras model"
