"""Records that the tests of this folder draw."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.records.description import EstimateRecord, EstimateRow, Footprint
from autofit.records.knobs import FitConfig
from autofit.records.result import (
    Answer,
    CallSource,
    Cell,
    FailedTune,
    Speedup,
    SweepRecord,
    TuneRecord,
)
from autofit.records.states import Outcome, Role, Stage
from autofit.records.trial import Limits, Trial, TrialSpec
from autofit.report.console.tables import summarise
from tests.fakes import DESCRIPTION, MACHINE, MIB, FakeLauncher

CALL_SOURCE = CallSource(
    imports=("from photos import Photos, build_model",),
    model="build_model(width=8)",
    data="Photos",
    data_kwargs={"folder": "photos"},
    validation="Photos",
    validation_kwargs={"part": "validation"},
)
LIMITS = Limits(150 * MIB, 8192 * MIB)
BASELINE = FitConfig(32, 1, 10, False)
CHOSEN = FitConfig(64, 4, 32, False)
OWN = FitConfig(32, 2, 2, False)
COMPARED = (BASELINE, OWN, CHOSEN)
TRIED = (
    FitConfig(8, 1, 10, False), OWN, FitConfig(80, 4, 32, True), FitConfig(64, 4, 32, True),
    FitConfig(72, 2, 32, True), FitConfig(64, 1, 10, False), CHOSEN,
)  # fmt: skip  # one item a line would be longer, not clearer


COMMON = {  # of a tune, with or without a result
    "machine": MACHINE,
    "device": "GPU 0: Tesla T4",
    "description": DESCRIPTION,
    "seconds": 125.0,
    "describing_seconds": 8.0,
    "started_at": 1e9,
    "call_source": CALL_SOURCE,
}


def trial(config, why=""):
    """What the made-up launcher measures; above a batch of 64 it runs out of device memory."""
    return Trial(
        config,
        FakeLauncher(cliff=64).measure(TrialSpec(Role.MEASURE, config, LIMITS, 60.0)),
        why,
    )


def summary_of(record):
    """What a command prints of a result."""
    console = Console(width=80, file=io.StringIO(), highlight=False)
    summarise(record, console)
    return console.file.getvalue()


@pytest.fixture(scope="package")
def record():
    """A tune under a device limit, with trials that ran out of memory.

    The search itself has no part in it.
    """
    trials = tuple(trial(config, "made up") for config in TRIED)
    chosen = trials[-1].measurement
    return TuneRecord(
        **COMMON,
        limits=LIMITS,
        trials=trials,
        runs=(
            replace(trial(CHOSEN), stage=Stage.CHOSEN),
            replace(trial(BASELINE), stage=Stage.BESIDE),
        ),
        fastest=Answer(
            config=CHOSEN,
            samples_per_second=chosen.samples_per_second,
            spread=0.031,
            device_peak_bytes=chosen.device_peak_bytes,
            host_peak_bytes=chosen.host_peak_bytes,
            speedup=Speedup(BASELINE, Outcome.OK, 2.22, 2.17, 2.28, 3),
            data_kwargs=CHOSEN.values(),
        ),
        same_batch=None,
        stop_reason="all trials are spent",
    )


@pytest.fixture(scope="package")
def two_answers(record):
    """The same tune with an answer at the own batch size, and runs of it."""
    speedup = Speedup(BASELINE, Outcome.OK, 1.48, 1.41, 1.56, 3)
    (ran,) = (trial for trial in record.trials if trial.config == OWN)
    own = replace(
        record.fastest,
        config=OWN,
        samples_per_second=ran.samples_per_second,
        device_peak_bytes=ran.measurement.device_peak_bytes,
        host_peak_bytes=ran.measurement.host_peak_bytes,
        speedup=speedup,
        data_kwargs=OWN.values(),
    )
    runs = tuple(
        replace(trial(config), stage=Stage.BESIDE)
        for config in COMPARED
        for _ in range(3)
    )
    return replace(record, same_batch=own, runs=runs)


@pytest.fixture(scope="package")
def failed_tune():
    """A tune in which nothing fits."""
    limits = Limits(10 * MIB, 8192 * MIB)
    spec = TrialSpec(Role.MEASURE, FitConfig(1, 1, 10, False), limits, 60.0)
    return FailedTune(
        **COMMON,
        limits=limits,
        trials=(Trial(spec.config, FakeLauncher().measure(spec), "made up"),),
        problem="nothing fits: a made-up sentence",
        memory="device",
        batch_size=1,
        needed_bytes=11 * MIB,
    )


@pytest.fixture(scope="package")
def sweep(record):
    """A cell with a result, one that failed and one that waits."""
    cells = (
        Cell({"model_kwargs.width": 8, "data_kwargs.size": "s"}, record),
        Cell(
            {"model_kwargs.width": 16, "data_kwargs.size": "s"},
            None,
            "ValueError: no\n  File x\nthe last line",
        ),
        Cell({"model_kwargs.width": 32, "data_kwargs.size": "s"}),
    )
    return SweepRecord(
        title="widths", cells=cells, machine=MACHINE, seconds=60.0, started_at=1e9
    )


@pytest.fixture(scope="package")
def estimate():
    """Two batch sizes, the larger of which is above the device limit with its upper bound."""
    rows = []
    for batch in (8, 32):
        device = {"weights": 20 * MIB, "activations": batch * MIB, "temporaries": 0}
        host = {"process": 500 * MIB, "queue": 2 * batch * MIB}
        rows.append(
            EstimateRow(
                batch,
                device,
                host,
                sum(device.values()) + 10 * MIB,
                700 * MIB,
                fits=batch == 8,
            )
        )
    footprint = Footprint(
        8, rows[0].device_bytes_by_part, "liveness of the traced step", 0.12
    )
    description = replace(DESCRIPTION, footprints=(footprint,))
    limits = Limits(60 * MIB, 8192 * MIB)
    return EstimateRecord(
        description,
        FitConfig(None, 4, 10, True),
        limits,
        MACHINE,
        "GPU 0: Tesla T4",
        tuple(rows),
        8,
    )
