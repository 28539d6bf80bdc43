"""Whole tunes on jobs of known truth: what they deliver and claim, beside a grid and TPE.

    python tests/benchmarks/whole_tunes.py               print the frozen tables
    python tests/benchmarks/whole_tunes.py --run         simulate, and freeze whole_tunes.json
        [--seeds N] [--limit SECONDS]                    (a seed: 1,560 tunes, five minutes on two
                                                         cores); cells are in a random order, so
                                                         that a limit leaves a fair sample

Method. `autofit.tuning.engine.tune` runs as it is; only its launcher and its clock are simulated.
A run of a config reads its true rate (`whole_jobs.py`) times a lognormal factor. The step and the
input alone share that factor, and have 6 % of their own. A trial takes the mean seconds of the
job's trials, give or take 10 %; a confirming run takes three quarters of them, a run out of memory
22 s, and the description 5 s.

Landscapes. Each of the 13 jobs as it was measured ("natural"); stretched so that a gain of 5, 10,
20 or 50 % over a baseline with one thread exists; and with nothing to gain: all rates above the
baseline's lowered to it ("baseline best"), the same with all others at most 5 % slower ("others
near"), and all rates the same ("flat").

Noise. The standard deviation of one run's logarithm is 5, 10 or 15 %. Cases: normal; three times as
much for all but the baseline ("configs x 3"); heavy tails (Student's t of three degrees of freedom,
scaled); a machine whose level steps by the noise between runs, in addition ("wandering"); and
"drift": the machine has a level of its own in addition to normal noise, with a standard
deviation of 20 %, which it forgets within 45 s (Ornstein-Uhlenbeck). Measured: on a virtual machine
whose neighbours disturbed it, 51 runs within 390 s fit best with 20 % and 14 s. With 10 to 60 s,
and 18 to 20 %, they are less likely by a factor of at most 1.5; without drift, by 2,600.

Ways. grid: one reading each of all batch sizes with one thread, and with 2 and 4 threads and the
longer queue, 7 to 15 configs, of which the highest is chosen. TPE: Optuna's sampler (`peers.py`),
until autofit's seconds are over.

delivered: the true rate of the chosen config; means with their standard errors. not delivered:
share of tunes that deliver less than half of the gain. at own batch: the second answer, by the best
rate of that batch size. shown, wrong: tunes that call an answer faster, and one that is not.
covers: intervals of the answers that contain the true ratio, of runs beside each other, and of all
readings. 15 trials: their seconds.
"""

import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import random
import statistics
import tempfile
import time
import types
import zlib
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna
from peers import PEERS
from tables import FULL, OOM_SECONDS
from whole_jobs import GAINS, GIB, LANDSCAPES, NATURAL, NOTHING, jobs

from autofit.machine.host import detect
from autofit.records.machine import ON_CPU
from autofit.records.machine import Machine as Host
from autofit.records.states import Outcome, Phase, Role, Stage
from autofit.records.trial import Evidence, Measurement
from autofit.tuning import budget, claims, engine, problem
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import TuneSettings

FROZEN = pathlib.Path(__file__).with_suffix(".json")
CASES = ("normal", "configs x 3", "heavy tails", "wandering", "drift")
TOLERANCE = 0.02
NOISES = (0.05, 0.1, 0.15)
DRIFT = 0.2
DRIFT_SECONDS = 45.0
DESCRIBING_SECONDS = 5.0
CONFIRMING_SHARE = 0.75  # of a trial's seconds
SECONDS_NOISE = 0.1
CEILING_NOISE = 0.06
HOST = Host("Linux", "3.11", "some CPU", 2, 16 * GIB, 16 * GIB)
SHARED_MEMORY = pathlib.Path("/dev/shm")
UNIT = 10_000  # of frozen shares and ratios
NONE = -1
OF_CELL = ("job", "landscape", "case", "noise", "seed")
OF_TUNE = (
    "base",  # rates, by the best one
    "fastest",
    "own",
    "best_own",
    "fastest_shown",
    "own_shown",
    "intervals",  # of runs beside each other
    "covering",
    "likely_intervals",  # of all readings
    "likely_covering",
    "fastest_probability",
    "own_probability",
    "stated",  # rate of the fastest, by its true one
    "ooms",
    "searched",
    "further",
    "seconds",
    "unclaimed",  # seconds without the runs beside each other
    "fifteen",
)
OF_OTHERS = ("rate", "ooms", "runs", "seconds")
COLUMNS = (
    *OF_CELL,
    *OF_TUNE,
    *(f"{way}_{name}" for way in ("grid", "tpe") for name in OF_OTHERS),
)


