"""Time from start to first step of a trial: a fork of the warm server against a plain subprocess.

    python tests/benchmarks/launch.py [--rounds 7]

Method: both servers are started first; the fork server imports the backend once, and the time of that is printed. Then
trials of a tiny model start in turn, fork and plain, and are stopped after their first training step. The ratio is that of
neighbouring runs; its median and range are printed.
"""

import argparse
import platform
import statistics
import time

import keras
import numpy as np

from autofit.machine.host import detect
from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.workload import Workload


def build_model():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def first_step_seconds(launcher):
    """Seconds from the request for a trial to the end of its first step."""
    started = time.perf_counter()
    running = launcher.run(TrialSpec(Role.MEASURE, FitConfig(8), Limits(None, 2**33), 120))
    for phase in running:
        if phase == "compute_alone":
            break
    seconds = time.perf_counter() - started
    running.close()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs (default: 7)")
    rounds = parser.parse_args().rounds
    workload = Workload(build_model, (np.ones((64, 8), "float32"), np.ones((64, 1), "float32")))
    with ProcessLauncher(workload, None, "fork") as fork, ProcessLauncher(workload, None, "plain") as plain:
        started = time.perf_counter()
        fork.warm()
        warm_seconds = time.perf_counter() - started
        plain.warm()
        first_step_seconds(fork)
        first_step_seconds(plain)
        pairs = [(first_step_seconds(fork), first_step_seconds(plain)) for _ in range(rounds)]
    ratios = [b / a for a, b in pairs]
    machine = detect()
    print(f"{machine.processor}, {machine.cores} cores, Python {platform.python_version()}, Keras {keras.__version__}")
    print(f"starting the warm server, once a tune: {warm_seconds:.2f} s")
    print("start to first step, median of", rounds)
    print(f"  warm fork         {statistics.median(a for a, _ in pairs):6.2f} s")
    print(f"  plain subprocess  {statistics.median(b for _, b in pairs):6.2f} s")
    print(f"  ratio             {statistics.median(ratios):6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
