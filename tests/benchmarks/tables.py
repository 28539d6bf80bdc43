"""Real jobs measured over a coarse grid, stored for searches to replay.

    python tests/benchmarks/tables.py [JOB ...] [--backend NAME] [--rounds N]
                measure what is missing in tables/*.json (five minutes a job and round)

autofit's own trials run each job of `jobs.py` over four or five batch sizes, with one thread, and 2 and 4 threads or
processes with queues of 2 and 10: 36 or 45 configs, in rounds, each in another order. Two readings of a config differ by 9
to 28 % (median of a job); the jobs gil, reading and decoding were therefore read four times, the others twice, as those on
JAX and torch. Memory is read without binding limits; a replay reports an OOM where a reading exceeds the job's limits.
"""

import argparse
import itertools
import json
import pathlib
import platform
import random
import statistics
from dataclasses import asdict, dataclass

from generators import result_of
from pydantic import TypeAdapter

from autofit import backends
from autofit.backends.protocol import TENSORFLOW
from autofit.machine.host import detect
from autofit.records.description import Description
from autofit.records.knobs import KNOBS
from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, TrialSpec
from autofit.search.space import SearchSpace
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "tables"
OOM_SECONDS = 22.0  # of a device OOM: each failing allocation is retried for 10 s
SECONDS = 300.0
MEASURE_SECONDS = 1.0
DESCRIPTIONS, MEASUREMENTS = TypeAdapter(Description), TypeAdapter(Measurement)


@dataclass(frozen=True)
class TrialContext:
    """A job: its bottleneck, the batch sizes of its table, and its limits in MiB (None: no binding limit)."""

    what: str
    batch_sizes: tuple
    device_mib: int | None = None
    host_mib: int | None = None


JOBS = {
    "compute": TrialContext("a deep CNN on pictures in memory", (8, 16, 32, 64, 128)),
    "reading": TrialContext("records of 256 KiB read from disk, past the page cache", (8, 32, 64, 128, 256)),
    "gil": TrialContext("text hashed in pure Python", (16, 64, 128, 256, 512)),
    "decoding": TrialContext("JPEG photographs decoded and cropped", (8, 16, 32, 64, 96)),
    "pickling": TrialContext("volumes of 1 MiB, made quickly and heavy to hand over", (2, 4, 8, 16, 32)),
    "device": TrialContext("a CNN with large activations under a device limit", (16, 32, 64, 96), device_mib=100),
    "host": TrialContext("large pictures under a host limit", (4, 8, 16, 32), host_mib=1000),
    "tiny": TrialContext("a tiny network on a table", (32, 128, 1024, 4096)),
}


@dataclass(frozen=True)
class TableSpace(SearchSpace):
    """The configs of a table, and no others."""

    legal: tuple = ()

    def knobs(self):
        """The knobs, `legal` not among them."""
        return {knob: values for knob, values in super().knobs().items() if knob in KNOBS}

    def configs(self):
        """Every config of the table with these batch sizes."""
        return (config for config in self.legal if config.batch_size in self.batch_size)


class Table:
    """The measurements of one job, replayed: a trial is one of the readings of its config, drawn at random.

    The true rate is the median of the readings and the true peak their mean, so that a search that draws the highest
    reading overestimates the rate, as on a real machine.
    """

    on_cpu = True

    def __init__(self, job, backend=TENSORFLOW):
        frozen = json.loads(path_of(job, backend).read_text())
        self.name, self._description = f"table {job}", DESCRIPTIONS.validate_python(frozen["description"])
        self._readings = {}
        for row in frozen["readings"]:
            self._readings.setdefault(FitConfig(**row["config"]), []).append(
                MEASUREMENTS.validate_python(row["measurement"])
            )
        self.cores, self.machine, self.versions = frozen["cores"], frozen["machine"], frozen["versions"]
        context = JOBS[job]
        self.limits = Limits(
            context.device_mib * 2**20 if context.device_mib else None,
            context.host_mib * 2**20 if context.host_mib else frozen["memory_bytes"],
        )
        knobs = next(iter(self._readings)).values()
        values = {knob: tuple(sorted({getattr(c, knob) for c in self._readings})) for knob in knobs}
        self.space = TableSpace(**values, legal=tuple(self._readings))

    def description(self):
        """The description by the describing trial."""
        return self._description

    def fits(self, config):
        """Whether a config's peaks are within the limits."""
        readings = self._readings[config]
        device = statistics.mean(m.device_peak_bytes or 0 for m in readings)
        host = statistics.mean(m.host_peak_bytes for m in readings)
        return (self.limits.device_bytes is None or device <= self.limits.device_bytes) and host <= self.limits.host_bytes

    def true_rate(self, config):
        """Samples per second; 0 where it does not fit."""
        return statistics.median(m.samples_per_second for m in self._readings[config]) if self.fits(config) else 0.0

    def best(self, configs):
        """The highest rate among configs."""
        return max(self.true_rate(c) for c in configs)

    def seconds(self):
        """Seconds that the whole grid took, every reading of every config."""
        return sum(m.seconds for readings in self._readings.values() for m in readings)

    def rounds(self):
        """How often each config was read."""
        return min(len(readings) for readings in self._readings.values())

    def run(self, config, draw):
        """A trial."""
        reading = self._readings[config][int(draw.integers(len(self._readings[config])))]
        if self.fits(config):
            return reading
        over = self.limits.device_bytes is not None and (reading.device_peak_bytes or 0) > self.limits.device_bytes
        if over:
            evidence = Evidence("device full")
            return Measurement(Outcome.DEVICE_OOM, evidence, OOM_SECONDS, host_peak_bytes=reading.host_peak_bytes)
        evidence = Evidence("host full", last_host_bytes=self.limits.host_bytes)
        return Measurement(Outcome.HOST_OOM, evidence, reading.seconds / 2, host_peak_bytes=self.limits.host_bytes)