class Machine:
    """Runs the configs of a job; its clock tells the seconds that they took."""

    def __init__(self, job, case, noise, draw):
        self.job = job
        self.case = case
        self.noise = noise
        self.draw = draw
        self.clock = 0.0
        self.runs = self.ooms = 0
        self._level = DRIFT * draw.standard_normal() if case == "drift" else 0.0

    def monotonic(self):
        return self.clock

    def run(self, config, *, is_confirming=False, known_step=None):
        """Measure a config; `known_step` is the rate of the step alone if it is not to be read."""
        job = self.job
        normal = self.draw.standard_normal
        self.runs += 1
        if not job.fits(config):
            return self._out_of_memory(config)
        share = CONFIRMING_SHARE if is_confirming else 1.0
        seconds = share * job.seconds * math.exp(SECONDS_NOISE * normal())
        self.clock += seconds
        self._move_level(seconds)
        size = self.noise * (
            3 if self.case == "configs x 3" and config != job.baseline else 1
        )
        error = (
            self.draw.standard_t(3) / math.sqrt(3)
            if self.case == "heavy tails"
            else normal()
        )
        shift = self._level + size * error
        fit, step, made = job.rates[config]
        rate = math.exp(fit + shift)
        alone = {"compute_is_read": False, "input_is_read": False}
        if not is_confirming:
            compute = known_step or math.exp(step + shift + CEILING_NOISE * normal())
            inputs = math.exp(made + shift + CEILING_NOISE * normal())
            alone = {
                "compute_samples_per_second": max(compute, rate),
                "compute_spread": None if known_step else self._spread(size),
                "compute_is_read": known_step is None and compute > rate,
                "input_samples_per_second": max(inputs, rate),
                "input_spread": self._spread(size),
                "input_is_read": inputs > rate,
            }
        device, host = job.peaks[config]
        return Measurement(
            Outcome.OK,
            Evidence("ran to its end"),
            seconds,
            samples_per_second=rate,
            steady_samples_per_second=rate,
            spread=self._spread(size),
            step_seconds=config.batch_size / rate,
            steps=20,
            device_peak_bytes=device,
            host_peak_bytes=int(host * (1 + 0.01 * abs(normal()))),
            **alone,
        )

    def _move_level(self, seconds):
        if self.case == "wandering":
            self._level += self.noise * self.draw.standard_normal()
        if self.case == "drift":
            kept = math.exp(-seconds / DRIFT_SECONDS)
            moved = DRIFT * math.sqrt(1 - kept**2) * self.draw.standard_normal()
            self._level = kept * self._level + moved

    def _spread(self, size):
        """The half-width by the blocks within a run, which vary less than runs do."""
        return max(0.01, 1.2 * size * math.exp(0.4 * self.draw.standard_normal()))

    def _out_of_memory(self, config):
        self.ooms += 1
        self.clock += OOM_SECONDS
        device, host = self.job.peaks[config]
        limits = self.job.limits
        if limits.device_bytes is not None and (device or 0) > limits.device_bytes:
            peak = min(host, limits.host_bytes)
            return Measurement(
                Outcome.DEVICE_OOM, FULL, OOM_SECONDS, host_peak_bytes=peak
            )
        evidence = Evidence(FULL.reason, last_host_bytes=limits.host_bytes)
        peak = limits.host_bytes
        return Measurement(
            Outcome.HOST_OOM, evidence, OOM_SECONDS, host_peak_bytes=peak
        )


