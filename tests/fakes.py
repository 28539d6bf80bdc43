"""A launcher from formulas: what stands above the process wall is tested against it in milliseconds."""

from autofit.records.machine import Machine
from autofit.records.trial import Description, Evidence, FitConfig, Limits, Measurement, Outcome
from autofit.tuning.request import TuneRequest

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
    """Memory is affine in the batch and what the queue holds; compute saturates with the batch; input scales with workers.

    Args:
        special: outcomes of single configs, by config or by (role, config).
        cliff: above this batch size both memories are a GiB higher than anybody would think.
        validates: the most samples a batch with which validation fits.
    """

    def __init__(self, special=None, cliff=None, validates=None):
        self.special, self.cliff, self.validates = special or {}, cliff, validates
        self.specs = []
        self.closed = False

    def run(self, spec):
        self.specs.append(spec)
        yield "working"
        if spec.role == "describe":
            forced = self.special.get("describe")
            return forced or DESCRIPTION
        forced = self.special.get((spec.role, spec.config), self.special.get(spec.config))
        if forced is not None:
            return Measurement(forced, Evidence(f"made to be {forced.value}"), 1.0, traceback="Traceback: boom")
        if self.validates and spec.role == "confirm":
            samples = spec.validation_batch_size or spec.config.batch_size
            if samples > self.validates:
                return Measurement(Outcome.DEVICE_OOM, Evidence("device full", phase="validation"), 20.0)
        return self.measure(spec)

    def measure(self, spec):
        c, limits = spec.config, spec.limits
        surprise = 1024 if self.cliff is not None and c.batch_size > self.cliff else 0
        device = (10 + c.batch_size + surprise) * MIB
        held = (c.max_queue_size + 1) * c.batch_size / 4 if c.has_queue else c.batch_size / 4
        host = int((100 + held + surprise + (200 * c.workers if c.use_multiprocessing else 0)) * MIB)
        if limits.device_bytes is not None and device > limits.device_bytes:
            return Measurement(
                Outcome.DEVICE_OOM,
                Evidence("device full"),
                20.0,
                device_peak_bytes=limits.device_bytes,
                host_peak_bytes=host,
            )
        if host > limits.host_bytes:
            evidence = Evidence("host full", last_host_bytes=limits.host_bytes + MIB)
            return Measurement(Outcome.HOST_OOM, evidence, 3.0, host_peak_bytes=limits.host_bytes + MIB)
        compute = 4000 * c.batch_size / (c.batch_size + 64)
        inputs = 900 * min(c.workers, 4) * (1.2 if c.use_multiprocessing else 1)
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

    def close(self):
        self.closed = True


def make_request(tmp_path, *, device_bytes=None, host_bytes=8192 * MIB, **changes):
    """A question with its own storage; the same arguments ask the same thing."""
    asked = {
        "workload_fingerprint": "workload",
        "machine": MACHINE,
        "device": None,
        "limits": Limits(device_bytes, host_bytes),
        "limits_asked": (str(device_bytes), str(host_bytes)),
        "storage": f"journal:{tmp_path / 'trials.log'}",  # ten times as fast as SQLite, which other tests use
        "max_trials": 6,
    }
    return TuneRequest(**asked | changes)


def drain(events):
    """The events of a generator, and what it returned."""
    returned = []

    def collect():
        returned.append((yield from events))

    seen = list(collect())
    return seen, returned[0]


BASELINE = FitConfig(32, 1, 10, False)
