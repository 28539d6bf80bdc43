"""Random but realistic machines and models: throughput and memory of any config, from formulas
unknown to the searches.

A surface has effects that autofit's models lack: tiles (a batch that is no multiple of 64, 32 or 16
is slower), a decline at large batches, jumps of a workspace's size, an allocator that rounds and
fragments, threads that slow the step down while they compete for the interpreter's lock, a sharper
join of input and compute with a longer queue. autofit's models share, to its advantage: an affine
step, workers that help up to a capacity, memory affine in the batch and in the queued batches.
"""

import math
import zlib
from dataclasses import replace

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.search.context import ConfigArrays
from autofit.search.space import SearchSpace, batch_grid

GIB = 2.0**30
SPACE = SearchSpace(
    batch_size=tuple(batch_grid(1, 4096)),
    workers=(1, 2, 3, 4, 6, 8, 12, 16),
    max_queue_size=(2, 4, 10, 20, 40),
    use_multiprocessing=(False, True),
)
OOM_SECONDS = 20.0  # a failing allocation is retried for 10 s; the rest is clean-up
NOISE = 0.03  # of a rate
# of a trial: process and first step; the three rates
START_SECONDS = 2.0
RATE_SECONDS = 4.0


class Surface:
    """One machine with one model, drawn from a seed."""

    on_cpu = False
    space = SPACE

    def __init__(self, seed):
        self.name = f"surface {seed}"
        self.seed = seed
        draw = np.random.default_rng([seed, 20_000])

        def between(low, high):
            return float(np.exp(draw.uniform(math.log(low), math.log(high))))

        self.cores = int(draw.choice([4, 8, 12, 16, 32]))
        self.sample_seconds = 1 / between(60, 20_000)
        self.step_seconds = self.sample_seconds * between(1, 256)
        self.tiles = draw.uniform(
            0, [0.02, 0.04, 0.08]
        )  # for batches that are no multiple of 64, of 32, of 16
        self.decline = draw.uniform(0, 0.03)
        self.decline_from = between(64, 2048)
        self.making_seconds = self.sample_seconds * between(0.05, 30)
        self.batch_seconds = between(1e-4, 2e-3)
        locked = draw.random() < 0.5
        self.thread_capacity = (
            draw.uniform(1, 2) if locked else draw.uniform(0.6, 0.95) * self.cores
        )
        self.lock_penalty = draw.uniform(0, 0.15 if locked else 0.03)
        self.sample_bytes = between(5e3, 4e6)
        self.pickle_rate = draw.uniform(0.8e9, 2e9)
        self.receive_rate = draw.uniform(0.8e9, 2.5e9)
        self.device = float(draw.choice([8, 16, 24, 40, 80, 141])) * GIB
        self.usable_device = self.device * draw.uniform(0.93, 0.99)
        self.held = self.device * draw.uniform(0.04, 0.35)
        self.held_per_sample = (self.device - self.held) / between(12, 5000)
        jumps = int(draw.integers(0, 4))
        self.jump_at = np.exp2(draw.uniform(2, 11, jumps))
        self.jump_by = self.device * draw.uniform(0, 0.05, jumps)
        self.host = float(draw.choice([8, 16, 32, 64, 128])) * GIB
        self.process = draw.uniform(1, 3) * GIB
        self.worker = draw.uniform(0.3, 0.9) * GIB
        # the limits that a user would set: all of the memory
        self.limits = Limits(int(self.device), int(self.host))

    def description(self):
        return described(self.name, SPACE.knobs(), self.sample_bytes, self.process)

    def step(self, at):
        """Seconds a step."""
        tile = np.select(
            [at.batch % 64 == 0, at.batch % 32 == 0, at.batch % 16 == 0],
            [0.0, *self.tiles[:2]],
            self.tiles[2],
        )
        declined = self.decline * np.maximum(0, np.log2(at.batch / self.decline_from))
        return self.step_seconds + self.sample_seconds * at.batch * (
            1 + tile + declined
        )

    def input_rate(self, at):
        """Samples per second of the pipeline alone."""
        one = self.batch_seconds + self.making_seconds * at.batch
        busy = np.minimum(
            np.minimum(at.workers, np.where(at.queued, at.queue + 1, 1)), self.cores
        )
        batch_bytes = at.batch * self.sample_bytes
        crowded = 1 - 0.01 * np.maximum(0, at.workers - self.cores)
        processes = at.batch * np.minimum(
            busy * crowded / (one + batch_bytes / self.pickle_rate),
            1 / (batch_bytes / self.receive_rate + 3e-4),
        )
        threads = (
            at.batch
            * np.where(at.queued, np.minimum(busy, self.thread_capacity), 1.0)
            / one
        )
        return np.where(at.processes, processes, threads)

    def rate(self, at):
        """Samples per second of `fit`."""
        step = at.batch / self.step(at)
        made = self.input_rate(at)
        fighting = at.queued & ~at.processes & (made < 2 * step)
        step = step / (
            1 + self.lock_penalty * np.minimum(1, (at.workers - 1) / 4) * fighting
        )
        k = np.where(at.queued, 3 + 1.5 * np.minimum(at.queue, 20), 8)
        return np.exp(-np.logaddexp(-k * np.log(step), -k * np.log(made)) / k)

    def device_bytes(self, at):
        rough = np.array(
            [zlib.crc32(f"{self.seed} {b:.0f}".encode()) / 2**32 for b in at.batch]
        )
        jumps = sum(
            (
                by * (at.batch >= b)
                for b, by in zip(self.jump_at, self.jump_by, strict=True)
            ),
            np.zeros(len(at)),
        )
        return (
            np.ceil(
                (
                    self.held
                    + self.held_per_sample * at.batch * (1 + 0.015 * rough)
                    + jumps
                )
                / 2**21
            )
            * 2**21
        )

    def host_bytes(self, at):
        held = np.where(at.queued, at.queue + 2 * at.workers, 1)
        return (
            self.process
            + held * at.batch * self.sample_bytes
            + at.workers * at.processes * self.worker
        )

    def fits(self, at):
        return (self.device_bytes(at) <= self.usable_device) & (
            self.host_bytes(at) <= 0.97 * self.host
        )

    def true_rate(self, config):
        """Samples per second, without noise; 0 where it does not run."""
        at = ConfigArrays([config], self.cores)
        return float(self.rate(at)[0]) if self.fits(at)[0] else 0.0

    def run(self, config, draw):
        at = ConfigArrays([config], self.cores)
        device = float(self.device_bytes(at)[0])
        host = float(self.host_bytes(at)[0])
        if device > self.usable_device:
            evidence = Evidence("device full")
            return Measurement(
                Outcome.DEVICE_OOM,
                evidence,
                START_SECONDS + OOM_SECONDS,
                host_peak_bytes=int(self.process),
            )
        if host > 0.97 * self.host:
            evidence = Evidence("host full", last_host_bytes=int(0.97 * self.host))
            return Measurement(
                Outcome.HOST_OOM,
                evidence,
                START_SECONDS + RATE_SECONDS,
                host_peak_bytes=int(self.host),
            )

        at_once = at.batch[0] / self.step(at)[0]
        made = self.input_rate(at)[0]
        measured = reading(config, float(self.rate(at)[0]), at_once, made, device, draw)
        return replace(
            measured, host_peak_bytes=int(host * (1 + 0.03 * draw.standard_normal()))
        )


def reading(config, rate, compute, made, device, draw):
    """The measurement of a trial that ran, from its true rates and its true peak.

    The host's is still to be read.
    """

    def noisy(value, deviation):
        return float(value) * math.exp(deviation * draw.standard_normal())

    return Measurement(
        Outcome.OK,
        Evidence("ran to its end"),
        START_SECONDS + RATE_SECONDS + 10 * config.batch_size / rate,
        samples_per_second=noisy(rate, NOISE),
        spread=2 * NOISE,
        compute_spread=0.04,
        input_spread=0.1,
        compute_samples_per_second=noisy(compute, 0.02),
        input_samples_per_second=noisy(made, 0.05),
        device_peak_bytes=int(device * (1 + 0.003 * abs(draw.standard_normal()))),
    )


def described(name, knobs, sample_bytes, process_bytes):
    """The description by a describing trial that knows no more, as on a backend without an
    estimate.
    """
    return Description(
        input_kind="PyDataset",
        knobs={knob: knob for knob in knobs},
        sample_count=None,
        sample_bytes=int(sample_bytes),
        parameter_count=0,
        parameter_bytes=0,
        optimizer_bytes=0,
        jit_compile=False,
        fingerprint=name,
        process_bytes=int(process_bytes),
    )