def grid(job):
    """The configs of a job's table."""
    for batch in JOBS[job].batch_sizes:
        yield FitConfig(batch, 1, 10, False)
        for workers, queue, processes in itertools.product((2, 4), (2, 10), (False, True)):
            yield FitConfig(batch, workers, queue, processes)


def path_of(job, backend):
    """The file of a job's table on a backend."""
    return FOLDER / (f"{job}.json" if backend == TENSORFLOW else f"{job}-{backend}.json")


def workload_of(job, backend):
    """A job as autofit is given it."""
    kwargs = {"model_kwargs": {"job": job}, "data_kwargs": {"job": job}, "backend": backend}
    return Workload(*(Reference(f"jobs.py:{name}", str(HERE)) for name in ("build_model", "Data")), **kwargs)


def measure(job, backend, rounds):
    """Measure what is missing in the table of a job; yields each reading."""
    path = path_of(job, backend)
    path.parent.mkdir(exist_ok=True)
    machine = detect()
    frozen = json.loads(path.read_text()) if path.exists() else {"readings": []}
    frozen["machine"] = f"{machine.processor}, {machine.cores} cores, Python {platform.python_version()}"
    frozen["cores"], frozen["memory_bytes"] = machine.cores, machine.memory_bytes
    device = 10 * 2**30 if JOBS[job].device_mib else None
    limits = Limits(device, 18 * 2**30)
    with ProcessLauncher(workload_of(job, backend), None) as launcher:
        if "description" not in frozen:
            spec = TrialSpec(Role.DESCRIBE, FitConfig(32), limits, SECONDS, batch_sizes=(1, 8, 32, 128, 512, 2048))
            description = result_of(launcher.run(spec))
            frozen["description"] = DESCRIPTIONS.dump_python(description, mode="json")
            frozen["versions"] = dict(description.versions)
        for number in range(rounds):
            order = list(grid(job))
            random.Random(number).shuffle(order)
            for config in order:
                if sum(row["config"] == asdict(config) for row in frozen["readings"]) > number:
                    continue
                measurement = result_of(launcher.run(TrialSpec(Role.MEASURE, config, limits, SECONDS, MEASURE_SECONDS)))
                assert measurement.outcome is Outcome.OK, measurement.evidence
                row = {"config": asdict(config), "measurement": MEASUREMENTS.dump_python(measurement, mode="json")}
                row["measurement"]["evidence"] = asdict(Evidence("ran to its end"))
                frozen["readings"].append(row)
                path.write_text(
                    json.dumps(frozen, indent=None, separators=(",", ":")).replace('{"config"', '\n{"config"') + "\n"
                )
                yield config, measurement


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], metavar="JOB", help=f"one of {', '.join(JOBS)}")
    parser.add_argument("--backend", choices=backends.NAMES, default=TENSORFLOW, help="the backend (default: tensorflow)")
    parser.add_argument("--rounds", type=int, default=4, help="how often each config is read (default: 4)")
    arguments = parser.parse_args()
    for job in arguments.jobs or JOBS:
        for config, reading in measure(job, arguments.backend, arguments.rounds):
            print(f"{job}: {config}: {reading.samples_per_second:,.0f} samples/s in {reading.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
