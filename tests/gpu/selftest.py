"""What only the machine itself can tell: autofit's assumptions on its GPU, each checked in a process of its own.

    python tests/gpu/selftest.py [--checks fork,context] [--minutes 9] [--out FOLDER]

Each check ends in one line of JSON: name, expected, got, ok (null where it does not apply to this machine), seconds. The
checks come in the order of their value, and those for which no time is left say so. FOLDER gets the lines and the logs of
checks that failed. Without a GPU, what the CPU can tell is checked, with small models, and within wider bounds: on a shared
machine rates scatter by 20 %.

Trials and models are Keras's, of whatever backend autofit runs; what is TensorFlow's own is skipped on the others.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autofit import backends  # noqa: E402  # the repository is not installed everywhere
from autofit.errors import AutofitError, DeviceBusyError, TrialProcessError  # noqa: E402  # as above
from autofit.machine import gpus  # noqa: E402  # as above
from autofit.machine.host import detect  # noqa: E402  # as above
from autofit.records.description import Description  # noqa: E402  # as above
from autofit.records.machine import ON_CPU, Placement  # noqa: E402  # as above
from autofit.records.states import Outcome, Role  # noqa: E402  # as above
from autofit.records.trial import FitConfig, Limits, Trial, TrialSpec  # noqa: E402  # as above
from autofit.search.context import SearchContext  # noqa: E402  # as above
from autofit.search.surrogate.memory import MemorySurrogate  # noqa: E402  # as above
from autofit.trial.launcher import ProcessLauncher  # noqa: E402  # as above
from autofit.workload.reference import Reference  # noqa: E402  # as above
from autofit.workload.workload import Workload  # noqa: E402  # as above

GIB, MIB = 2**30, 2**20
JOBS = ROOT / "tests" / "gpu" / "jobs.py"


class NotApplicableError(Exception):
    """The check does not apply to this machine, for the reason given."""


@dataclass(frozen=True)
class Machine:
    """The device of the checks, None for the CPU, and a folder for what they write."""

    device: object
    out: Path

    @property
    def is_gpu(self):
        return self.device is not None

    @property
    def placement(self):
        return Placement.on(self.device) if self.is_gpu else ON_CPU

    def require_gpu(self):
        if not self.is_gpu:
            raise NotApplicableError("needs a GPU")

    def require_peaks(self):
        if not self.is_gpu and self.backend != "tensorflow":
            raise NotApplicableError(f"{self.backend} counts no memory of a CPU")

    def require_tensorflow(self):
        if self.backend != "tensorflow":
            raise NotApplicableError(f"is about TensorFlow; the backend is {self.backend}")

    @property
    def backend(self):
        return backends.current().name

    @contextlib.contextmanager
    def trials(self, build_model, data, placement=None, **kwargs):
        """A function that runs trials of a job: `run(batch, role="measure", **fields of TrialSpec)`."""
        job = Workload(job_of(build_model), job_of(data), **kwargs)
        with ProcessLauncher(job, placement or self.placement) as launcher:
            launcher.warm()

            def run(batch, role="measure", limit=None, seconds=120.0, **fields):
                host_bytes = detect().available_bytes
                config = FitConfig(batch)
                spec = TrialSpec(Role(role), config, Limits(limit, host_bytes), seconds, measure_seconds=1.0)
                return last_of(launcher.run(replace(spec, **fields)))

            run.launcher = launcher
            yield run


def job_of(name):
    return Reference(f"{JOBS}:{name}")


def last_of(running):
    """The value that a generator returns."""
    try:
        while True:
            next(running)
    except StopIteration as end:
        return end.value


def python(program, *arguments, seconds=120, **environment):
    """Run a program in a process of its own; returns what it printed, as JSON from its last line."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", **environment},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def summary(trial):
    """The outcome of a trial in a few fields."""
    return {"outcome": str(trial.outcome), "reason": trial.evidence.reason[:160], "phase": trial.evidence.phase}


