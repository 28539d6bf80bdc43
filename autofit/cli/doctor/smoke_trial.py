"""A real trial of a tiny model, with the fork server, the device and the measurement that a tune uses.

The model has a convolution. On a GPU, cuDNN computes it, and cuDNN is the library that is broken most often.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autofit.cli.findings import Finding, ok, problem
from autofit.errors import AutofitError, UsageError
from autofit.records.distribution import install_command
from autofit.records.machine import Device, Machine
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, Measurement, TrialSpec
from autofit.records.units import format_seconds
from autofit.trial.launcher import ProcessLauncher, run_to_end
from autofit.workload.workload import Workload

_DEADLINE_SECONDS = 60.0  # CUDA may have to compile kernels first
_MEASURE_SECONDS = 0.3
_DEVICE_BYTES = 2**30  # ample for one layer, and leaves the rest of the GPU to other processes
_SAMPLES, _BATCH, _PIXELS = 64, 8, 8
_REINSTALL = "Run pip install --force-reinstall keras tensorflow."
_REINSTALL_GPU = f"Run {install_command('gpu')} in a new environment: CUDA's libraries and TensorFlow must match."
_AVX = "Use a machine whose CPU has AVX: TensorFlow's wheels require it."
_IN_FORK = "in forked subprocess"  # in torch's error if CUDA was used before the fork
_STARTED = (
    'Make python -c "import keras" work, in a new environment if necessary. If that does not help, try --launch plain.'
)
_PLAIN = "Use --launch plain (launch='plain' in Python): each trial then starts its own interpreter."


def workload(*, jit_compile: bool = False) -> Workload:
    """Return a tiny model and a few samples; XLA compiles the train step if `jit_compile` is true."""

    def build_model() -> Any:  # inside a function, so that it is pickled by value
        import keras  # slow to import, so imported only in a trial's process

        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((_PIXELS, _PIXELS, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(1)]
        )
        model.compile(optimizer="sgd", loss="mse", jit_compile=jit_compile)
        return model

    images = np.ones((_SAMPLES, _PIXELS, _PIXELS, 1), "float32")
    return Workload(build_model, (images, np.ones((_SAMPLES, 1), "float32")))


def attempt(launcher: ProcessLauncher, machine: Machine, device: Device | None, *, forks: bool) -> Finding:
    """Start the trial server, run a trial of `workload()`, and report its outcome and duration."""
    device_bytes = None if device is None else min(_DEVICE_BYTES, device.free_bytes // 2)
    limits = Limits(device_bytes, machine.available_bytes)
    spec = TrialSpec(Role.MEASURE, FitConfig(_BATCH), limits, _DEADLINE_SECONDS, measure_seconds=_MEASURE_SECONDS)
    started = time.monotonic()
    try:
        launcher.warm()
        ready = time.monotonic()
        measurement = run_to_end(launcher.run(spec))
    except UsageError as error:
        return problem("trial", str(error), "Correct this, then run autofit doctor again.")
    except AutofitError as error:
        return _not_started(str(error))
    if isinstance(measurement, Measurement) and measurement.outcome is not Outcome.OK:
        return _failure(measurement, device, forks=forks)
    detail = f"trained a tiny model on {device.name if device else 'the CPU'} in {format_seconds(time.monotonic() - ready)}"
    if not forks:
        return ok("trial", f"a new interpreter {detail}")
    return ok("trial", f"fork server ready in {format_seconds(ready - started)}; a fork {detail}")


def _not_started(message: str) -> Finding:
    first, *rest = (line.strip() for line in message.splitlines() if line.strip())
    is_traceback = any(line.startswith("Traceback") for line in rest)
    reason = " / ".join(rest[-1:] if is_traceback else [*rest[:1], *rest[1:][-1:]])
    return problem("trial", f"did not start: {first} {reason}".rstrip(), _AVX if "SIGILL" in reason else _STARTED)


def _failure(measurement: Measurement, device: Device | None, *, forks: bool) -> Finding:
    outcome, reason = measurement.outcome, measurement.evidence.reason
    if outcome.is_oom:
        return problem("trial", f"a tiny model ran out of memory: {reason}", "End the processes that hold the memory.")
    if _IN_FORK in reason:
        return problem("trial", f"a forked trial cannot use {device.name if device else 'the GPU'}: {reason}", _PLAIN)
    if outcome is Outcome.ERROR or not forks:
        return problem("trial", f"a tiny model failed: {reason}", _REINSTALL_GPU if device else _REINSTALL)
    if outcome is Outcome.TIMEOUT and device is not None:
        return problem(
            "trial",
            f"a tiny model did not finish on {device.name}: {reason}",
            f"Run autofit doctor again, because CUDA compiles kernels only once. If the trial still hangs: {_PLAIN}",
        )
    how = "hung" if outcome is Outcome.TIMEOUT else "died"
    return problem("trial", f"forking is not safe on this machine: a forked trial of a tiny model {how} ({reason})", _PLAIN)