class Launcher:
    """Runs the trials of a tune on a simulated machine."""

    def __init__(self, machine):
        self._machine = machine

    def run(self, spec, on_phase):
        on_phase(Phase.TRAINING)
        if spec.role is Role.DESCRIBE:
            self._machine.clock += DESCRIBING_SECONDS
            return self._machine.job.description
        return self._machine.run(
            spec.config,
            is_confirming=spec.role is Role.CONFIRM,
            known_step=spec.compute_samples_per_second,
        )


def tune(machine):
    """The record of a tune by the product's own code, in the seconds of the machine's clock."""
    job = machine.job
    shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=shared) as folder,
        mock.patch.object(budget, "monotonic", machine.monotonic),
        # the space of a table has the configs that were measured, and no others
        mock.patch.object(problem, "build_space_of", return_value=job.space),
    ):
        settings = TuneSettings(
            storage=f"journal:{folder}/trials.log", baseline=job.baseline.values()
        )
        request = TuneRequest(job.name, HOST, ON_CPU, job.limits, settings)
        return engine.tune(request, Launcher(machine), lambda event: None)


def of_tune(machine):
    """The figures of a tune, as whole numbers in the order of `OF_TUNE`."""
    record = tune(machine)
    job = machine.job
    base = job.rate(job.baseline)
    best = job.best()
    fastest = record.fastest
    own = record.same_batch
    answers = {answer.config: answer.speedup for answer in (fastest, own)}
    likely = {config: by for config, by in answers.items() if not by.pairs}
    rates = (base, job.rate(fastest.config), job.rate(own.config))
    searched = len(record.searched)
    return [
        *(_share(rate / best) for rate in (*rates, job.best(job.baseline.batch_size))),
        int(fastest.speedup.is_shown),
        int(own.speedup.is_shown),
        *_covering(job, _beside(record, job)),
        *_covering(job, likely),
        _probability(fastest, job),
        NONE if own.config == fastest.config else _probability(own, job),
        _share(fastest.samples_per_second / job.rate(fastest.config)),
        machine.ooms,
        searched,
        machine.runs - searched,
        round(machine.clock),
        round(
            machine.clock
            - sum(run.measurement.seconds for run in record.runs if _is_beside(run))
        ),
        round(15 * job.seconds),
    ]


def _beside(record, job):
    """What the runs beside each other show, by config, whether that is an answer or not."""
    rates = {}
    for run in record.runs:
        if _is_beside(run):
            rates.setdefault(run.config, []).append(run.samples_per_second)
    rounds = [
        dict(zip(rates, one, strict=True)) for one in zip(*rates.values(), strict=True)
    ]
    others = [config for config in rates if config != job.baseline]
    return {config: claims.speedup(config, job.baseline, rounds) for config in others}


def _is_beside(run):
    return run.stage is Stage.BESIDE


def _covering(job, speedups):
    """The number of intervals, and of those that contain the true ratio."""
    ratios = {config: job.rate(config) / job.rate(job.baseline) for config in speedups}
    known = {config: by for config, by in speedups.items() if by.low is not None}
    return len(known), sum(
        by.low <= ratios[config] <= by.high for config, by in known.items()
    )


def _share(value):
    return round(UNIT * value)


def _probability(answer, job):
    """The probability that an answer is faster than the baseline, where the product states one."""
    stated = getattr(answer, "probability", None)
    return NONE if stated is None or answer.config == job.baseline else _share(stated)


def of_grid(machine):
    configs = list(machine.job.space.configs())
    longest = max((config.max_queue_size or 0) for config in configs)
    grid = [
        config
        for config in configs
        if not config.use_multiprocessing
        and (not config.has_queue or config.max_queue_size == longest)
    ]
    rates = {config: machine.run(config).samples_per_second or 0.0 for config in grid}
    return _of_chosen(machine, max(rates, key=rates.get))