# ── facts and outcomes ────────────────────────────────────────────────────────────────────────────────────────────────


def check_fork(machine):
    """the trial server never opens CUDA; three forks in turn train, each within 60 s"""
    with machine.trials("dense", "vectors") as run:
        server = psutil.Process(run.launcher.warm().pid)
        ended = [run(32) for _ in range(3)]
        links = [str(file.readlink()) for file in Path(f"/proc/{server.pid}/fd").iterdir() if file.is_symlink()]
        with gpus.opened():
            holds = machine.is_gpu and server.pid in gpus.bytes_by_pid(machine.device)
    opened = [link for link in links if "nvidia" in link]
    got = {"outcomes": [t.outcome for t in ended], "seconds": [round(t.seconds, 1) for t in ended], "opened": opened}
    return got, not opened and not holds and all(t.outcome is Outcome.OK and t.seconds < 60 for t in ended)


CONTEXT = """
import json, sys
sys.path.insert(0, "{root}")
import keras, numpy as np, tensorflow as tf
from autofit.machine import gpus
device = next(d for d in gpus.nvidia_devices() if d.uuid == sys.argv[1])
gpus.opened().__enter__()  # for the whole program
before = gpus.total_used(device)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("GPU")[0], [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])
beside = {{}}
def note(name):
    beside[name] = round((gpus.total_used(device) - before) / 2**20) - 1024
x = tf.ones((512, 512)); note("add")
x @ x; note("matmul")
with tf.GradientTape() as tape:
    image = tf.Variable(tf.ones((8, 64, 64, 8)))
    loss = tf.reduce_sum(tf.nn.conv2d(image, tf.ones((3, 3, 8, 8)), 1, "SAME"))
tape.gradient(loss, image); note("convolution")
tf.function(lambda a: tf.tanh(a @ a) + 1, jit_compile=True)(x); note("XLA")
keras.layers.LSTM(64)(tf.ones((8, 32, 16))); note("LSTM")
print(json.dumps(beside))
"""


def check_context(machine):
    """beside its pool TensorFlow takes 200 to 1,800 MiB: after an addition, a product, a convolution, XLA, an LSTM"""
    machine.require_gpu()
    machine.require_tensorflow()
    got = python(CONTEXT.format(root=ROOT), machine.device.uuid, CUDA_VISIBLE_DEVICES=machine.device.uuid)
    return got, all(200 <= size <= 1800 for size in got.values())


