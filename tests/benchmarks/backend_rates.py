"""The rate that a trial states, against the user's own `fit(verbose=1)`, on each backend of Keras.

    python tests/benchmarks/backend_rates.py    print the frozen figures
    python tests/benchmarks/backend_rates.py --run [--rounds 5] [--jobs CNN …] [--backends jax …]
                                                measure, and freeze the figures of these jobs

Method. For each job and backend, a trial of autofit and a plain `fit` run in turn, so many rounds,
on this machine without other work (five rounds of all: 20 minutes on two cores). Both run in a fork
of a process that has imported Keras and run nothing; that of plain `fit` has not imported autofit.
Plain `fit` traces its step in an epoch of twenty steps, then trains a short epoch and one of four
times as many steps. The rate is that of the steps by which the second is longer: it is timed from
outside, so that nothing looks at a batch, and start and end do not count, as they do not in a
trial. The ratio is the geometric mean of the pairs' with its 95 % interval (t).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "backend_rates.json"
BACKENDS = ("tensorflow", "jax", "torch")
JOBS = {
    "MLP, small steps": ("mlp", {"workers": 1}),
    "CNN": ("cnn", {"workers": 0}),
    "CNN, 2 threads": ("cnn", {"workers": 2}),
    "CNN, 2 processes": ("cnn", {"workers": 2, "use_multiprocessing": True}),
    "slow input": ("slow", {"workers": 1}),
    "slow input, 2 threads": ("slow", {"workers": 2}),
}
BATCH = 64
QUEUE = 10
TRACING_STEPS = 20
SHORT_SECONDS = 1.0
TIMES_LONGER = 4
ROUNDS = 5
MEASURE_SECONDS = 2.5  # of a trial: as long as a confirming run


def build_model(job):
    """The model of a job: an MLP whose step takes less than a millisecond, or a CNN."""
    import keras  # with the backend of this process

    layers = keras.layers
    if job == "mlp":
        hidden = [layers.Dense(64, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(1)])
    else:
        maps = [
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
        ]
        model = keras.Sequential(
            [keras.Input((32, 32, 3)), *maps, layers.Flatten(), layers.Dense(1)]
        )
    model.compile("sgd", "mse")
    return model


def make_data(job, batch_size, batches=100_000, **knobs):
    """Random batches; those of "slow" take as long as a step of a few hundredths of a second."""
    import keras  # with the backend of this process
    import numpy as np

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return batches

        def __getitem__(self, index):
            draw = np.random.default_rng(index)
            if job == "slow":
                time.sleep(0.03)
            shape = (64,) if job == "mlp" else (32, 32, 3)
            return draw.random((batch_size, *shape), "float32"), draw.random(
                (batch_size, 1), "float32"
            )

    return Data(**knobs)


def plain_rate(job, knobs, steps):
    """Samples per second of plain `fit`: of the steps by which an epoch is longer than one of
    `steps`.
    """
    model = build_model(job)
    seconds = []
    for count in (TRACING_STEPS, steps, TIMES_LONGER * steps):
        data = make_data(job, BATCH, count, max_queue_size=QUEUE, **knobs)
        started = time.perf_counter()
        model.fit(data, verbose=1)
        seconds.append(time.perf_counter() - started)
    return (TIMES_LONGER - 1) * steps * BATCH / (seconds[2] - seconds[1])


def serve_plain(job, knobs):
    """Fork a process for each number of steps that is read, and print the rate of plain `fit` in
    it.
    """
    import keras  # noqa: F401  # what each fork needs

    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            answer = os.dup(1)
            os.dup2(2, 1)  # of Keras's progress bar
            os.write(answer, f"{plain_rate(job, knobs, int(line))}\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)


def measure(backend, name, rounds):
    """The pairs of a job on a backend: samples per second by a trial, and by plain `fit`."""
    from autofit.records.knobs import FitConfig
    from autofit.records.states import Outcome, Role
    from autofit.records.trial import Limits, TrialSpec
    from autofit.trial.launcher import ProcessLauncher
    from autofit.workload.reference import Reference
    from autofit.workload.workload import Workload

    job, knobs = JOBS[name]
    functions = (
        Reference(f"backend_rates.py:{function}", str(HERE))
        for function in ("build_model", "make_data")
    )
    workload = Workload(
        *functions, model_kwargs={"job": job}, data_kwargs={"job": job}, backend=backend
    )
    config = FitConfig(
        BATCH, knobs["workers"], QUEUE, knobs.get("use_multiprocessing", False)
    )
    spec = TrialSpec(Role.MEASURE, config, Limits(None, 2**34), 300.0, MEASURE_SECONDS)
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, __file__, "--plain", json.dumps([job, knobs])]
    pipe = subprocess.PIPE
    pairs = []
    with (
        ProcessLauncher(workload) as launcher,
        subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        ) as plain,
    ):
        plain.stdout.readline()
        for _ in range(rounds):
            measured = launcher.run(spec)
            if measured.outcome is not Outcome.OK:
                raise SystemExit(f"{name} on {backend}: {measured.evidence}")
            rate = measured.samples_per_second
            print(
                max(TRACING_STEPS, round(SHORT_SECONDS * rate / BATCH)),
                file=plain.stdin,
                flush=True,
            )
            pairs.append([round(rate, 2), round(float(plain.stdout.readline()), 2)])
        plain.stdin.close()
    return pairs


def show(row):
    """Print the line of a job; returns its interval."""
    from public_tunes import (
        ratio_of,
    )  # not in the processes of plain `fit`, because it imports autofit

    rate = statistics.median(plain for _, plain in row["pairs"])
    ratio, low, high = ratio_of(*zip(*row["pairs"], strict=True))
    step = 1000 * BATCH / rate
    print(
        f"{row['job']:24}{row['backend']:12}{step:6.1f} ms{rate:12,.0f}   {ratio:.3f} "
        f"({low:.3f} to {high:.3f})",
        flush=True,
    )
    return ratio, low, high


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="store_true", help="measure, and freeze the figures"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="pairs of each job (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        nargs="+",
        default=JOBS,
        choices=JOBS,
        metavar="JOB",
        help="only these jobs",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        default=BACKENDS,
        choices=BACKENDS,
        help="only these backends",
    )
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        serve_plain(*json.loads(given.plain))
        return
    rows = {(row["job"], row["backend"]): row for row in json.loads(FROZEN.read_text())}
    for job in given.jobs if given.run else ():
        for backend in given.backends:
            row = {
                "job": job,
                "backend": backend,
                "pairs": measure(backend, job, given.rounds),
            }
            rows[job, backend] = row
            show(row)
            ordered = [
                rows[key]
                for key in ((job, backend) for job in JOBS for backend in BACKENDS)
                if key in rows
            ]
            FROZEN.write_text(json.dumps(ordered).replace("}, {", "},\n{") + "\n")
    print(f"{'':24}{'':12}{'step':>9}{'plain fit':>12}   autofit / plain fit")
    intervals = [show(row) for row in rows.values()]
    contain = sum(low <= 1 <= high for _, low, high in intervals)
    middle = statistics.median(ratio for ratio, *_ in intervals)
    print(
        f"median {middle:.3f}; intervals that contain 1: {contain} of {len(intervals)}"
    )


if __name__ == "__main__":
    main()
