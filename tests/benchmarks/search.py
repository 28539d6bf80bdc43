"""The search: regret, out-of-memory trials, trials and seconds of autofit and of the ways a user might search instead.

    python tests/benchmarks/search.py               print the frozen tables (the same as search.txt)
    python tests/benchmarks/search.py --quick       a fresh run on a fifth of the surfaces (under five minutes)
    python tests/benchmarks/search.py --run         a fresh run of everything, frozen in search.json (about an hour;
                                                    Optuna's GP needs torch); with --but "GP;TPE" their frozen rows are kept
    python tests/benchmarks/search.py --draw FILE   draw the curve of regret against seconds (needs matplotlib)

Cases. Eight jobs measured on a real machine over a coarse grid (`tables.py`), and random surfaces (`surfaces.py`). The
models and constants of the search were developed on the surfaces 0 to 299 and the tables compute, gil, pickling and host.
The results are of held-back cases: the surfaces 1000 to 1099, and the tables reading, decoding, device and tiny with five
seeds each. In addition: 40 throughput curves of real GPUs that others measured, with three seeds each (`curves.py`).

Regret is 1 - (true rate of the chosen config) / (best true rate of any config of the space that fits). All search the same
configs under the same limits and read the same trials; autofit also reads the two ceilings that its trials report. The
tolerance is 0, so that all look for the highest rate. Seconds are those that the recorded trials took, or that a surface
models: 22 s for a device OOM, whose failing allocations TensorFlow repeats for 10 s each. The repeated runs of autofit's
finalists count in its trials and seconds. Describing the workload and confirming the choice, which are autofit's alone, do
not. The regret after some seconds is that of the largest number of trials that were over by then; without any, it is 1.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna
import peers
from curves import CURVES, Curve
from surfaces import Stress, Surface

from autofit.machine.host import detect
from autofit.records.machine import Device, Placement
from autofit.tuning.engine import tune
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import TuneSettings

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "search.json"
BUDGETS = (5, 8, 10, 20, 30)
FURTHER_BUDGETS = (2, 3, 4, 6, 7, 12, 16, 25)  # for the curve over seconds alone
CURVE_SECONDS = (20, 40, 60, 90, 120, 180, 300, 600)
ON_CURVE = ("autofit", "TPE", "GP", "doubling, bisecting", "coarse grid")
DEVELOPED_ON, HELD_BACK = ("compute", "gil", "pickling", "host"), ("reading", "decoding", "device", "tiny")
FIRST_SURFACE, SURFACES, SEEDS = 1000, 100, 5
STRESSES = {
    "workspace jumps x 3": Stress(jumps=3.0),
    "noise 8 %": Stress(noise=0.08),
    "sample bytes told x 0.6": Stress(sample_bytes_factor=0.6),
    "sample bytes told x 1.5": Stress(sample_bytes_factor=1.5),
    "shapes of real GPUs": Stress(shapes=True),
    "one step in a call": Stress(calls=(1,)),
    "1, 8 or 32 steps in a call": Stress(calls=(1, 8, 32)),
}
ON_GPU_CURVES = ("autofit", "with the 2 % tolerance", "TPE", "GP", "doubling, bisecting")
GPU_CURVE_GROUPS = {"curve": "real curves, measured sizes", "grid": "real curves, the usual grid"}
GPU_CURVE_TRIALS, GPU_CURVE_SEEDS = 8, 3
GRID_TRIALS = 200
GRID_BUDGETS = (5, 10, 20, 40, 80)


def case_of(kind, what, stress=None):
    """A table by its job, or a surface by its seed."""
    if kind == "table":
        import tables  # loads what only tables need

        return tables.Table(what)
    if kind in GPU_CURVE_GROUPS:
        return Curve(what, interpolated=kind == "grid")
    return Surface(what, STRESSES.get(stress))


def budgets_of(name, group):
    """The numbers of trials after which a search is judged."""
    if group in GPU_CURVE_GROUPS.values():
        return (GPU_CURVE_TRIALS,)
    if name == "coarse grid":
        return (*GRID_BUDGETS, GRID_TRIALS)
    return sorted((*BUDGETS, *FURTHER_BUDGETS)) if group == "held back" and name in ON_CURVE else BUDGETS


def search(task, budgets=None):
    """One peer on one case with one seed: a row for each budget."""
    name, group, kind, what, stress, seed = task
    budgets = budgets or budgets_of(name, group)
    case = case_of(kind, what, stress)
    peer = next(p for p in [*peers.peers(), *peers.ablations()] if p.name == name)
    draw = np.random.default_rng([seed, zlib.crc32(f"{name} {case.name}".encode())])
    tried = list(peer.search(case, max(budgets), draw))
    best = case.best(list(case.space.configs()))
    rows = []
    for budget in budgets:
        seen = tried[:budget]
        chosen, again = peer.finish(case, seen, draw)
        spent = [m for _, m in [*seen, *again]]
        regret = 1.0 if chosen is None else 1 - case.true_rate(chosen) / best
        ooms = sum(m.outcome.is_oom for m in spent)
        seconds = round(sum(m.seconds for m in spent), 1)
        rows.append([name, group, case.name, seed, budget, round(max(0.0, regret), 5), ooms, len(spent), seconds])
    return rows


def tasks(surfaces, stressed):
    """Every (peer, group, kind, case, stress, seed) of the tables of results."""
    names = [p.name for p in peers.peers()]
    cases = [("surface", FIRST_SURFACE + n, 0) for n in range(surfaces)]
    cases += [("table", job, seed) for job, seed in itertools.product(HELD_BACK, range(SEEDS))]
    for name, (kind, what, seed) in itertools.product(names, cases):
        yield name, "held back", kind, what, None, seed
    for job, seed in itertools.product(DEVELOPED_ON, range(SEEDS)):
        yield "autofit", "developed on", "table", job, None, seed
    for (stress, number), name in itertools.product(
        itertools.product(STRESSES, range(stressed)), ("autofit", "TPE", "doubling, bisecting")
    ):
        yield name, stress, "surface", FIRST_SURFACE + number, stress, 0
    for (kind, what, seed), peer in itertools.product(cases, peers.ablations()[1:]):
        yield peer.name, "held back", kind, what, None, seed
    groups, seeds = GPU_CURVE_GROUPS.items(), range(GPU_CURVE_SEEDS)
    for (kind, group), name, what, seed in itertools.product(groups, ON_GPU_CURVES, CURVES, seeds):
        yield name, group, kind, what, None, seed


def interval(values, statistic, draw):
    """95 % interval of a statistic, by bootstrap."""
    values = np.asarray(values)
    statistics_drawn = [statistic(values[draw.integers(len(values), size=len(values))]) for _ in range(500)]
    return np.percentile(statistics_drawn, [2.5, 97.5])


def print_table(rows, group, names, budgets=BUDGETS):
    """Regret, OOMs, trials and seconds, a line for each peer and budget."""
    draw = np.random.default_rng(0)
    title = (
        f"{'':25} {'given':>5}  {'median regret':>21}  {'90th percentile':>21}  {'OOMs':>5} {'trials':>6} {'seconds':>7}"
    )
    print(f"\n{title}")
    for name in names:
        for budget in budgets if name != "coarse grid" else (GRID_TRIALS,):
            searches = [r for r in rows if r[0] == name and r[1] == group and r[4] == budget]
            if not searches:
                continue
            regrets = [r[5] for r in searches]
            cells = []
            for quantile in (50, 90):
                low, high = interval(regrets, lambda v, q=quantile: np.percentile(v, q), draw)
                cells.append(f"{np.percentile(regrets, quantile):6.1%} ({low:5.1%} to {high:5.1%})")
            ooms, trials, seconds = (np.mean([r[i] for r in searches]) for i in (6, 7, 8))
            print(f"{name:25} {budget:5}  {cells[0]}  {cells[1]}  {ooms:5.2f} {trials:6.1f} {seconds:7.0f}")


def print_by_case(rows):
    """autofit at 8 trials on each table."""
    print("\nautofit at 8 trials, each table: mean regret of five seeds, OOMs, trials")
    for case in dict.fromkeys(r[2] for r in rows if r[2].startswith("table")):
        searches = [r for r in rows if r[0] == "autofit" and r[2] == case and r[4] == 8]
        kind = "held back" if searches[0][1] == "held back" else "developed on"
        regret, ooms, trials = (np.mean([r[i] for r in searches]) for i in (5, 6, 7))
        print(f"  {case:18} {kind:13} {regret:6.1%} {ooms:5.2f} {trials:5.1f}")


def print_real_curves(rows):
    """Regret on the curves of real GPUs."""
    print(f"\n\n6. Curves of real GPUs, {GPU_CURVE_TRIALS} trials given, {GPU_CURVE_SEEDS} seeds of each of {len(CURVES)}")
    print(f"{'regret':25} {'mean':>6} {'median':>6}  {'90 %':>6} {'over 5 %':>9}  {'OOMs':>5} {'trials':>6} {'seconds':>7}")
    for group in GPU_CURVE_GROUPS.values():
        print(f"{group}:")
        for name in ON_GPU_CURVES:
            searches = [row for row in rows if row[:2] == [name, group]]
            if not searches:
                continue
            regrets = np.array([row[5] for row in searches])
            ooms, trials, seconds = (np.mean([row[i] for row in searches]) for i in (6, 7, 8))
            print(
                f"  {name:23} {regrets.mean():6.1%} {np.median(regrets):6.1%}  {np.percentile(regrets, 90):6.1%} "
                f"{np.mean(regrets > 0.05):9.0%}  {ooms:5.2f} {trials:6.1f} {seconds:7.0f}"
            )


def on_curve(rows):
    """The peers on the curve that have run: a quick run leaves out GP."""
    return [name for name in ON_CURVE if any(row[0] == name for row in rows)]


def regrets_after(rows, name, seconds):
    """The regret of each held-back search of one peer after so many seconds."""
    searches = {}
    for row in rows:
        if row[0] == name and row[1] == "held back":
            searches.setdefault((row[2], row[3]), []).append(row)
    over = ([row for row in search if row[8] <= seconds] for search in searches.values())
    return [max(search, key=lambda row: row[4])[5] if search else 1.0 for search in over]


def print_curve(rows):
    """Regret against seconds."""
    print("\n\n5. Regret after so many seconds of trials, median and 90th percentile")
    print(f"{'':20}" + "".join(f"{seconds:>12} s" for seconds in CURVE_SECONDS))
    for name in on_curve(rows):
        cells = [np.percentile(regrets_after(rows, name, seconds), (50, 90)) for seconds in CURVE_SECONDS]
        print(f"{name:20}" + "".join(f"{100 * median:6.1f} {100 * high:4.0f} %" for median, high in cells))


def draw(rows, path):
    """Draw the curve of regret against seconds."""
    import matplotlib as mpl  # only drawing needs it

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    times = np.geomspace(10, 2000, 200)
    for name in on_curve(rows):
        regrets = np.array([regrets_after(rows, name, seconds) for seconds in times])
        for axes, quantile in ((left, 50), (right, 90)):
            axes.plot(times, 100 * np.percentile(regrets, quantile, axis=1), label=name, lw=3 if name == "autofit" else 1.5)
    for axes, title in ((left, "median"), (right, "90th percentile")):
        axes.set(xscale="log", yscale="symlog", xlabel="seconds of trials", title=title, ylim=(0, 105))
        axes.set_yticks([0, 1, 2, 5, 10, 20, 50, 100], [f"{tick} %" for tick in (0, 1, 2, 5, 10, 20, 50, 100)])
        axes.set_xticks([10, 30, 60, 120, 300, 600, 1800], ["10", "30", "60", "120", "300", "600", "1800"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.set_ylabel("rate below the best")
    left.legend(loc="lower left", fontsize="small")
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def print_results(frozen):
    """All tables."""
    rows = frozen["rows"]
    print(frozen["machine"])
    cases = len({(r[2], r[3]) for r in rows if r[1] == "held back"})
    print(f"\n1. Held-back surfaces and tables, {cases} searches a line (95 % intervals by bootstrap)", end="")
    print_table(rows, "held back", [p.name for p in peers.peers()])
    print_by_case(rows)
    print("\n2. Stress: surfaces made harder", end="")
    for stress in (name for name in STRESSES if any(row[1] == name for row in rows)):
        print(f"\n\n{stress}:", end="")
        print_table(rows, stress, ["autofit", "TPE", "doubling, bisecting"], (8, 30))
    print("\n3. autofit with a part taken away", end="")
    print_table(rows, "held back", [p.name for p in peers.ablations()], (8, 30))
    worst, median = frozen["driver_milliseconds"]
    print(f"\n4. The driver's own time a trial, at 30 trials: median {median:.0f} ms, worst {worst:.0f} ms", end="")
    print_curve(rows)
    print_real_curves(rows)


class Instant:
    """A launcher whose trials take no time."""

    def __init__(self, surface):
        self._surface, self._draw = surface, np.random.default_rng(0)

    def run(self, spec):
        """Answer from the surface."""
        yield "working"
        if spec.role == "describe":
            return self._surface.description()
        return self._surface.run(spec.config, self._draw)

    def close(self):
        """Nothing to close."""


def driver_milliseconds():
    """Milliseconds a trial in the loop, the sampler and SQLite: (worst, median) of trials 26 to 30 of five searches."""
    gaps = []
    for seed in range(5):
        surface = Surface(FIRST_SURFACE + seed)
        with tempfile.TemporaryDirectory() as folder:
            request = TuneRequest(
                workload_fingerprint=surface.name,
                machine=replace(detect(), cores=surface.cores),
                placement=Placement.on(Device(0, "a GPU", "GPU-0", *[surface.limits.device_bytes] * 2)),
                limits=surface.limits,
                limits_asked=("100%", "100%"),
                settings=TuneSettings(
                    space={knob: list(values) for knob, values in surface.space.knobs().items()},
                    max_trials=30,
                    tolerance=0.0,
                    storage=f"{folder}/trials.db",
                ),
            )
            ended = []

            def note(event, ended=ended):
                if getattr(getattr(event, "trial", None), "stage", "") == "search":
                    ended.append(time.perf_counter())

            tune(request, Instant(surface), note)
        gaps += [1e3 * float(gap) for gap in np.diff(ended)[-5:]]
    return max(gaps), statistics.median(gaps)


def main():
    """Run on request, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run everything and freeze it in search.json")
    parser.add_argument("--but", default="", metavar="A;B", help="peers whose frozen rows stay; what is missing runs")
    parser.add_argument("--draw", type=pathlib.Path, metavar="FILE", help="draw the frozen curve of regret over seconds")
    parser.add_argument("--quick", action="store_true", help="run on a fifth of the surfaces, without Optuna's GP")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(json.loads(FROZEN.read_text())["rows"], arguments.draw)
        return
    if not (arguments.run or arguments.quick):
        print_results(json.loads(FROZEN.read_text()))
        return
    share = 5 if arguments.quick else 1
    kept = ["GP"] if arguments.quick else [name for name in arguments.but.split(";") if name]
    rows = [row for row in json.loads(FROZEN.read_text())["rows"] if row[0] in kept]
    known = {(row[0], row[1]) for row in rows}
    possible = tasks(SURFACES // share, SURFACES // share)
    wanted = [t for t in possible if t[0] not in kept or (arguments.run and t[:2] not in known)]
    machine = detect()
    versions = f"Python {platform.python_version()}, Optuna {optuna.__version__}"
    earlier = f"; of an earlier run: {', '.join(kept)}" if kept and arguments.run else ""
    frozen = {
        "machine": f"{machine.processor}, {machine.cores} cores, {versions}{earlier}",
        "driver_milliseconds": driver_milliseconds(),
    }
    with ProcessPoolExecutor(arguments.processes) as pool:
        frozen["rows"] = list(itertools.chain.from_iterable(pool.map(search, wanted, chunksize=8)))
    if arguments.run:
        frozen["rows"] += rows
        FROZEN.write_text(json.dumps(frozen).replace("], [", "],\n[") + "\n")
    print_results(frozen)


if __name__ == "__main__":
    main()