def check_oom(machine):
    """whatever runs out of device memory is a device_oom, with a reason that names it"""
    if not machine.is_gpu:
        machine.require_tensorflow()  # the others do not limit a CPU
    limit, times = (GIB, 8) if machine.is_gpu else (96 * MIB, 1)
    images, xla = {"pixels": 64}, {"jit_compile": True}
    jobs = {
        "dense": (32768 * times, "dense", "vectors", {}, {"count": 32768 * times}),
        "convolution": (256 * times, "convolutions", "Images", {**images, "jit_compile": False}, images),
        "convolution with XLA": (256 * times, "convolutions", "Images", {**images, **xla}, images),
        "LSTM": (512 * times, "recurrent", "sequences", {"units": 256}, {"count": 512 * times}),
        "array": (32, "dense", "vectors", {}, {"count": 2 * limit // 1024}),
        "weight": (32, "heavy", "vectors", {"gib": 2 * limit / GIB}, {}),
    }
    if machine.backend != "tensorflow":
        del jobs["array"]  # it stays on the host there
    if machine.backend == "torch":
        del jobs["convolution with XLA"]
    got = {}
    for name, (batch, model, data, model_kwargs, data_kwargs) in jobs.items():
        with machine.trials(model, data, model_kwargs=model_kwargs, data_kwargs=data_kwargs) as run:
            ended = run(batch, limit=limit)
        got[name] = summary(ended)
        (machine.out / f"oom-{name.replace(' ', '-')}.log").write_text("\n".join(ended.evidence.log_tail))
    return got, all(one["outcome"] == "device_oom" for one in got.values())


MODULE = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
{lines}
from tests.gpu.jobs import dense as build_model, vectors
"""
CONFIGURATIONS = {
    "growth": ("[tf.config.experimental.set_memory_growth(gpu, True) for gpu in gpus]", "ok"),
    "a larger limit": (
        "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=9999)])",
        "ok",
    ),
    "a smaller limit": (
        "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=300)])",
        "UsageError",
    ),
    "hidden": ("tf.config.set_visible_devices([], 'GPU')", "UsageError"),
}


def check_several(machine):
    """two devices share a batch: rates, peaks and the driver's count of both, the limit on each; one too large is an OOM"""
    both = Placement.on(*gpus.nvidia_devices()[:2]) if machine.is_gpu else Placement(count=2)
    if both.count < 2:
        raise NotApplicableError("needs two GPUs")
    if not backends.current().distribution:
        raise NotApplicableError(f"Keras on {machine.backend} trains on one device")
    is_limited = machine.is_gpu or backends.current().limits_cpu
    limit, large = (4 * GIB, 2**17) if machine.is_gpu else (96 * MIB, 2**14)
    got = {"devices": both.name}
    with machine.trials("dense", "vectors", data_kwargs={"count": large}) as run:
        got["one alone"] = run(256, limit=limit).samples_per_second
    with machine.trials("dense", "vectors", both, distribution="data_parallel", data_kwargs={"count": large}) as run:
        described = run(256, role="describe", limit=limit)
        small, again, oom = run(256, limit=limit), run(512, limit=limit), run(large, limit=limit)
    got["notices"] = described.notices if isinstance(described, Description) else summary(described)
    for name, ended in (("256", small), ("512", again)):
        got[name] = [ended.samples_per_second, ended.device_peak_bytes, ended.driver_peak_bytes, summary(ended)]
    got["too large"] = summary(oom)
    ran = all(ended.outcome is Outcome.OK for ended in (small, again))
    return got, ran and isinstance(described, Description) and (not is_limited or oom.outcome is Outcome.DEVICE_OOM)


def check_configured(machine):
    """user modules that configure the GPU keep autofit's limit, or are refused with a reason"""
    machine.require_gpu()
    machine.require_tensorflow()
    got, is_right = {}, True
    for name, (lines, expected) in CONFIGURATIONS.items():
        file = machine.out / f"configured_{name.replace(' ', '_')}.py"
        file.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + MODULE.format(lines=lines))
        job = Workload(Reference(f"{file}:build_model"), Reference(f"{file}:vectors"))
        with ProcessLauncher(job, machine.placement) as launcher:
            spec = TrialSpec(Role.MEASURE, FitConfig(32), Limits(GIB, detect().available_bytes), 90.0)
            try:
                got[name] = str(last_of(launcher.run(spec)).outcome)
            except AutofitError as error:
                got[name] = f"{type(error).__name__}: {error}"
        is_right &= got[name].startswith(expected)
    return got, is_right


def check_nvml(machine):
    """50 times init and shutdown take milliseconds each; a trial's process is named, with its bytes"""
    machine.require_gpu()
    started = time.perf_counter()
    for _ in range(50):
        with gpus.opened():
            pass
    milliseconds = (time.perf_counter() - started) / 50 * 1000
    with gpus.opened():
        started = time.perf_counter()
        for _ in range(50):
            gpus.total_used(machine.device)
        reading = (time.perf_counter() - started) / 50 * 1000
        with machine.trials("dense", "vectors") as run:
            ended = run(1024, limit=GIB)
        clock, why = gpus.clock_mhz(machine.device), sorted(gpus.throttles(machine.device))
    got = {
        "init and shutdown, ms": round(milliseconds, 2),
        "a reading, ms": round(reading, 2),
        "driver's peak, MiB": round((ended.driver_peak_bytes or 0) / MIB),
        "conditions": None if ended.conditions is None else str(ended.conditions),
        "clock now": clock,
        "throttled now": why,
        "compute capability": machine.device.compute_capability,
        "driver": machine.device.driver,
    }
    least = GIB // 4 if machine.backend == "torch" else GIB  # torch takes what it needs, the others all of the limit
    return got, milliseconds < 50 and least < (ended.driver_peak_bytes or 0) < 4 * GIB


BUSY = """
import json, sys
sys.path.insert(0, "{root}")
{lines}
from autofit.machine import gpus
try:
    gpus.require_free(gpus.nvidia_devices()[0])
    print(json.dumps("free"))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""
BUSY_LINES = {
    "nothing": ("", "free"),
    "counted its GPUs": ("import tensorflow as tf; tf.config.list_physical_devices('GPU')", "free"),
    "built a model": ("from tests.gpu.jobs import dense; dense()(__import__('numpy').zeros((1, 256)))", "busy"),
    "a tensor of torch": ("import torch; kept = torch.zeros(10, device='cuda')", "busy"),
    "torch that looked": ("import torch; torch.cuda.is_available()", "free"),
}


def check_busy(machine):
    """a process that holds the GPU is said to be busy, one that has only looked is not"""
    machine.require_gpu()
    got, is_right = {}, True
    for name, (lines, expected) in BUSY_LINES.items():
        if any(module in lines and not has(module) for module in ("torch", "tensorflow")):
            continue
        got[name] = python(BUSY.format(root=ROOT, lines=lines))
        is_right &= (got[name] == DeviceBusyError.__name__) is (expected == "busy") and got[name] in (
            "free",
            "DeviceBusyError",
        )
    return got, is_right


# ── rates, peaks, estimates ───────────────────────────────────────────────────────────────────────────────────────────

PLAIN = """
import json, sys, time
sys.path.insert(0, "{root}")
from tests.gpu import jobs
import keras
model, data, batch, seconds = (json.loads(argument) for argument in sys.argv[1:])
model = getattr(jobs, model[0])(**model[1])
x, y = getattr(jobs, data[0])(**data[1])
class Timer(keras.callbacks.Callback):  # the beginnings of steps wait for nothing that a GPU computes
    rate, steps, first = None, 0, 40  # over all epochs: one may be shorter than the seconds; JAX begins 32 steps ahead
    def on_train_batch_begin(self, number, logs=None):
        self.steps += 1
        if self.steps == self.first:
            self.began = time.perf_counter()
        elif self.steps > self.first and time.perf_counter() - self.began > seconds:
            self.rate = (self.steps - self.first) * batch / (time.perf_counter() - self.began)
            self.model.stop_training = True
timer = Timer()
model.fit(x, y, batch_size=batch, epochs=100_000, verbose=0, callbacks=[timer])
print(json.dumps(timer.rate))
"""


def check_rate(machine):
    """autofit's rate is that of a plain fit, both at their best of two: within 3 % on a GPU, 25 % on a shared CPU"""
    seconds, within = (8.0, 0.03) if machine.is_gpu else (2.0, 0.25)
    visible = {"CUDA_VISIBLE_DEVICES": machine.device.uuid if machine.is_gpu else "-1"}
    images = ("images_in_memory", {"count": 32_768})
    jobs = [("dense", 32, {}), ("dense", 1024, {}), ("convolutions", 64, {"jit_compile": False})]
    got, ratios = {}, []
    for model, batch, kwargs in jobs:
        data = images if model == "convolutions" else ("vectors", {"count": 262_144})
        arguments = [json.dumps(each) for each in ((model, kwargs), data, batch, seconds)]
        plain, rates = [], []
        with machine.trials(model, data[0], model_kwargs=kwargs, data_kwargs=data[1]) as run:
            for _ in range(2):
                plain.append(python(PLAIN.format(root=ROOT), *arguments, seconds=200, **visible))
                rates.append(run(batch, measure_seconds=2.0).samples_per_second or 0.0)
        ratios.append(max(rates) / max(plain))
        got[f"{model} {batch}"] = {"plain": [round(rate) for rate in plain], "autofit": [round(rate) for rate in rates]}
    return got, all(abs(ratio - 1) <= within for ratio in ratios)


def check_repeated(machine):
    """peaks of one config, five times: within 0.5 % with XLA, 6 % without; a first step may take more than training"""
    machine.require_peaks()
    got, is_right = {}, True
    for jit_compile, within in ((False, 0.06), (True, 0.005 if machine.is_gpu else 0.02)):
        limit, batch = (4 * GIB, 256) if machine.is_gpu else (GIB, 64)
        with machine.trials("convolutions", "Images", model_kwargs={"jit_compile": jit_compile}) as run:
            peaks = [run(batch, limit=limit) for _ in range(5 if machine.is_gpu else 3)]
        steady = [peak.device_peak_bytes or 0 for peak in peaks]
        first = [peak.device_peak_bytes_by_phase.get("first_step", 0) for peak in peaks]
        spread = (max(steady) - min(steady)) / max(1, min(steady))
        got["XLA" if jit_compile else "executor"] = {
            "steady, MiB": [round(s / MIB, 1) for s in steady],
            "first step, MiB": [round(s / MIB, 1) for s in first],
        }
        is_right &= all(steady) and spread <= within
    return got, is_right


def check_affine(machine):
    """peaks are affine in the batch to 2 % (XLA) or 6 %; of the true largest batch 90 % (XLA) or 80 % are allowed"""
    machine.require_peaks()
    limit, sizes = (4 * GIB, (32, 64, 128, 256, 512)) if machine.is_gpu else (256 * MIB, (32, 64, 128, 256))
    got, is_right = {}, True
    for jit_compile, within in ((True, 0.02), (False, 0.06)):
        with machine.trials("convolutions", "Images", model_kwargs={"jit_compile": jit_compile}) as run:
            described = run(32, role="describe", limit=limit, batch_sizes=(32, 128))
            trials = [Trial(FitConfig(batch), run(batch, limit=limit)) for batch in sizes]
        ran = [trial for trial in trials if trial.measurement.outcome is Outcome.OK]
        peaks = {trial.config.batch_size: trial.measurement.device_peak_bytes or 0 for trial in ran}
        (b0, p0), *_, (b1, p1) = peaks.items()
        slope = (p1 - p0) / (b1 - b0)
        off = [abs(p0 + slope * (batch - b0) - peak) / max(1, peak) for batch, peak in peaks.items()]
        true = b0 + (limit - p0) / slope
        surrogate = MemorySurrogate(SearchContext(described, Limits(limit, 2**50), 1, not machine.is_gpu), trials)
        allowed = max(batch for batch in range(32, 200_000, 8) if batch == 32 or surrogate.fits(FitConfig(batch)))
        got["XLA" if jit_compile else "executor"] = {
            "peaks, MiB": {batch: round(peak / MIB, 1) for batch, peak in peaks.items()},
            "off the line": [round(o, 3) for o in off],
            "allowed over true": round(allowed / true, 3),
        }
        is_right &= max(off) <= within and (0.9 if jit_compile else 0.8) <= allowed / true <= 1.02
    return got, is_right


def check_estimate(machine):
    """the estimate is within its stated error of the measured peak; describing takes under 60 s"""
    machine.require_peaks()
    jobs = [
        ("dense", "vectors", {}),
        ("convolutions", "Images", {}),
        ("recurrent", "sequences", {}),
        ("attention", "sequences", {}),
    ]
    if machine.is_gpu:
        jobs += [("residual", "Images", {"pixels": 224}), ("efficient", "Images", {"pixels": 224})]
    jobs = [(model, data, kwargs, None) for model, data, kwargs in jobs]
    jobs.append(("convolutions", "Images", {}, "mixed_float16"))
    got, is_right = {}, True
    for model, data, kwargs, policy in jobs:
        limit = 20 * GIB if machine.is_gpu else 2 * GIB
        with machine.trials(model, data, model_kwargs=kwargs, data_kwargs=kwargs, dtype_policy=policy) as run:
            started = time.monotonic()
            described = run(32, role="describe", limit=limit, batch_sizes=(32, 64))
            seconds = time.monotonic() - started
            measured = run(32, limit=limit)
        if not isinstance(described, Description) or measured.outcome is not Outcome.OK:
            got[f"{model} {policy or ''}".strip()], is_right = str(described)[:200], False
            continue
        footprint = described.footprints[0] if described.footprints else None
        peak = measured.device_peak_bytes or 0
        got[f"{model} {policy or ''}".strip()] = {
            "estimated, MiB": footprint and round(footprint.device_bytes / MIB, 1),
            "measured, MiB": round(peak / MIB, 1),
            "method": footprint and footprint.method,
            "seconds": round(seconds, 1),
            "problem": described.estimate_problem,
        }
        is_right &= seconds < 60 and footprint is not None
        is_right &= footprint is not None and abs(footprint.device_bytes - peak) <= footprint.error_bytes(peak) + 4 * MIB
    return got, is_right


def check_compiling(machine):
    """a second process compiles at least three times as fast, with the caches that a tune shares; its peak is the same"""
    machine.require_gpu()
    with machine.trials("residual", "Images", model_kwargs={"jit_compile": True}, data_kwargs={"pixels": 224}) as run:
        first, second = (run(16, limit=16 * GIB, seconds=300.0) for _ in range(2))
    seconds = [round(trial.phase_seconds.get("first_step", 0.0), 1) for trial in (first, second)]
    peaks = [trial.device_peak_bytes for trial in (first, second)]
    rates = [round(trial.samples_per_second or 0) for trial in (first, second)]
    got = {"first step, s": seconds, "peaks": peaks, "rates": rates, "outcomes": [first.outcome, second.outcome]}
    return got, seconds[1] * 3 <= seconds[0] and None not in peaks and abs(peaks[0] - peaks[1]) < 0.02 * peaks[0]


# ── other users, data, warm-up, the end ───────────────────────────────────────────────────────────────────────────────

HOLDS = """
import sys, torch
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def check_shared(machine):
    """a trial whose memory another process has taken waits for it, then names who keeps it: no batch is condemned"""
    machine.require_gpu()
    if not has("torch"):
        raise NotApplicableError("needs torch, to hold memory")
    free = machine.device.free_bytes
    with machine.trials("dense", "vectors") as run:
        command = [sys.executable, "-c", HOLDS, str(int(free * 0.8))]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            other.stdout.readline()
            ended = run(1024, limit=int(free * 0.6))
        except TrialProcessError as error:
            return str(error), f"(pid {other.pid})" in str(error) or "does not name them" in str(error)
        finally:
            other.kill()
            other.communicate()
    return summary(ended), False


def check_forked_data(machine):
    """TensorFlow's operations in __getitem__ keep processes from being tried; equal random numbers are said"""
    machine.require_tensorflow()
    got = {}
    for name, kwargs in {"operations": {"in_tensorflow": True}, "random": {"draws": True}, "plain": {}}.items():
        with machine.trials("convolutions", "Images", data_kwargs=kwargs) as run:
            described = run(8, role="describe", limit=GIB)
        got[name] = [described.processes_hang, [notice[:90] for notice in described.notices]]
    return got, got["operations"][0] and not got["plain"][0] and any("same random" in text for text in got["random"][1])


def check_arrays(machine):
    """arrays take their size of a GPU's memory, and the estimate says so"""
    machine.require_tensorflow()  # JAX and torch keep them on the host
    large, small = (4 * GIB, 40 * MIB) if machine.is_gpu else (80 * MIB, 8 * MIB)
    peaks, parts = [], []
    for size in (small, large):
        with machine.trials("dense", "vectors", data_kwargs={"count": size // 1024}) as run:
            described = run(32, role="describe", limit=16 * GIB, batch_sizes=(32, 64))
            parts.append(described.footprints[0].device_bytes_by_part.get("data", 0))
            peaks.append(run(32, limit=16 * GIB).device_peak_bytes or 0)
    more = (peaks[1] - peaks[0]) / (large - small)
    got = {"peaks, MiB": [round(p / MIB, 1) for p in peaks], "part data, MiB": [round(p / MIB, 1) for p in parts]}
    return {**got, "share of the array": round(more, 2)}, 0.9 <= more <= 2.2


def check_warm_up(machine):
    """from idle, the first half second that is timed has the rate of eight seconds, within 2 %"""
    machine.require_gpu()
    got = {}
    with machine.trials("convolutions", "Images", model_kwargs={"jit_compile": True}) as run:
        for seconds in (0.5, 8.0):
            time.sleep(20)  # the clock falls
            timed = run(512, role="confirm", limit=4 * GIB, measure_seconds=seconds)
            got[seconds] = [timed.samples_per_second or 0.0, timed.spread, str(timed.conditions)]
    return got, abs(got[0.5][0] / got[8.0][0] - 1) <= 0.02


KILLED = """
import sys
sys.path.insert(0, "{root}")
import autofit
from tests.gpu import jobs
print("begun", flush=True)
autofit.tune(jobs.dense, jobs.vectors, storage=sys.argv[1], device=sys.argv[2], progress=False)
"""


def check_killed(machine):
    """after SIGKILL of the driver in mid-trial no process is left, nor any memory of the GPU, 2 s later"""
    before = used_bytes(machine)
    storage, where = machine.out / "killed.db", "gpu" if machine.is_gpu else "cpu"
    command = [sys.executable, "-c", KILLED.format(root=ROOT), str(storage), where]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    driver.stdout.readline()
    time.sleep(25 if machine.is_gpu else 12)
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.communicate()
    time.sleep(2)
    left = [process.pid for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    more = used_bytes(machine) - before
    got = {"processes": len(below), "left": left, "GPU, MiB more": round(more / MIB)}
    return got, len(below) >= 2 and not left and more < 100 * MIB


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_tune(machine):
    """a whole tune chooses at least 97 % of the best batch of a plain sweep (75 % on a shared CPU), without an OOM"""
    import autofit

    build, data, sizes, limit = "convolutions", "Images", (16, 64, 256, 1024), "90%"
    if machine.is_gpu:
        sizes = (32, 128, 512, 2048, 8192)
    kwargs = {"device": "gpu" if machine.is_gpu else "cpu", "device_memory": limit, "progress": False}
    started = time.monotonic()
    result = autofit.tune(
        job_of(build),
        job_of(data),
        data_kwargs={"workers": 1, "max_queue_size": 10, "use_multiprocessing": False, "count": 65536},
        storage=str(machine.out / "tune.db"),
        max_seconds=300 if machine.is_gpu else 100,
        max_trials=10 if machine.is_gpu else 5,
        **kwargs,
    )
    seconds = time.monotonic() - started
    configs = [FitConfig(size) for size in (*sizes, result.config.batch_size)]
    swept = autofit.measure(job_of(build), job_of(data), configs, data_kwargs={"count": 65536}, **kwargs)
    rates = {trial.config.batch_size: round(trial.measurement.samples_per_second or 0) for trial in swept}
    share = rates[result.config.batch_size] / max(rates.values())
    result.save(machine.out / "result.json")
    got = {
        "chosen": str(result.config),
        "gain": str(result.speedup.ratio),
        "swept": rates,
        "share of the best": round(share, 3),
        "seconds": round(seconds),
        "OOMs": sum(trial.measurement.outcome.is_oom for trial in result.searched),
    }
    return got, share >= (0.97 if machine.is_gpu else 0.75) and got["OOMs"] == 0


def check_doctor(machine):
    """autofit doctor finds no problem; its second run is faster where CUDA compiled code in the first"""
    got = []
    for _ in range(2):
        started = time.monotonic()
        command = [sys.executable, "-m", "autofit", "doctor"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        (machine.out / "doctor.txt").write_text(done.stdout + done.stderr)
        got.append([done.returncode, round(time.monotonic() - started, 1)])
    return got, all(status == 0 for status, _ in got)


CHECKS = {  # in the order of their value, with the seconds that each may take
    "fork": (check_fork, 150),
    "context": (check_context, 120),
    "oom": (check_oom, 300),
    "several": (check_several, 300),
    "configured": (check_configured, 200),
    "nvml": (check_nvml, 90),
    "busy": (check_busy, 120),
    "rate": (check_rate, 300),
    "repeated": (check_repeated, 300),
    "estimate": (check_estimate, 300),
    "compiling": (check_compiling, 400),
    "affine": (check_affine, 300),
    "shared": (check_shared, 120),
    "forked data": (check_forked_data, 150),
    "arrays": (check_arrays, 120),
    "warm-up": (check_warm_up, 120),
    "killed": (check_killed, 60),
    "tune": (check_tune, 540),
    "doctor": (check_doctor, 300),
}


def used_bytes(machine):
    """Memory in use on the GPU, bytes; 0 without one."""
    used = gpus.used_bytes(machine.device, ())[0] if machine.is_gpu else 0
    assert used is not None, "the driver does not report the memory in use"
    return used


def has(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


def run_one(name, out):
    """Run one check in this process, and print its line."""
    function = CHECKS[name][0]
    devices = gpus.nvidia_devices()
    machine = Machine(devices[0] if devices else None, out)
    started = time.monotonic()
    try:
        got, is_right = function(machine)
    except NotApplicableError as reason:
        got, is_right = f"skipped: {reason}", None
    except Exception:
        got, is_right = traceback.format_exc(limit=-3), False
    report(name, got, is_right, time.monotonic() - started)


def report(name, got, is_right, seconds):
    fields = {"name": name, "expected": CHECKS[name][0].__doc__, "got": got, "ok": is_right, "seconds": round(seconds, 1)}
    print(json.dumps(fields, default=str), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checks", default=",".join(CHECKS), help="names, in the order to run them")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further check begins")
    parser.add_argument("--out", type=Path, default=None, help="folder for the lines and the logs of failures")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="autofit-selftest-"))
    out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        return run_one(arguments.one, out)
    names = [name.strip() for name in arguments.checks.split(",")]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"no such check: {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    devices = gpus.survey()
    print(json.dumps({"machine": detect().processor, "devices": [str(device) for device in devices]}), flush=True)
    ends, passed = time.monotonic() + 60 * arguments.minutes, True
    for name in names:
        left = ends - time.monotonic()
        if left <= 0:
            report(name, "not begun: the minutes are over", None, 0.0)
            continue
        line = in_process(name, out, min(CHECKS[name][1], max(30.0, left)))
        print(line, flush=True)
        with (out / "selftest.jsonl").open("a") as lines:
            lines.write(line + "\n")
        passed &= json.loads(line)["ok"] is not False
    return 0 if passed else 1


def in_process(name, out, seconds):
    """Run a check in a process group of its own, which is killed after so many seconds; returns its line."""
    log = out / f"{name.replace(' ', '-')}.log"
    command = [sys.executable, __file__, "--one", name, "--out", str(out)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, start_new_session=True
        )
        try:
            lines = process.communicate(timeout=seconds)[0].splitlines()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            lines = []
    if lines and lines[-1].startswith("{"):
        if json.loads(lines[-1])["ok"]:
            log.unlink()
        return lines[-1]
    why = f"ended after {seconds:.0f} s" if process.returncode == -signal.SIGKILL else f"status {process.returncode}"
    fields = {
        "name": name,
        "expected": CHECKS[name][0].__doc__,
        "got": f"{why}; see {log}",
        "ok": False,
        "seconds": seconds,
    }
    return json.dumps(fields)


if __name__ == "__main__":
    sys.exit(main())
