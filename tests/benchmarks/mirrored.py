"""Ratios of rates within one process, in mirrored order, against those between fresh processes.

    python tests/benchmarks/mirrored.py           print the frozen table
    python tests/benchmarks/mirrored.py --run     measure, and freeze mirrored.json; all jobs in
        [--limit SECONDS]                         turn, in a random order, until the limit

Method. Plain Keras, without autofit. Each job of `mirrored_jobs.py` on each backend has three
configs: the baseline A (batch 32, one thread), B at the same batch size with more workers or more
steps a call, and C at a larger batch size; on torch, jobs of arrays have batch 64 for B. A
repetition reads them in two ways, the first of which alternates:

fresh: a process for each config, in the order A B C, or C B A in every second repetition; 1 s of
warm-up, then 2.5 s and 8 steps at least.
mirrored: one process with one model that reads A B C C B A, or C B A A B C; each block has 0.5 s of
warm-up, then 1.25 s and 8 steps at least. The rate of a config is the geometric mean of its two.

In either way, each config first trains two calls (compiling), which are not timed; a warm-up begins
at the end of the first call of its `fit`. A train function is kept for each number of steps a call,
and a queue is stopped when its block ends. A callback notes the ends of sections of 0.25 s or one
call, as in `plain_keras.py`; the first call of an epoch is not counted. Threads of OpenMP sleep
while they wait (OMP_WAIT_POLICY): spinning ones made torch up to 50 times slower beside other work
on the same cores.

The table. B/A and C/A: the geometric mean over repetitions, and the deviation of the logarithm of
one such measurement. bias: mirrored / fresh - 1, with its standard error from the repetitions'
pairs. seconds: of whole processes, three and one. z: the deviation of the logarithm between
mirrored processes over the standard error that one of them states, from its two blocks of each
config, or from the sections within all blocks; 1 if that error were the whole one, more if it is
too small. Biases are pooled over jobs; B and C of a job share a baseline and are averaged first.

The frozen rows come from two virtual cores that other programs used as well.
"""

import argparse
import contextlib
import gc
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__)
FROZEN = HERE.with_suffix(".json")
BACKENDS = ("tensorflow", "jax", "torch")
# of `mirrored_jobs.py`, which loads Keras and is imported only where a job trains
NAMES = (
    "patches",
    "gil",
    "inflate",
    "reading",
    "decoding",
    "tabular",
    "digits",
    "reviews",
    "mlp",
    "tiny",
)
CONFIGS = "ABC"
# seconds of warm-up, and timed
FRESH = (1.0, 2.5)
MIRRORED = (0.5, 1.25)
SECTION_SECONDS = 0.25
STEPS = 8
COMPILING_CALLS = 2
PROCESS_SECONDS = 180.0
FAR = 0.03  # a bias beyond it counts


class Reader:
    """Reads the rates of a job's configs in this process, one after the other, on one model."""

    def __init__(self, job):
        self.job = job
        self.model = job.build_model()
        self.arrays = None if job.takes_knobs else job.make_data()
        self.train_functions = {}  # by steps a call

    def compile(self, config):
        """Trace and compile what a config trains."""
        steps = COMPILING_CALLS * config.steps_per_execution
        if self.arrays is None:
            arguments = {"x": self.job.make_data(config.batch_size)}
        else:
            x, y = (part[: steps * config.batch_size] for part in self.arrays)
            arguments = {"x": x, "y": y, "batch_size": config.batch_size}
        self._fit(config, **arguments, steps_per_epoch=steps)

    def read(self, config, warm_up, seconds):
        """Samples and seconds of each section of a block."""
        if self.arrays is None:
            arguments = {"x": self.job.make_data(**config.data_knobs())}
        else:
            x, y = self.arrays
            arguments = {"x": x, "y": y, "batch_size": config.batch_size}
        sections = []
        clock = clock_of(sections, config, warm_up, seconds)
        self._fit(config, **arguments, epochs=100_000, callbacks=[clock])
        stop_queues()
        return sections

    def _fit(self, config, **arguments):
        steps = config.steps_per_execution
        model = self.model
        model.steps_per_execution = steps
        model.train_function = self.train_functions.get(steps)
        model.fit(**arguments, verbose=0)
        self.train_functions[steps] = model.train_function


