"""How much of a GPU's limit the search dares to use after two, four and six trials, and how often it runs out: simulated.

Peaks are affine in the batch and scatter as those of XLA's programs do. The estimate before the first trial is off by up to
30 %, as a whole. The configs are those that autofit's own search proposes.

    python tests/benchmarks/gpu_memory.py [--searches 600] [--tree PATH]

`--tree` runs the autofit of another checkout, for a comparison; one that is older than `records.description` needs the
script of its own time, as the second table of the output did.
"""

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from simulated import GIB, description

NOISE = 0.005  # relative, of a peak: XLA allocates a program's buffers at once
WRONG = 0.3  # relative, of the estimate, at most
COUNTS = (2, 4, 6)  # trials
RATE_NOISE = 0.02


def search(job):
    """Run one search; returns the largest batch allowed after 2, 4 and 6 trials over the true one, and its OOMs."""
    seed, tree = job
    sys.path.insert(0, tree)
    from autofit.records.description import Footprint
    from autofit.records.states import Outcome
    from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
    from autofit.search.context import SearchContext
    from autofit.search.frontier import FrontierSearch
    from autofit.search.memory import Memory
    from autofit.search.space import SearchSpace, batch_grid

    draw = np.random.default_rng([seed, 14])
    limit = int(draw.choice([8, 16, 24, 40, 80])) * GIB
    held = limit * draw.uniform(0.04, 0.35)  # weights, optimizer
    true = round(math.exp(draw.uniform(math.log(32), math.log(20_000))))  # the largest batch that fits
    sample_bytes = (limit - held) / true
    half = true * math.exp(draw.uniform(math.log(0.05), math.log(2)))  # batch of half the highest rate
    wrong = 1 + draw.uniform(-WRONG, WRONG)
    parts = [{"weights": int(held * wrong), "activations": int(sample_bytes * batch * wrong)} for batch in (32, 128)]
    described = description(Footprint(b, p, "XLA buffer assignment", 0.5) for b, p in zip((32, 128), parts, strict=True))
    limits, sizes = Limits(limit, 1024 * GIB), batch_grid(1, 2**16)
    space = SearchSpace(batch_size=tuple(sizes))
    context = SearchContext(described, limits, cores=16, on_cpu=False)
    frontier = FrontierSearch(space, FitConfig(32), context)
    trials, shares, ooms = [], {}, 0
    for number in range(1, max(COUNTS) + 1):
        proposal = frontier.propose(tuple(trials)).proposal
        if proposal is not None:
            batch = proposal.config.batch_size
            peak = int((held + sample_bytes * batch) * (1 + draw.normal(0, NOISE)))
            if peak > limit:
                ooms += 1
                measured = Measurement(Outcome.DEVICE_OOM, Evidence("simulated"), 20.0, device_peak_bytes=limit)
            else:
                rate = 10_000 * batch / (batch + half) * (1 + draw.normal(0, RATE_NOISE))
                measured = Measurement(
                    Outcome.OK,
                    Evidence("simulated"),
                    5.0,
                    samples_per_second=rate,
                    spread=2 * RATE_NOISE,
                    step_seconds=batch / rate,
                    steps=50,
                    compute_samples_per_second=rate,
                    input_samples_per_second=100 * rate,
                    device_peak_bytes=peak,
                    host_peak_bytes=GIB,
                )
            trials.append(Trial(proposal.config, measured))
        if number in COUNTS:
            shares[number] = largest(Memory(context, trials), FitConfig, limit) / true
    return [shares[count] for count in COUNTS], ooms, len(trials)


def largest(memory, make_config, limit):
    """The largest batch whose upper bound is within the limit, by bisection."""
    low, high = 1, 2**17
    while high - low > 1:
        middle = (low + high) // 2
        if memory.device(make_config(middle)).upper_bytes <= limit:
            low = middle
        else:
            high = middle
    return low


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=600)
    parser.add_argument("--tree", default=str(Path(__file__).resolve().parents[2]))
    arguments = parser.parse_args()
    jobs = [(seed, arguments.tree) for seed in range(arguments.searches)]
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(search, jobs, chunksize=8))
    print(f"{len(rows)} searches on simulated GPUs: largest batch allowed over the true largest")
    print("after  10 %  median  90 %  most")
    for column, count in enumerate(COUNTS):
        values = np.array([row[0][column] for row in rows])
        low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
        print(f"{count:>5}  {low:.2f}    {middle:.2f}  {high:.2f}  {values.max():.2f}")
    print(f"out of memory: {sum(row[1] for row in rows)} of {sum(row[2] for row in rows)} trials")


if __name__ == "__main__":
    main()
