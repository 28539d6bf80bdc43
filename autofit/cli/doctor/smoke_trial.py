"""A real trial of a tiny model: the fork server, the fork, the device and the measuring, as a tune uses them."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Protocol

import numpy as np

from autofit.cli.doctor.findings import Finding, ok, problem
from autofit.errors import AutofitError
from autofit.records.machine import Device, Machine
from autofit.records.trial import Description, FitConfig, Limits, Measurement, Outcome, Role, TrialSpec
from autofit.records.units import format_seconds
from autofit.workload.workload import Workload

_DEADLINE_SECONDS = 60.0  # GPU kernels may have to be compiled first
_MEASURE_SECONDS = 0.3
_DEVICE_BYTES = 2**30
_SAMPLES, _BATCH = 64, 8
_PLAIN = "Give --launch plain (launch='plain' in Python): each trial then is an interpreter of its own."


class Warmed(Protocol):
    """What is needed of a launcher."""

    def warm(self) -> None:
        """Start the server."""

    def run(self, spec: TrialSpec) -> Generator[str, None, Measurement | Description]:
        """Run one trial."""


def workload() -> Workload:
    """A model of one layer and a few samples; pickled whole, since it is defined in a function."""

    def build_model() -> Any:
        import keras  # heavy: in a trial's process

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        return model

    return Workload(build_model, (np.ones((_SAMPLES, 4), "float32"), np.ones((_SAMPLES, 1), "float32")))


def attempt(launcher: Warmed, machine: Machine, device: Device | None, *, forks: bool) -> Finding:
    """Start the trial server, run a trial in it, and say whether it came to its end, and how fast.

    Args:
        launcher: of `workload()`.
        machine: what there is.
        device: the accelerator, or None for the CPU.
        forks: whether trials are forks here.
    """
    device_bytes = None if device is None else min(_DEVICE_BYTES, device.free_bytes // 2)
    limits = Limits(device_bytes, machine.available_bytes)
    spec = TrialSpec(Role.MEASURE, FitConfig(_BATCH), limits, _DEADLINE_SECONDS, measure_seconds=_MEASURE_SECONDS)
    started = time.monotonic()
    try:
        launcher.warm()
        ready = time.monotonic()
        ended = _run_to_end(launcher.run(spec))
    except AutofitError as error:
        told = [line for line in str(error).splitlines() if line.strip()]
        return problem("trial", f"could not be started: {told[0]} {told[-1] if len(told) > 1 else ''}".rstrip(), _PLAIN)
    if isinstance(ended, Measurement) and ended.outcome is not Outcome.OK:
        return _failed(ended, device, forks=forks)
    where = device.name if device else "the CPU"
    took = format_seconds(time.monotonic() - ready)
    if not forks:
        return ok("trial", f"an interpreter of its own ran a tiny model on {where} in {took}")
    return ok(
        "trial", f"fork server ready in {format_seconds(ready - started)}; a fork ran a tiny model on {where} in {took}"
    )


def _failed(ended: Measurement, device: Device | None, *, forks: bool) -> Finding:
    outcome, reason = ended.outcome, ended.evidence.reason
    if outcome.is_oom:
        return problem("trial", f"a tiny model ran out of memory: {reason}", "Make room first: end what holds the memory.")
    if outcome is Outcome.ERROR or not forks:
        return problem("trial", f"a tiny model failed: {reason}", "Run pip install --force-reinstall keras tensorflow.")
    if outcome is Outcome.TIMEOUT and device is not None:
        return problem(
            "trial",
            f"a tiny model did not come to its end on {device.name}: {reason}",
            f"Run this again, since CUDA compiles kernels once and keeps them; if it still hangs: {_PLAIN}",
        )
    how = "hung" if outcome is Outcome.TIMEOUT else "died"
    return problem("trial", f"forking is not safe here: a forked trial of a tiny model {how} ({reason})", _PLAIN)


def _run_to_end(running: Generator[str, None, Measurement | Description]) -> Measurement | Description:
    ended: list[Measurement | Description] = []

    def driven() -> Generator[str, None, None]:
        ended.append((yield from running))

    for _ in driven():
        pass
    return ended[0]
