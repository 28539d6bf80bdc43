"""A fake launcher whose trials follow formulas.

The engine is tested with it in milliseconds, without processes.
"""

from dataclasses import fields, replace

from autofit.records.description import Description
from autofit.records.knobs import FitConfig
from autofit.records.machine import ON_CPU, Machine
from autofit.records.result import Answer
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search import rates
from autofit.search.context import ConfigArrays
from autofit.trial.launcher import ignore
from autofit.tuning import engine
from autofit.tuning.request import TuneRequest, reuse
from autofit.tuning.settings import Options, TuneSettings

MIB = 2**20
MACHINE = Machine("Linux", "3.11", "some CPU", 4, 16384 * MIB, 16384 * MIB)
KNOBS = ("batch_size", "workers", "max_queue_size", "use_multiprocessing")

DESCRIPTION = Description(
    input_kind="PyDataset",
    knobs={knob: knob for knob in KNOBS},
    sample_count=2000,
    sample_bytes=MIB // 4,
    parameter_count=1000,
    parameter_bytes=4000,
    optimizer_bytes=8000,
    jit_compile=False,
    fingerprint="model",
    validation_knobs={knob: knob for knob in KNOBS},
    process_bytes=100 * MIB,
    versions={"keras": "3"},
)


class FakeLauncher:
    """Memory is affine in the batch and in the queued batches.

    Compute saturates with the batch; input scales with workers.

    Args:
        special: forced outcomes, by config or by (role, config); "describe" forces the description.
        cliff: batch size above which both memories jump by a GiB.
        changed: changes the measurement of a trial, by its spec.
    """

    def __init__(
        self, special=None, cliff=None, changed=lambda spec, measured: measured
    ):
        self.special = special or {}
        self.cliff = cliff
        self.changed = changed
        self.specs = []

    def configs(self, role):
        """The configs that ran in this role."""
        return [spec.config for spec in self.specs if spec.role == role]

    def run(self, spec, on_phase=ignore):
        self.specs.append(spec)
        on_phase(Phase.TRAINING)
        if spec.role == "describe":
            return self.special.get("describe", DESCRIPTION)
        forced = self.special.get(
            (spec.role, spec.config), self.special.get(spec.config)
        )
        if forced is not None:
            return Measurement(
                forced,
                Evidence(f"made to be {forced.value}"),
                1.0,
                traceback="Traceback: boom",
            )
        return self.changed(spec, self.measure(spec))

    def measure(self, spec):
        config, limits = spec.config, spec.limits
        batch = config.batch_size
        workers = config.workers
        processes = config.use_multiprocessing
        jump_mib = 1024 if self.cliff is not None and batch > self.cliff else 0
        device = (10 + batch + jump_mib) * MIB
        queued_mib = (
            (config.max_queue_size + 1) * batch / 4 if config.has_queue else batch / 4
        )
        host = int(
            (100 + queued_mib + jump_mib + (200 * workers if processes else 0)) * MIB
        )
        if limits.device_bytes is not None and device > limits.device_bytes:
            peaks = {"device_peak_bytes": limits.device_bytes, "host_peak_bytes": host}
            return Measurement(
                Outcome.DEVICE_OOM, Evidence("device full"), 20.0, **peaks
            )
        if host > limits.host_bytes:
            evidence = Evidence("host full", last_host_bytes=limits.host_bytes + MIB)
            return Measurement(
                Outcome.HOST_OOM, evidence, 3.0, host_peak_bytes=limits.host_bytes + MIB
            )
        compute = 4000 * batch / (batch + 64)
        inputs = 900 * min(workers, 4) * (1.2 if processes else 1)
        return Measurement(
            Outcome.OK,
            Evidence("ran to its end"),
            2.0,
            samples_per_second=min(compute, inputs),
            spread=0.01,
            step_seconds=0.1,
            steps=20,
            compute_samples_per_second=compute,
            input_samples_per_second=inputs,
            device_peak_bytes=device,
            host_peak_bytes=host,
        )


def tune(request, launcher, emit):
    """Return the stored result of a request, or tune."""
    return reuse(request, emit) or engine.tune(request, launcher, emit)


def tuned(tmp_path, launcher=None, **changes):
    """The record of a tune."""
    return tune(
        make_request(tmp_path, **changes),
        launcher or FakeLauncher(),
        lambda event: None,
    )


def make_request(tmp_path, *, device_bytes=None, host_bytes=8192 * MIB, **changes):
    """A request with a storage of its own; the same arguments make the same request."""
    settings = {
        name: changes.pop(name)
        for name in TuneSettings.model_fields
        if name in changes and name != "device"
    }
    options = {
        name: changes.pop(name) for name in Options.model_fields if name in changes
    }
    defaults = {
        # ten times as fast as SQLite, which other tests use
        "storage": f"journal:{tmp_path / 'trials.log'}",
        "max_trials": 6,
        "device_memory": device_bytes or "90%",
        "host_memory": host_bytes,
        "options": {
            "min_updates": 1,
            **options,
        },  # the default would leave 2,000 samples to small batches
    }
    arguments = {
        "workload_fingerprint": "workload",
        "machine": MACHINE,
        "placement": ON_CPU,
        "limits": Limits(device_bytes, host_bytes),
        "settings": TuneSettings(**defaults | settings),
    }
    return TuneRequest(**arguments | changes)


def with_fields(record, **changes):
    """A copy of a record with some fields changed, its own or those of its fastest config."""
    of_answer = {field.name for field in fields(Answer)} & set(changes)
    fastest = replace(record.fastest, **{name: changes.pop(name) for name in of_answer})
    return replace(record, **{"fastest": fastest, **changes})


def use_quick_models(monkeypatch):
    """Let the models fit one size of their errors instead of several, which is much quicker."""
    monkeypatch.setattr(rates, "_RUN_FACTORS", (1.0,))
    monkeypatch.setattr(rates, "_INPUT_ERRORS", (0.0,))
    monkeypatch.setattr(rates, "_SCALES", (1.0,))


def played(launcher, spec):
    """The phases of a trial, and its measurement or description."""
    phases = []
    result = launcher.run(spec, phases.append)
    return phases, result


def collect(engine, *args):
    """The events that a part of the engine emits, and the value that it returns."""
    events = []
    return events, engine(*args, emit=events.append)


def arrays(*configs, cores=8):
    """Configs as the search's models take them."""
    return ConfigArrays(configs, cores)


def searched(events):
    """The trials of the search among the events of a tune."""
    return [
        event
        for event in events
        if isinstance(event, Trial) and event.stage == "search"
    ]


BASELINE = FitConfig(32, 1, 10, False)