def clock_of(sections, config, warm_up, seconds):
    """A callback that appends sections, and ends training after enough of them."""
    import keras  # with the backend of this process

    first = last = None  # when the first call ended, and the last one of this epoch
    # of the present section
    steps = 0
    lasted = 0.0
    call = config.steps_per_execution

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            nonlocal last
            last = None

        def on_train_batch_end(self, batch, logs=None):
            nonlocal first, last, steps, lasted
            now = time.perf_counter()
            first = first or now
            if last is not None and last > first + warm_up:
                steps = steps + call
                lasted = lasted + now - last
            last = now
            if lasted >= SECTION_SECONDS:
                sections.append((steps * config.batch_size, lasted))
                steps = 0
                lasted = 0.0
                self.stop_after_enough()

        def stop_after_enough(self):
            samples, timed = map(sum, zip(*sections, strict=True))
            if timed >= seconds and samples >= STEPS * config.batch_size:
                self.model.stop_training = True

    return Clock()


def stop_queues():
    """End the workers that Keras leaves behind when training is stopped within an epoch."""
    from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer

    for each in gc.get_objects():
        if type(each) is OrderedEnqueuer:
            each.stop()


def read_blocks(job, order, warm_up, seconds):
    """Print the seconds until Keras is imported, and the blocks in their order."""
    started = time.perf_counter()
    from mirrored_jobs import JOBS  # imports the backend

    print(json.dumps(time.perf_counter() - started), flush=True)
    job = JOBS[job]
    configs = dict(zip(CONFIGS, job.configs(os.environ["KERAS_BACKEND"]), strict=True))
    reader = Reader(job)
    for name in dict.fromkeys(order):
        reader.compile(configs[name])
    for name in order:
        print(json.dumps(reader.read(configs[name], warm_up, seconds)), flush=True)
    os._exit(0)  # threads of a queue may still wait


def run_process(backend, job, order, warm_up, seconds):
    """The blocks of one process, its seconds, and those until Keras was imported."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_WAIT_POLICY": "passive",
    }
    command = [sys.executable, HERE, "--blocks", job, order, str(warm_up), str(seconds)]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PROCESS_SECONDS)
    except subprocess.TimeoutExpired:
        output = ""
        errors = f"no answer within {PROCESS_SECONDS:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the processes of a queue, too
    lasted = time.perf_counter() - started
    importing, *blocks = map(json.loads, output.splitlines() or ["null"])
    if len(blocks) < len(order):
        raise RuntimeError(
            (errors.splitlines() or [f"exit status {process.returncode}"])[-1]
        )
    return blocks, lasted, importing


def repetition(backend, job, number):
    """A row: what was read in both ways."""
    order = CONFIGS if number % 2 == 0 else CONFIGS[::-1]
    mirrored_first = number % 4 in (1, 2)
    row = {"job": job, "backend": backend, "repetition": number, "order": order}
    row["load"] = round(os.getloadavg()[0], 2)
    ways = {
        "fresh": [(each, FRESH) for each in order],
        "mirrored": [(order + order[::-1], MIRRORED)],
    }
    try:
        for way in sorted(ways, reverse=mirrored_first):
            ran = [
                run_process(backend, job, each, *seconds) for each, seconds in ways[way]
            ]
            row[way] = [rounded(block) for blocks, _, _ in ran for block in blocks]
            row[f"{way}_seconds"] = [round(lasted, 2) for _, lasted, _ in ran]
            row[f"{way}_importing"] = [round(importing, 2) for _, _, importing in ran]
    except RuntimeError as error:
        row["failed"] = str(error)
    return row


def rounded(block):
    return [[samples, round(seconds, 4)] for samples, seconds in block]


def measure(limit):
    """Read all jobs on all backends in turn until the limit, and freeze each row at once."""
    end = time.monotonic() + limit
    rows = []
    drawn = random.Random(1)
    number = 0
    while True:
        cells = [(backend, job) for backend in BACKENDS for job in NAMES]
        drawn.shuffle(cells)
        for backend, job in cells:
            if time.monotonic() >= end:
                return
            rows.append(repetition(backend, job, number))
            FROZEN.write_text(json.dumps(rows).replace("}, {", "},\n{") + "\n")
            print(backend, job, number, rows[-1].get("failed", ""), flush=True)
        number += 1


def rate_of(block):
    samples, seconds = map(sum, zip(*block, strict=True))
    return samples / seconds


def logs_of(row, way):
    """The logarithms of the rates of each config's blocks."""
    order = row["order"] + (row["order"][::-1] if way == "mirrored" else "")
    logs = {name: [] for name in CONFIGS}
    for name, block in zip(order, row[way], strict=True):
        logs[name].append(math.log(rate_of(block)))
    return logs


