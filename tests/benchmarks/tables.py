"""Real jobs measured over a coarse grid, stored for searches to replay.

autofit's own trials ran each job over four or five batch sizes, with one thread, and 2 and 4
threads or processes with queues of 2 and 10: 36 or 45 configs, in rounds, each in another order.
Two readings of a config differ by 9 to 28 % (median of a job); the jobs gil, reading and decoding
were therefore read four times, the others twice. Memory was read without binding limits; a replay
reports an OOM where a reading exceeds the job's limits. Each row of `readings` is a trial that was
OK.
"""

import json
import pathlib
import statistics
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from autofit.records.description import Description
from autofit.records.knobs import DATA_KNOBS, KNOBS, FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.search.space import SearchSpace

FOLDER = pathlib.Path(__file__).parent / "tables"
OOM_SECONDS = 22.0  # of a device OOM: each failing allocation is retried for 10 s
FULL = Evidence("memory full")
JOBS = {  # limits of device and host in MiB (None: no binding limit)
    "compute": (None, None),  # a deep CNN on pictures in memory
    "reading": (None, None),  # records of 256 KiB read from disk, past the page cache
    "gil": (None, None),  # text hashed in pure Python
    "decoding": (None, None),  # JPEG photographs decoded and cropped
    "pickling": (None, None),  # volumes of 1 MiB, made quickly and heavy to hand over
    "device": (100, None),  # a CNN with large activations under a device limit
    "host": (None, 1000),  # large pictures under a host limit
    "tiny": (None, None),  # a tiny network on a table
}


@dataclass(frozen=True)
class TableSpace(SearchSpace):
    """The configs of a table, and no others."""

    legal: tuple = ()

    def knobs(self):
        """The knobs, `legal` not among them."""
        return {
            knob: values for knob, values in super().knobs().items() if knob in KNOBS
        }

    def configs(self):
        return (config for config in self.legal if config.batch_size in self.batch_size)


class Table:
    """The measurements of one job, replayed: a trial is one of the readings of its config, drawn at
    random.

    The true rate is the median of the readings and the true peak their mean, so that a search that
    draws the highest reading overestimates the rate, as on a real machine.
    """

    on_cpu = True

    def __init__(self, job):
        frozen = json.loads((FOLDER / f"{job}.json").read_text())
        self.name = f"table {job}"
        self.cores = frozen["cores"]
        self._description = TypeAdapter(Description).validate_python(
            frozen["description"]
        )
        self.readings = {}
        for row in frozen["readings"]:
            fields = dict(zip(frozen["columns"], row, strict=True))
            config = FitConfig(
                **{knob: fields.pop(knob) for knob in DATA_KNOBS if knob in fields}
            )
            self.readings.setdefault(config, []).append(
                Measurement(Outcome.OK, Evidence("ran to its end"), **fields)
            )
        device_mib, host_mib = JOBS[job]
        self.limits = Limits(
            device_mib and device_mib * 2**20,
            host_mib * 2**20 if host_mib else frozen["memory_bytes"],
        )
        knobs = next(iter(self.readings)).values()
        values = {
            knob: tuple(sorted({getattr(c, knob) for c in self.readings}))
            for knob in knobs
        }
        self.space = TableSpace(**values, legal=tuple(self.readings))

    def description(self):
        return self._description

    def fits(self, config):
        readings = self.readings[config]
        device = statistics.mean(m.device_peak_bytes or 0 for m in readings)
        host = statistics.mean(m.host_peak_bytes for m in readings)
        return (
            self.limits.device_bytes is None or device <= self.limits.device_bytes
        ) and host <= self.limits.host_bytes

    def true_rate(self, config):
        """Samples per second; 0 where it does not fit."""
        return (
            statistics.median(m.samples_per_second for m in self.readings[config])
            if self.fits(config)
            else 0.0
        )

    def run(self, config, draw):
        reading = self.readings[config][int(draw.integers(len(self.readings[config])))]
        if self.fits(config):
            return reading
        if (
            self.limits.device_bytes is not None
            and (reading.device_peak_bytes or 0) > self.limits.device_bytes
        ):
            return Measurement(
                Outcome.DEVICE_OOM,
                FULL,
                OOM_SECONDS,
                host_peak_bytes=reading.host_peak_bytes,
            )
        evidence = replace(FULL, last_host_bytes=self.limits.host_bytes)
        return Measurement(
            Outcome.HOST_OOM,
            evidence,
            reading.seconds / 2,
            host_peak_bytes=self.limits.host_bytes,
        )