def of_tpe(machine, seconds):
    job = machine.job
    peer = PEERS["TPE"]
    tried = []
    case = types.SimpleNamespace(
        space=job.space, limits=job.limits, run=lambda config, draw: machine.run(config)
    )
    for ran in peer.search(case, 1000, machine.draw):
        tried.append(ran)
        if machine.clock >= seconds:
            break
    chosen, _ = peer.finish(case, tried, machine.draw)
    return _of_chosen(machine, chosen or job.baseline)


def _of_chosen(machine, config):
    job = machine.job
    share = _share(job.rate(config) / job.best())
    return [share, machine.ooms, machine.runs, round(machine.clock)]


def row_of(cell):
    """All figures of one cell, in the order of `COLUMNS`; a cell is as `OF_CELL`, with indices."""
    job_index, landscape, case, noise, seed = cell
    job = _jobs()[job_index].shaped(LANDSCAPES[landscape])

    def machine(way):
        draw = np.random.default_rng([seed, zlib.crc32(f"{way} {cell[:4]}".encode())])
        return Machine(job, CASES[case], NOISES[noise], draw)

    tuned = of_tune(machine("autofit"))
    seconds = tuned[OF_TUNE.index("seconds")]
    return [*cell, *tuned, *of_grid(machine("grid")), *of_tpe(machine("TPE"), seconds)]


@functools.cache
def _jobs():
    return tuple(jobs().values())


def rows_of(cells):
    return [row_of(cell) for cell in cells]


def cells_of(seeds):
    """All cells, shuffled within a seed, so that the first ones are a fair sample."""
    counts = (len(_jobs()), len(LANDSCAPES), len(CASES), len(NOISES))
    drawn = random.Random(1)
    for seed in range(seeds):
        cells = [[*cell, seed] for cell in itertools.product(*map(range, counts))]
        drawn.shuffle(cells)
        yield from cells


def _row_before(end, cell):
    return row_of(cell) if time.time() < end else None


def simulate(seeds, limit):
    end = time.time() + limit
    with ProcessPoolExecutor(2) as pool:
        rows = pool.map(
            functools.partial(_row_before, end), cells_of(seeds), chunksize=2
        )
        return [row for row in rows if row is not None]


def print_tables(rows):
    print_delivered(rows)
    print_by_job(rows)
    print_nothing(rows)
    print_claims(rows)
    print_probabilities(rows)
    print_costs(rows)


WAYS = {"autofit": "fastest", "grid": "grid_rate", "TPE": "tpe_rate"}


def print_delivered(rows):
    gains = [row for row in rows if row["landscape"] in GAINS]
    print("\ndelivered / best")
    heads = ("5 to 50 %", *(f"{gain:.0%}" for gain in GAINS), NATURAL)
    groups = [
        gains,
        *([row for row in rows if row["landscape"] == g] for g in (*GAINS, NATURAL)),
    ]
    print(f"{'gain':14}" + "".join(f"{head:>16}" for head in heads))
    for way, name in WAYS.items():
        means = [_mean([row[name] / UNIT for row in group]) for group in groups]
        print(f"{way:14}" + "".join(f"{mean:>16}" for mean in means))
    means = [_mean([row["own"] / row["best_own"] for row in group]) for group in groups]
    print(f"{'at own batch':14}" + "".join(f"{mean:>16}" for mean in means))
    print(f"{'tunes':14}" + "".join(f"{len(group):16}" for group in groups))

    print("\nnot delivered" + "".join(f"{head:>16}" for head in heads[:-1]))
    for way, name in WAYS.items():
        shares = [
            _percent([_is_missed(row, name) for row in group]) for group in groups[:-1]
        ]
        print(f"{way:13}" + "".join(f"{share:>16}" for share in shares))

    print("\ndelivered / best, gains of 5 to 50 %, by noise")
    groups = [[row for row in gains if row["case"] == case] for case in CASES]
    groups += [[row for row in gains if row["noise"] == noise] for noise in NOISES]
    heads = (*CASES, *(f"{noise:.0%}" for noise in NOISES))
    print(f"{'':14}" + "".join(f"{head:>16}" for head in heads))
    for way, name in WAYS.items():
        means = [_mean([row[name] / UNIT for row in group]) for group in groups]
        print(f"{way:14}" + "".join(f"{mean:>16}" for mean in means))