def ratio_of(row, way, config):
    """The logarithm of a config's rate over the baseline's."""
    logs = logs_of(row, way)
    return statistics.mean(logs[config]) - statistics.mean(logs["A"])


def variance_by_blocks(row, config):
    """What a mirrored process states of its ratio's variance, by the two blocks of a config."""
    logs = logs_of(row, "mirrored")
    return sum(statistics.variance(logs[name]) / 2 for name in ("A", config))


def variance_by_sections(row, config):
    """The same by the sections within each block."""
    variance = 0.0
    for name, block in zip(
        row["order"] + row["order"][::-1], row["mirrored"], strict=True
    ):
        if name in ("A", config):
            logs = [math.log(samples / seconds) for samples, seconds in block]
            if len(logs) > 1:  # in one block, a single call took more than a second
                variance += (
                    statistics.variance(logs) / len(logs) / 4
                )  # half of the mean of two
    return variance


def compared(rows):
    """The figures of a config against the baseline over the repetitions of a job on a backend."""
    for config in CONFIGS[1:]:
        fresh, mirrored = (
            [ratio_of(row, way, config) for row in rows]
            for way in ("fresh", "mirrored")
        )
        differences = [
            inside - apart for inside, apart in zip(mirrored, fresh, strict=True)
        ]
        yield {
            "config": config,
            "repetitions": len(rows),
            "fresh": statistics.mean(fresh),
            "fresh_variance": statistics.variance(fresh),
            "mirrored": statistics.mean(mirrored),
            "mirrored_variance": statistics.variance(mirrored),
            "bias": statistics.mean(differences),
            "error": statistics.stdev(differences) / math.sqrt(len(rows)),
            "by_blocks": statistics.mean(
                variance_by_blocks(row, config) for row in rows
            ),
            "by_sections": statistics.mean(
                variance_by_sections(row, config) for row in rows
            ),
        }


def seconds_of(rows, way, without_importing=False):
    """The median over repetitions of the seconds of a way's processes."""
    return statistics.median(
        sum(row[f"{way}_seconds"]) - without_importing * sum(row[f"{way}_importing"])
        for row in rows
    )


HEAD = """\
                              fresh            mirrored                            seconds
                       n   ratio deviation   ratio deviation         bias       fresh mirrored"""


def print_table(rows):
    """Print a line for each comparison, and what follows from them."""
    whole = [row for row in rows if "failed" not in row]
    comparisons = []
    print(HEAD)
    for job in NAMES:
        for backend in BACKENDS:
            of_cell = [
                row for row in whole if (row["job"], row["backend"]) == (job, backend)
            ]
            if len(of_cell) < 2:
                continue
            for found in compared(of_cell):
                comparisons.append({"job": job, "backend": backend, **found})
                print_comparison(comparisons[-1], of_cell)
    for backend in BACKENDS:
        print_summary(
            backend, [each for each in comparisons if each["backend"] == backend]
        )
    print_summary("all", comparisons)
    print_rates(whole)
    print_seconds(whole)
    for row in rows:
        if "failed" in row:
            print(f"failed: {row['job']} on {row['backend']}: {row['failed']}")


def print_comparison(found, rows):
    ratios = "".join(
        f"{math.exp(found[way]):8.2f}{math.sqrt(found[f'{way}_variance']):10.3f}"
        for way in ("fresh", "mirrored")
    )
    bias = f"{math.expm1(found['bias']):+8.1%} ± {found['error']:5.1%}"
    seconds = "".join(f"{seconds_of(rows, way):8.0f}" for way in ("fresh", "mirrored"))
    name = f"{found['job']:10}{found['backend']:11}{found['config']}"
    print(f"{name}{len(rows):3}{ratios}  {bias}  {seconds}")


