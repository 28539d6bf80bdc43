"""Throughput curves of real GPUs that others measured, as cases for a search: samples per second by
batch size.

They come from the published artifacts of Zeus (You, Chung and Chowdhury, NSDI 2023; Apache-2.0) and
of Gavel (Narayanan et al., OSDI 2020; MIT). All sizes of the usual grid can be tried; their rates
are interpolated between the measured ones (linear in the logarithms). How much memory they took was
not published: it is taken as affine in the batch size, so that the largest measured size takes 95 %
of the limit. Nothing else is known of a workload, as on a backend without an estimate.
"""

import json
import pathlib
import zlib
from dataclasses import replace

import numpy as np
from surfaces import GIB, OOM_SECONDS, START_SECONDS, described, reading

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.search.space import SearchSpace, batch_grid

CURVES = json.loads((pathlib.Path(__file__).parent / "curves.json").read_text())
LIMIT = 16 * GIB
LARGEST_SHARE = 0.95  # of the limit, which the largest measured batch takes
BEYOND = 2  # times the largest measured size: sizes up to this do not fit
# The pipeline alone over the fastest step: these jobs were measured with data that kept
# up.
INPUT_RATIO = 4.0


class Curve:
    """One curve; the share of memory that does not grow with the batch is drawn from its name."""

    on_cpu = False
    cores = 8

    def __init__(self, name):
        self.name = name
        measured = {int(size): rate for size, rate in CURVES[name].items()}
        sizes = sorted(measured)
        largest = max(measured)
        tried = batch_grid(sizes[0], BEYOND * largest)
        self.space = SearchSpace(batch_size=tuple(tried))
        logs = np.log([[size, measured[size]] for size in sizes]).T
        within = [size for size in tried if size <= largest]
        self.rates = dict(
            zip(within, np.exp(np.interp(np.log(within), *logs)).tolist(), strict=True)
        )
        self.limits = Limits(int(LIMIT), int(64 * GIB))
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        self.constant = LIMIT * draw.uniform(0.05, 0.4)
        self.per_sample = (LARGEST_SHARE * LIMIT - self.constant) / largest

    def description(self):
        return described(self.name, ["batch_size"], 1000, GIB)

    def true_rate(self, config):
        return self.rates.get(config.batch_size, 0.0)

    def run(self, config, draw):
        rate = self.true_rate(config)
        device = self.constant + self.per_sample * config.batch_size
        if not rate:
            return Measurement(
                Outcome.DEVICE_OOM, Evidence("device full"), START_SECONDS + OOM_SECONDS
            )

        made = INPUT_RATIO * max(self.rates.values())
        return replace(
            reading(config, rate, rate, made, device, draw),
            host_peak_bytes=int(3 * GIB),
        )
