"""Train confirmed answers for long, under the limits that they were found under, and watch the memory.

    python tests/faults/soak.py [--jobs arrays,lengths,processes] [--steps 20000] [--out FOLDER]

Each job is measured once as its user would run it, with the smallest knobs; the tune gets 15 % more host memory than that
took, so that the limit decides. A plain `fit` with the answer then trains so many steps, in a program of its own, and its
processes are read twice a second. FOLDER gets the answer and a JSON file of readings for each job, and the picture of all;
what exceeds its limit fails. Answers that FOLDER has are trained again.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MIB = 2**20
ROOM_RATIO = 1.15
SPACES = {
    "arrays": {"batch_size": {"min": 32, "max": 4096}},
    "lengths": {
        "batch_size": {"min": 32, "max": 2048},
        "workers": {"min": 1, "max": 2},
        "max_queue_size": {"min": 2, "max": 16},
        "use_multiprocessing": [False],
    },
    "processes": {
        "batch_size": {"min": 32, "max": 2048},
        "workers": {"min": 1, "max": 2},
        "max_queue_size": {"min": 2, "max": 16},
        "use_multiprocessing": [True],
    },
}


def build(job):
    """A light network: data that comes fast shows what a process does not give back."""
    import keras

    layers = keras.layers
    if job == "lengths":
        inside = [layers.Input((None, 32)), layers.Conv1D(16, 5, activation="relu"), layers.GlobalAveragePooling1D()]
    else:
        inside = [layers.Input((64, 64, 3)), layers.MaxPooling2D(8), layers.Flatten(), layers.Dense(32, activation="relu")]
    model = keras.Sequential([*inside, layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    return model


def arrays():
    """192 MiB of pictures."""
    import numpy as np

    return np.ones((4096, 64, 64, 3), "float32"), np.ones((4096, 1), "float32")


def dataset(job):
    """The class of the data of a job that makes batches."""
    import keras
    import numpy as np

    class Batches(keras.utils.PyDataset):
        """Texts of 32 to 512 words, the same within a batch, or pictures of noise."""

        def __init__(self, batch_size, **kwargs):
            super().__init__(**kwargs)
            self.batch_size = batch_size

        def __len__(self):
            return max(16, 16_384 // self.batch_size)

        def __getitem__(self, index):
            drawn = np.random.default_rng(index)
            shape = (int(drawn.integers(1, 17)) * 32, 32) if job == "lengths" else (64, 64, 3)
            return drawn.random((self.batch_size, *shape), "float32"), np.ones((self.batch_size, 1), "float32")

    return Batches


def train(job, answer, steps):
    """The user's program: a plain fit with the answer, over as many epochs as make up the steps."""
    data = arrays if job == "arrays" else dataset(job)
    model, made = build(job), data(**answer["data_kwargs"])
    fit_kwargs = answer["fit_kwargs"]
    per_epoch = -(-4096 // fit_kwargs["batch_size"]) if job == "arrays" else len(made)
    parts = made if job == "arrays" else (made,)
    print("training", flush=True)
    model.fit(*parts, epochs=-(-steps // per_epoch), verbose=0, **fit_kwargs)


def tree_bytes(pid):
    """Resident set of a process, and what each process below it holds beside it: whatever others map counts in full."""
    sizes = []
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(pid)
        sizes.append(main.memory_info().rss)
        for process in main.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_full_info().uss)
    return sum(sizes)


def watched(job, answer, steps):
    """Train in a program of its own; returns (seconds since the start, bytes), and what it wrote if it failed."""
    command = [sys.executable, __file__, "--train", job, "--answer", json.dumps(answer), "--steps", str(steps)]
    readings, started = [], time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            readings.append((time.monotonic() - started, tree_bytes(process.pid)))
            time.sleep(0.5)
        problem = process.stderr.read().decode()[-2000:] if process.returncode else ""
    return readings, problem


def answer_of(job, out):
    """Measure the job as its user runs it, and tune it under little more memory; returns the answer and its figures."""
    import functools

    import autofit

    data = arrays if job == "arrays" else dataset(job)
    model = functools.partial(build, job)
    usual = autofit.FitConfig(**{name: values[0] for name, values in SPACES[job].items()})
    (trial,) = autofit.measure(model, data, [usual], progress=False)
    limit = round(ROOM_RATIO * trial.measurement.host_peak_bytes) // MIB
    storage = str(out / "soak.db")
    result = autofit.tune(
        model, data, space=SPACES[job], host_memory=f"{limit}MiB", storage=storage, max_seconds=150, options={"fresh": True}
    )
    return {
        "data_kwargs": dict(result.data_kwargs),
        "fit_kwargs": dict(result.fit_kwargs),
        "config": str(result.config),
        "confirmed": result.fastest.confirmed,
        "limit, MiB": limit,
        "stated peak, MiB": result.host_peak_bytes // MIB,
    }


def soak(job, steps, out):
    """Tune, unless the folder has the answer, train, and write what was read."""
    file = out / f"{job}.answer"
    if not file.exists():
        subprocess.run([sys.executable, __file__, "--tune", job, "--out", str(out)], check=True)
    answer = json.loads(file.read_text())
    readings, problem = watched(job, answer, steps)
    peak = max(size for _, size in readings) // MIB
    steady = [size // MIB for at, size in readings[:-2] if at > readings[-1][0] / 2]
    line = {
        "job": job,
        **{name: answer[name] for name in ("config", "confirmed", "limit, MiB", "stated peak, MiB")},
        "peak, MiB": peak,
        "second half, MiB": [min(steady), max(steady)],
        "seconds": round(readings[-1][0]),
        "problem": problem,
        "ok": not problem and peak <= answer["limit, MiB"],
    }
    (out / f"{job}.json").write_text(json.dumps({**line, "readings": readings}))
    print(json.dumps(line), flush=True)
    return line


def draw(out):
    """The picture of all jobs in a folder: memory over time, against the limit and the stated peak."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    files = sorted(out.glob("*.json"))
    figure, axes = plt.subplots(len(files), 1, figsize=(8, 2.6 * len(files)), squeeze=False)
    for axis, file in zip(axes[:, 0], files, strict=True):
        job = json.loads(file.read_text())
        axis.plot([at / 60 for at, _ in job["readings"]], [size / MIB for _, size in job["readings"]], lw=0.8)
        axis.axhline(job["limit, MiB"], color="tab:red", label="limit")
        axis.axhline(job["stated peak, MiB"], color="tab:gray", ls="--", label="stated peak")
        axis.set(title=f"{job['job']}: {job['config']}", xlabel="minutes", ylabel="MiB", ylim=(0, 1.25 * job["limit, MiB"]))
        axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(out / "soak.png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="arrays,lengths,processes")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("soak"))
    parser.add_argument("--tune", help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tune:
        (arguments.out / f"{arguments.tune}.answer").write_text(json.dumps(answer_of(arguments.tune, arguments.out)))
        return 0
    if arguments.train:
        train(arguments.train, arguments.answer, arguments.steps)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = [soak(job, arguments.steps, arguments.out) for job in arguments.jobs.split(",")]
    draw(arguments.out)
    return 0 if all(line["ok"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