def print_by_job(rows):
    heads = ("natural: gain", "autofit", "grid", "5-50 %: autofit", "grid")
    print("\ndelivered / best " + "".join(f"{head:>16}" for head in heads))
    for index, job in enumerate(_jobs()):
        of_job = [row for row in rows if row["job"] == index]
        natural = [row for row in of_job if row["landscape"] == NATURAL]
        gains = [row for row in of_job if row["landscape"] in GAINS]
        means = [
            _mean([row[WAYS[way]] / UNIT for row in group])
            for group in (natural, gains)
            for way in ("autofit", "grid")
        ]
        gain = job.best() / job.rate(job.baseline)
        print(f"{job.name:17}{gain:16.2f}" + "".join(f"{mean:>16}" for mean in means))


def print_nothing(rows):
    print(
        "\nnothing to gain: delivered / baseline, share over 2 % slower, over 5 % slower"
    )
    heads = ("all", *NOTHING)
    nothing = [row for row in rows if row["landscape"] in NOTHING]
    groups = [
        nothing,
        *([row for row in nothing if row["landscape"] == one] for one in NOTHING),
    ]
    print(f"{'':14}" + "".join(f"{head:>24}" for head in heads))
    for way, name in WAYS.items():
        line = ""
        for group in groups:
            kept = [row[name] / row["base"] for row in group]
            slower = [
                _percent([rate < 1 - loss for rate in kept]).strip()
                for loss in (TOLERANCE, 0.05)
            ]
            line += f"{_mean(kept):>16}{slower[0]:>4}{slower[1]:>4}"
        print(f"{way:14}{line}")
    print(f"{'tunes':14}" + "".join(f"{len(group):24}" for group in groups))


def print_claims(rows):
    print(
        "\nclaims        tunes  shown  wrong  wrong of tunes  intervals  covers  likely  covers"
    )
    for case in ("all", *CASES):
        group = [row for row in rows if case in ("all", row["case"])]
        shown = sum(row["fastest_shown"] or row["own_shown"] for row in group)
        wrong = sum(map(_is_wrong, group))
        counts = []
        covers = []
        for kind in ("", "likely_"):
            counts.append(sum(row[f"{kind}intervals"] for row in group))
            covers.append(
                sum(row[f"{kind}covering"] for row in group) / max(1, counts[-1])
            )
        print(
            f"{case:12} {len(group):6} {shown:6} {wrong:6} {wrong / max(1, len(group)):15.1%} "
            f"{counts[0]:10} {covers[0]:7.1%} {counts[1]:7} {covers[1]:7.1%}"
        )
    shown = [row for row in rows if row["landscape"] in GAINS]
    share = [
        _percent([row["fastest_shown"] for row in shown if row["landscape"] == g])
        for g in GAINS
    ]
    of_gains = ", ".join(
        f"{one.strip()} at {g:.0%}" for one, g in zip(share, GAINS, strict=True)
    )
    print(f"gain of the fastest shown, by what there is to gain: {of_gains}")
    stated = [row["stated"] / UNIT for row in rows]
    low, middle, high = np.percentile(stated, (5, 50, 95))
    print(
        f"stated / true rate: {middle:.3f} in the median, 90 % within {low:.2f} to {high:.2f}"
    )


