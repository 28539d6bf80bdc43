"""What an estimate of memory before the first trial is worth to a search: the same searches with and without one.

    python tests/benchmarks/first_estimate.py [--processes N]      prints first_estimate.txt (half an hour on two cores)

Cases. The held-back surfaces of `search.py` under the memory of a GPU; the same on a CPU, where the step takes host memory
and only that has a limit, as by default; the tables with a binding limit, of device and of host memory; and the curves of
real GPUs. A search is given what `describe` would find out: footprints at five batch sizes, which miss the true memory as
an estimate of a drawn model in memory.json misses its measured peaks (of TensorFlow without XLA and with it), with the
error that this method states; or no footprints. The tables have the estimates that were made when they were measured.

All three search the same case with the same draws. Regret, OOMs, trials and seconds are those of `search.py`, eight trials.
"""

import argparse
import json
import os
import pathlib
import statistics
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peers
from curves import CURVES, Curve
from surfaces import Surface
from tables import Table

from autofit.records.description import Footprint
from autofit.records.trial import FitConfig, Limits
from autofit.search.config_arrays import ConfigArrays

HERE = pathlib.Path(__file__).parent
TRIALS = 8
SIZES = (1, 32, 128, 512, 2048)  # those that a tune describes for a baseline of 32
FIRST_SURFACE, SURFACES, SEEDS = 1000, 100, 100
METHODS = {"as TensorFlow's walk": ("/plain", 0.35), "as XLA's report": ("/xla", 0.13)}
NONE, MEASURED = "none", "as measured"
ABSOLUTE_ERROR_BYTES = 4 * 2**20


class OnCpu(Surface):
    """A surface whose step takes host memory; a quarter of what it holds are weights, a half the optimizer's variables."""

    on_cpu = True

    def __init__(self, seed):
        super().__init__(seed)
        self.name += " on a CPU"
        self.usable_device, self.host = float("inf"), self.host + self.device

    @property
    def limits(self):
        return Limits(None, int(self.host))

    def description(self):
        variables = {"parameter_bytes": int(self.held / 4), "optimizer_bytes": int(self.held / 2)}
        return replace(super().description(), process_bytes=int(self.process + 0.75 * self.held), **variables)

    def host_bytes(self, at):
        return super().host_bytes(at) + self.device_bytes(at)

    def run(self, config, draw):
        return replace(super().run(config, draw), device_peak_bytes=None)


def device_bytes(case, size):
    """The true device memory of a batch size."""
    if isinstance(case, Curve):
        return case.constant + case.per_sample * size
    return float(case.device_bytes(ConfigArrays.of([FitConfig(size)]))[0])


def footprints(case, method):
    """Estimates of a case's device memory that miss as those of a drawn model do."""
    end, relative_error = METHODS[method]
    cases = json.loads((HERE / "memory.json").read_text())["device"]
    ratios = [errors(measured) for key, measured in cases.items() if key.endswith(end)]
    drawn = ratios[zlib.crc32(case.name.encode()) % len(ratios)]
    for size, ratio in zip(SIZES, (drawn[0], *drawn), strict=True):
        parts = {"temporaries": int(ratio * device_bytes(case, size))}
        yield Footprint(size, parts, method, relative_error, ABSOLUTE_ERROR_BYTES)


def errors(case):
    """Estimated over measured memory at the four batch sizes of a model."""
    estimates = {f["batch_size"]: sum(f["device_bytes_by_part"].values()) for f in case["description"]["footprints"]}
    return [estimates[size] / case["peaks"][str(size)] for size in sorted(estimates)]


def cases():
    """Every group with its cases and what is known before the first trial."""
    surfaces = range(FIRST_SURFACE, FIRST_SURFACE + SURFACES)
    yield "surfaces, a GPU's memory", [(Surface, seed, seed) for seed in surfaces], (NONE, *METHODS)
    yield "surfaces, host memory on a CPU", [(OnCpu, seed, seed) for seed in surfaces], (NONE, *METHODS)
    for job in ("device", "host"):
        yield f"table {job}", [(Table, job, seed) for seed in range(SEEDS)], (NONE, MEASURED)
    yield "curves of real GPUs", [(grid, name, seed) for name in CURVES for seed in range(3)], (NONE, *METHODS)


def grid(name):
    """A curve with the usual batch sizes."""
    return Curve(name, interpolated=True)


def search(task):
    """One search: regret, OOMs, trials, seconds."""
    make, what, seed, known = task
    case = make(what)
    description = case.description()
    if known != MEASURED:
        description = replace(description, footprints=() if known == NONE else tuple(footprints(case, known)))
    case.description = lambda: description
    draw = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    peer = peers.Autofit("autofit")
    tried = list(peer.search(case, TRIALS, draw))
    chosen, again = peer.finish(case, tried, draw)
    spent = [measurement for _, measurement in [*tried, *again]]
    regret = 1.0 if chosen is None else 1 - case.true_rate(chosen) / case.best(list(case.space.configs()))
    return max(0.0, regret), sum(m.outcome.is_oom for m in spent), len(spent), sum(m.seconds for m in spent)


def interval(values, statistic):
    """95 % interval of a statistic, by bootstrap."""
    draw, values = np.random.default_rng(0), np.asarray(values)
    return np.percentile(
        [statistic(values[draw.integers(len(values), size=len(values))]) for _ in range(1000)], [2.5, 97.5]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    processes = parser.parse_args().processes
    columns = "".join(f"{name:>24}" for name in ("median regret", "90th percentile", "OOMs", "trials", "seconds"))
    with ProcessPoolExecutor(processes) as pool:
        for group, members, knowns in cases():
            print(f"{group}, {len(members)} searches a line\n{'':22}{columns}")
            for known in knowns:
                rows = list(pool.map(search, [(*member, known) for member in members], chunksize=4))
                regrets, ooms, trials, seconds = (list(column) for column in zip(*rows, strict=True))
                median, high = (interval(regrets, lambda v, q=q: np.percentile(v, q)) for q in (50, 90))
                cells = [
                    f"{np.percentile(regrets, 50):.1%} ({median[0]:.1%} to {median[1]:.1%})",
                    f"{np.percentile(regrets, 90):.1%} ({high[0]:.1%} to {high[1]:.1%})",
                ]
                for values, form in ((ooms, ".2f"), (trials, ".1f"), (seconds, ".0f")):
                    low, top = interval(values, np.mean)
                    cells.append(f"{statistics.mean(values):{form}} ({low:{form}} to {top:{form}})")
                print(f"  {known:20}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
