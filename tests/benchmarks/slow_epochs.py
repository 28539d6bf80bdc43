"""What `autofit why` says of ten scripts whose epochs are slow for a known cause.

    python tests/benchmarks/slow_epochs.py                  print the frozen table
    python tests/benchmarks/slow_epochs.py --run [NAME ..]  ask and time (half an hour for all)

Method. Each script of `slow_epochs/` has one cause, which its first line names; two run on JAX, two
on torch. `autofit why --json` runs with a fresh storage, alone on the machine; beside `other_work`,
two processes keep both cores busy. Then each change that a trial has tried is made in a copy, and
plain `python` runs the script and the copy in turn, `PAIRS` times each: the seconds of an epoch are
those from the beginning of the second one to the end of the last. "Within" says whether the median
of the copy lies in the interval that was told. The seconds allowed are 60, and three times the
script before `fit` and the first step. The last line is of a tune after a question: how many of its
trials it found in the storage.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__)
FOLDER = HERE.with_suffix("")
FROZEN = HERE.with_suffix(".json")
PAIRS = 5
CAUSES = {
    "slow_files": "data",
    "python_lock": "data",
    "augmentation": "data",
    "few_workers": "data",
    "tiny_batches": "keras",
    "long_validation": "validation",
    "short_epochs": "start",
    "retracing": "compiling",
    "slow_start": "first_step",
    "other_work": "other_work",
}
BACKENDS = {
    "few_workers": "torch",
    "short_epochs": "torch",
    "long_validation": "jax",
    "retracing": "jax",
}
TUNED_AFTERWARDS = "augmentation"
CONSTANTS = {
    "workers": ("WORKERS", "CALLS"),
    "use_multiprocessing": ("PROCESSES",),
    "max_queue_size": ("QUEUE", "PREFETCH"),
    "steps_per_execution": ("STEPS",),
}


def environment(name, **others):
    backend = BACKENDS.get(name, "tensorflow")
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **others,
    }


def arguments_of(name, work):
    """Arguments of a script: the folder with the files that it reads."""
    return [str(work / "files")] if name == "slow_files" else []


@contextlib.contextmanager
def busy(name):
    """Both cores busy, if the script is that of other work."""
    processes = []
    if name == "other_work":
        loop = [sys.executable, "-c", "while True: pass"]
        processes = [subprocess.Popen(loop) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def autofit(command, name, work, *options):
    """Run a command on a script; return what it printed and the seconds."""
    given = arguments_of(name, work)
    began = time.monotonic()
    done = subprocess.run(
        [
            *(f"{sys.prefix}/bin/autofit", command, str(FOLDER / f"{name}.py")),
            *("--json", "--storage", str(work / "trials.db"), *options),
            *(["--", *given] if given else []),
        ],
        cwd=work,
        env=environment(name, XDG_DATA_HOME=str(work)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return json.loads(done.stdout), done.stderr, time.monotonic() - began


def edited(name, remedy, work):
    """Make a change in a copy of a script; return the copy."""
    text = (FOLDER / f"{name}.py").read_text()
    if remedy["config"] is None:
        text = text.replace(
            "steps_per_execution=", "jit_compile=True, steps_per_execution="
        )
    for knob, value in (remedy["config"] or {}).items():
        for constant in CONSTANTS.get(knob, ()):
            line = re.compile(rf"^{constant} = .*$", re.M)
            if value is not None:
                text = line.sub(f"{constant} = {value}", text)
    copy = work / f"{name}_changed.py"
    copy.write_text(text)
    return copy


def epoch_seconds(script, name, work):
    """Seconds of an epoch of `fit` in plain python, without the first one."""
    timed = subprocess.run(
        [sys.executable, str(HERE), "--time", str(script), *arguments_of(name, work)],
        cwd=work,
        env=environment(name),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(timed.stdout.splitlines()[-1])


def time_script(script, arguments):
    """Run a script whose `fit` prints the seconds of an epoch."""
    import keras

    fit = keras.Model.fit
    begun = []

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(time.perf_counter())

    def timed_fit(model, *given, **options):
        fit(model, *given, callbacks=[Times()], **options)
        begun.append(time.perf_counter())

    keras.Model.fit = timed_fit
    sys.argv = [script, *arguments]
    sys.path[0] = str(pathlib.Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    print((begun[-1] - begun[1]) / (len(begun) - 2))


def ask(name):
    """Ask why, and time what was tried; a row of the table."""
    with tempfile.TemporaryDirectory() as folder, busy(name):
        work = pathlib.Path(folder)
        if name == "slow_files":
            make_files(work / "files")
        record, said, seconds = autofit("why", name, work)
        before_fit = re.search(r"calls fit at \S+ after ([\d.]+) s", said)
        before = float(before_fit[1]) + record["parts"]["first_step"]
        tried = []
        for remedy in record["remedies"]:
            if remedy["low"] is None:
                continue
            copy = edited(name, remedy, work)
            pairs = [
                [
                    epoch_seconds(FOLDER / f"{name}.py", name, work),
                    epoch_seconds(copy, name, work),
                ]
                for _ in range(PAIRS)
            ]
            tried.append({**remedy, "pairs": pairs})
        reused = None
        if name == TUNED_AFTERWARDS:
            tuned, _, _ = autofit("tune", name, work)
            told = [trial["number"] for trial in tuned["trials"]]
            reused = [record["trials"], len(told)]
        return {
            "name": name,
            "cause": record["cause"],
            "epoch": record["seconds"],
            "parts": record["parts"],
            "seconds": seconds,
            "allowed": 60 + 3 * before,
            "tried": tried,
            "told": [each for each in record["remedies"] if each["low"] is None],
            "reused": reused,
        }


def make_files(folder):
    folder.mkdir()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import slow_files; slow_files.make_files()"
    subprocess.run(
        [sys.executable, "-c", code, str(FOLDER), str(folder)],
        env=environment("slow_files"),
        stderr=subprocess.DEVNULL,
        check=True,
    )


def run(names):
    rows = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    for name in names or CAUSES:
        rows[name] = ask(name)
        print_row(rows[name])
        ordered = {each: rows[each] for each in CAUSES if each in rows}
        FROZEN.write_text(json.dumps(ordered, indent=1) + "\n")


def is_within(remedy):
    after = statistics.median(after for _, after in remedy["pairs"])
    return remedy["low"] <= after <= remedy["high"]


def print_row(row):
    right = "right" if row["cause"] == CAUSES[row["name"]] else "WRONG"
    print(
        f"{row['name']:16} {row['cause']:11} {right}  an epoch {row['epoch']:5.2f} s  "
        f"asked in {row['seconds']:3.0f} s of {row['allowed']:3.0f}"
    )
    for remedy in row["tried"]:
        before, after = (
            statistics.median(each) for each in zip(*remedy["pairs"], strict=True)
        )
        within = "within" if is_within(remedy) else "OUTSIDE"
        print(
            f"    {remedy['change']:34} told {remedy['seconds']:.2f} s ({remedy['low']:.2f} to "
            f"{remedy['high']:.2f}), plain {before:.2f} -> {after:.2f} s: {within}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", nargs="*", choices=CAUSES, metavar="NAME")
    parser.add_argument("--time", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.time:
        time_script(given.time[0], given.time[1:])
        return
    if given.run is not None:
        run(given.run)
        return
    rows = list(json.loads(FROZEN.read_text()).values())
    for row in rows:
        print_row(row)
    right = sum(row["cause"] == CAUSES[row["name"]] for row in rows)
    tried = [remedy for row in rows for remedy in row["tried"]]
    within = sum(map(is_within, tried))
    quick = sum(row["seconds"] <= row["allowed"] for row in rows)
    print(
        f"\nthe first cause is right in {right} of {len(rows)}; {within} of {len(tried)} changes "
        f"took the seconds that were told; {quick} of {len(rows)} were asked in the seconds allowed"
    )
    for row in rows:
        if row["reused"]:
            known, count = row["reused"]
            print(f"a tune after it has {count} trials, {known} of which it found")


if __name__ == "__main__":
    main()