def print_probabilities(rows):
    """The share of answers that are truly faster, by the probability that was stated.

    Where all rates are the same, or those above the baseline's were lowered to it, nothing is
    faster, and an answer that is as fast costs nothing: the share that is slower says more.
    """
    print(
        "\nprobability stated     all: answers    mean  not slower"
        "    gains: answers  faster    nothing to gain: answers  slower"
    )
    for low, high in itertools.pairwise((0, 0.8, 0.9, 0.95, 1.0001)):
        answers = [
            (
                row["landscape"] in NOTHING,
                row[f"{name}_probability"] / UNIT,
                row[name],
                row["base"],
            )
            for row in rows
            for name in ("fastest", "own")
            if row[f"{name}_probability"] != NONE
            and low <= row[f"{name}_probability"] / UNIT < high
        ]
        faster = [
            rate > base for is_nothing, _, rate, base in answers if not is_nothing
        ]
        slower = [rate < base for is_nothing, _, rate, base in answers if is_nothing]
        if faster and slower:
            mean = np.mean([stated for _, stated, _, _ in answers])
            not_slower = np.mean([rate >= base for _, _, rate, base in answers])
            print(
                f"{low:6.0%} to {min(high, 1):4.0%} {len(answers):21} {mean:7.1%} "
                f"{not_slower:11.1%}"
                f"{len(faster):19} {np.mean(faster):7.1%}{len(slower):27} {np.mean(slower):7.1%}"
            )


def print_costs(rows):
    print(
        "\na tune        OOMs  searched  further  seconds  15 trials: median, over 1.0"
    )
    for way, prefix in (("autofit", ""), ("grid", "grid_"), ("TPE", "tpe_")):
        counts = ("searched", "further") if way == "autofit" else (f"{prefix}runs",)
        means = [statistics.fmean(row[name] for row in rows) for name in counts]
        searched, further = [f"{mean:.1f}" for mean in (*means, math.nan)][:2]
        ooms = statistics.fmean(row[f"{prefix}ooms"] for row in rows)
        seconds = statistics.fmean(row[f"{prefix}seconds"] for row in rows)
        units = [row[f"{prefix}seconds"] / row["fifteen"] for row in rows]
        median = statistics.median(units)
        over = _percent([unit > 1 for unit in units])
        further = further.replace("nan", "")
        print(
            f"{way:12}{ooms:6.2f}{searched:>10}{further:>9}{seconds:9.0f}{median:19.2f}{over:>10}"
        )
    delivered = statistics.median(row["unclaimed"] / row["fifteen"] for row in rows)
    longer = [row["seconds"] > row["fifteen"] * 16 / 15 for row in rows]
    print(
        f"autofit without the runs beside each other: {delivered:.2f} in the median; "
        f"over 15 trials by more than a trial: {_percent(longer).strip()}"
    )


def _mean(values):
    if len(values) < 2:
        return "-"
    return (
        f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.3f}"
    )


def _percent(values):
    return f"{np.mean(values):.0%}" if values else "-"


def _is_missed(row, name):
    """Whether less than half of the gain was delivered."""
    return row[name] / row["base"] - 1 < 0.5 * (UNIT / row["base"] - 1)


def _is_wrong(row):
    """Whether an answer is said to be faster, and is not."""
    return any(
        row[f"{name}_shown"] and row[name] <= row["base"] for name in ("fastest", "own")
    )


def read_rows(frozen):
    """The frozen rows by column, with the names of their landscape and case."""
    for row in frozen["rows"]:
        named = dict(zip(frozen["columns"], row, strict=True))
        names = {
            "landscape": LANDSCAPES[row[1]],
            "case": CASES[row[2]],
            "noise": NOISES[row[3]],
        }
        yield named | names


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="simulate, and freeze the rows in whole_tunes.json",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="of each cell (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=math.inf,
        help="seconds after which no cell is begun",
    )
    arguments = parser.parse_args()
    if arguments.run:
        machine = detect()
        versions = f"Python {platform.python_version()}, Optuna {optuna.__version__}"
        frozen = {
            "machine": f"{machine.processor}, {machine.cores} cores, {versions}",
            "columns": COLUMNS,
            "rows": simulate(arguments.seeds, arguments.limit),
        }
        text = json.dumps(frozen, separators=(",", ":")).replace("],[", "],\n[")
        FROZEN.write_text(text + "\n")
    frozen = json.loads(FROZEN.read_text())
    print(frozen["machine"])
    rows = list(read_rows(frozen))
    print(f"{len(rows)} tunes of {len(_jobs())} jobs with each way")
    print_tables(rows)


if __name__ == "__main__":
    main()