def print_summary(name, found):
    """Print the biases of some comparisons, and what the ways' deviations say."""
    cells = {(each["job"], each["backend"]): [] for each in found}
    for each in found:
        cells[each["job"], each["backend"]].append(each["bias"])
    if len(cells) < 2:  # the limit was too short
        return
    means = [statistics.mean(biases) for biases in cells.values()]
    bias = statistics.mean(means)
    error = statistics.stdev(means) / math.sqrt(len(means))
    biases, errors = ([each[key] for each in found] for key in ("bias", "error"))
    excess = statistics.variance(biases) - statistics.mean(error**2 for error in errors)
    far = [each for each in found if abs(math.expm1(each["bias"])) > FAR]
    clear = [each for each in far if abs(each["bias"]) > 2 * each["error"]]
    chance = sum(map(chance_of_clear, found))
    ratios = [each["fresh_variance"] / each["mirrored_variance"] for each in found]
    deviations = [
        math.sqrt(statistics.median(each[f"{way}_variance"] for each in found))
        for way in ("fresh", "mirrored")
    ]
    print(f"\n{name}: {len(found)} comparisons of {len(cells)} jobs")
    print(f"  bias {math.expm1(bias):+.1%} ± {error:.1%} in the mean", end=", ")
    print(f"{math.expm1(statistics.median(biases)):+.1%} in the median", end="; ")
    print(f"one has an error of {statistics.median(errors):.1%} in the median")
    print(f"  biases scatter by {math.sqrt(max(0.0, excess)):.1%} beyond their errors")
    print(
        f"  beyond {FAR:.0%}: {len(far)}, of which beyond 2 errors: {len(clear)}",
        end=" ",
    )
    print(f"({chance:.1f} expected if there were no bias)")
    print(
        f"  deviation: fresh {deviations[0]:.3f}, mirrored {deviations[1]:.3f}",
        end="; ",
    )
    print(f"variance {statistics.median(ratios):.1f} times in the median", end=", ")
    print(f"more than once in {sum(ratio > 1 for ratio in ratios)}")
    print(
        f"  z by blocks {z_of(found, 'blocks'):.2f}, by sections {z_of(found, 'sections'):.2f}"
    )


def chance_of_clear(found):
    """The probability of a bias beyond `FAR` and two errors where there is none."""
    from scipy.stats import t

    return 2 * t.sf(max(2.0, FAR / found["error"]), found["repetitions"] - 1)


def z_of(found, by):
    """The root of the mean squared deviation over the mean variance stated."""
    return math.sqrt(
        statistics.mean(each["mirrored_variance"] / each[f"by_{by}"] for each in found)
    )


def print_rates(rows):
    """Print what the shared process does to the rate of each config."""
    print("\nrates, mirrored / fresh, in the median:", end="")
    for name in CONFIGS:
        changes = []
        for row in rows:
            fresh, mirrored = (
                statistics.mean(logs_of(row, way)[name])
                for way in ("fresh", "mirrored")
            )
            changes.append(mirrored - fresh)
        print(f" {name} {math.expm1(statistics.median(changes)):+.1%}", end="")
    print()


def print_seconds(rows):
    """Print the seconds of a repetition."""
    fresh, mirrored = (seconds_of(rows, way) for way in ("fresh", "mirrored"))
    warm = [
        seconds_of(rows, way, without_importing=True) for way in ("fresh", "mirrored")
    ]
    loads = [row["load"] for row in rows]
    print(
        f"seconds of a repetition: fresh {fresh:.0f}, mirrored {mirrored:.0f}", end="; "
    )
    print(f"without importing Keras {warm[0]:.0f} and {warm[1]:.0f}")
    print(
        f"repetitions: {len(rows)}; load before one: {statistics.median(loads):.1f} in the median"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="store_true", help="measure, and freeze the figures"
    )
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds of measuring"
    )
    parser.add_argument("--blocks", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.blocks:
        job, order, warm_up, seconds = given.blocks
        read_blocks(job, order, float(warm_up), float(seconds))
        return
    if given.run:
        measure(given.limit)
    print_table(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
