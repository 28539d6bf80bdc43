"""What steps in a call gain ten public programs: their own `compile` beside what a tune finds, at their batch size.

    python tests/benchmarks/step_knobs.py                     print the frozen figures
    python tests/benchmarks/step_knobs.py --run [PROGRAM ...] tune and time (two minutes each) and freeze step_knobs.json

Method. For each program of `public_programs.py` on TensorFlow and JAX, `autofit tune` searches the steps in a call at
the program's own batch size. Then plain `fit` without autofit (`plain_keras.py`) is timed with the program's own `compile`
and with what the tune found, in turn, four times each in processes of their own. The gain is the geometric mean of the
pairs, with its 95 % interval. Where the tune keeps the program's own, there is nothing to time and the gain is 1. "engines"
on JAX takes seconds a step and is not timed; the tunes of digits, fraud, movies and heart are of a search that tried three
configs in any case.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

from plain_keras import STEPS_KNOB, timed
from public_tunes import interval, ratio, tuned

from autofit.machine.host import detect

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "step_knobs.json"
PROGRAMS = HERE / "public_programs.py"
BACKENDS, RUNS = ("tensorflow", "jax"), 4
ONLY_ON_TENSORFLOW = ("gan",)
BATCH_SIZES = {
    "digits": 128,
    "fraud": 2048,
    "movies": 64,
    "heart": 32,
    "addition": 32,
    "anomaly": 128,
    "denoising": 128,
    "engines": 64,
    "reviews": 32,
    "gan": 64,
}


def run(program, batch_size, backend):
    """Tune a program and time what the tune finds; returns its figures."""
    document = {
        "build_model": f"{PROGRAMS}:{program}_model",
        "data": f"{PROGRAMS}:{program}",
        "space": {"batch_size": [batch_size]},
        "baseline": {"batch_size": batch_size},
        "backend": backend,
    }
    result, seconds = tuned(document)
    choice = result["choice"]
    steps, speedup = choice["config"][STEPS_KNOB], choice["speedup"]
    rates = {1: [], steps: []}
    for number in range(RUNS if steps > 1 else 0):
        for value in (1, steps) if number % 2 else (steps, 1):
            config = {"batch_size": batch_size, STEPS_KNOB: value}
            rates[value].append(timed(PROGRAMS.stem, program, config, backend=backend)[0])
    return {
        "steps": steps,
        "stated": [speedup[name] for name in ("ratio", "low", "high")],
        "trials": len(result["trials"]),
        "seconds": seconds,
        "own": rates[1],
        "found": rates[steps],
    }


def main():
    """Print the frozen figures, or tune, time and freeze."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", metavar="PROGRAM", help="tune and time these (default: all) and freeze them")
    arguments = parser.parse_args()
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {"programs": {}}
    wanted = [] if arguments.run is None else arguments.run or list(BATCH_SIZES)
    for program, batch_size in BATCH_SIZES.items():
        for backend in BACKENDS if program in wanted else ():
            if program in ONLY_ON_TENSORFLOW and backend != "tensorflow":
                continue
            host = detect()
            frozen["machine"] = f"{host.processor}, {host.cores} cores"
            frozen["programs"][f"{program}, {backend}"] = run(program, batch_size, backend)
            FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")
            print(program, backend, "is timed", file=sys.stderr)
    print(frozen["machine"])
    print("program, backend, steps in a call, gain stated, gain timed, trials and seconds of the tune")
    gains = {backend: [] for backend in BACKENDS}
    for name, row in frozen["programs"].items():
        timed_gain = ratio(row["found"], row["own"]) if row["steps"] > 1 else (1.0, 1.0, 1.0)
        gains[name.split(", ")[1]].append(timed_gain[0])
        stated = interval(row["stated"]) if row["steps"] > 1 else "none shown"
        shown = interval(timed_gain) if row["steps"] > 1 else "1"
        print(f"{name:22} {row['steps']:3}  {stated:22} {shown:22} {row['trials']:3} {row['seconds']:4.0f}")
    for backend, values in gains.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        print(f"{backend}: geometric mean {mean:.2f}, lowest {min(values):.2f}, highest {max(values):.2f}")


if __name__ == "__main__":
    main()
