"""Device memory: measured peaks against estimates without a run, and the largest batch that is
predicted to fit.

    python tests/benchmarks/memory.py            print the tables of the measurements in memory.json
    python tests/benchmarks/memory.py --measure  first measure the cases missing in memory.json
                                                 (all: an hour and a half)
    python tests/benchmarks/memory.py --onednn   the same with oneDNN's kernels and without XLA, in
                                                 memory-onednn.json

A case whose "description" is deleted from the file is estimated anew (ten seconds), against the
peaks that were measured.

Method. Everything is measured by autofit's own trials, each in a process of its own: device memory
is the peak of the allocator (on a CPU: TensorFlow's BFC allocator under a limit of 10 GiB). Nine
models x (float32, Adam), (mixed_float16, SGD) without XLA and (float32, SGD), (mixed_float16, Adam)
with it: every model meets every level of precision, optimizer and XLA, and every pair of levels
occurs. Each case runs at two small batches, b and 2b, and at 8b and 16b.

1. The estimates of a describing trial, at all four batches, without a run.
2. A hundred limits, each drawn uniformly between the smallest and the largest peak of a randomly
   drawn case: the largest measured batch whose predicted upper bound is within the limit (the
   default margin), against the largest that fits. The prediction has the estimates, and trials at b
   and 2b where they fit. Only the four measured batches count.
3. `batch_size="largest"` under five such limits of each case, of all multiples of 8: what it ends
   with, against the largest that fits, and its trials. Peaks between two measured batches lie on a
   line; rates do not matter.

The scale constants of the prediction were chosen on table 2, which is therefore not held out.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import platform
import random
import re
import statistics
import sys

import numpy as np
from pydantic import TypeAdapter

from autofit.machine.host import detect
from autofit.records.description import Description
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, Limits, Measurement, Trial, TrialSpec
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.frontier import LargestBatch
from autofit.search.memory import Memory
from autofit.search.space import SearchSpace
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "memory.json"
FROZEN_ONEDNN = HERE / "memory-onednn.json"
LIMITS = Limits(10 * 2**30, 18 * 2**30)
SECONDS = 600.0
COMBINATIONS = (
    ("float32", "adam", False),
    ("mixed_float16", "sgd", False),
    ("float32", "sgd", True),
    ("mixed_float16", "adam", True),
)
DESCRIPTIONS = TypeAdapter(Description)


def cases(*, onednn=False):
    """(key, model kwargs, batches) of every device case.

    With oneDNN without XLA, which does not use it.
    """
    import zoo

    for (name, form), (precision, optimizer, xla) in itertools.product(
        zoo.MODELS.items(), COMBINATIONS
    ):
        if onednn and xla:
            continue
        kwargs = {
            "name": name,
            "precision": precision,
            "optimizer": optimizer,
            "xla": xla,
        }
        batches = [form.first_probe * factor for factor in (1, 2, 8, 16)]
        yield (
            "/".join((name, precision, optimizer, "xla" if xla else "plain")),
            kwargs,
            batches,
        )


def measure_device(frozen, file, *, onednn):
    for key, kwargs, batches in cases(onednn=onednn):
        case = frozen["device"].setdefault(key, {"peaks": {}})
        lacking = [b for b in batches if str(b) not in case["peaks"]]
        if not lacking and "description" in case:
            continue
        functions = (
            Reference(f"zoo.py:{name}", str(HERE))
            for name in ("build_model", "Batches")
        )
        workload = Workload(
            *functions, model_kwargs=kwargs, data_kwargs={"name": kwargs["name"]}
        )
        with ProcessLauncher(workload) as launcher:
            spec = TrialSpec(
                Role.DESCRIBE,
                FitConfig(batches[0]),
                LIMITS,
                SECONDS,
                batch_sizes=tuple(batches),
                compile_all=True,
            )
            case["description"] = DESCRIPTIONS.dump_python(
                launcher.run(spec), mode="json"
            )
            for batch in lacking:
                trial = launcher.run(
                    TrialSpec(Role.MEASURE, FitConfig(batch), LIMITS, SECONDS, 0.5)
                )
                assert trial.outcome is Outcome.OK, trial.evidence
                case["peaks"][str(batch)] = trial.device_peak_bytes
        file.write_text(json.dumps(frozen).replace("}}, ", "}},\n") + "\n")
        print(key, case["peaks"], flush=True)


def print_estimates(frozen):
    print("\n1. Device memory estimated without a run")
    rows = [
        (
            key,
            abs(footprint.device_bytes / case["peaks"][str(footprint.batch_size)] - 1),
        )
        for key, case in frozen.items()
        for footprint in DESCRIPTIONS.validate_python(case["description"]).footprints
    ]
    groups = {"without XLA": "/plain$", "with XLA": "/xla$"}
    groups |= {
        f"  {name}": f"^{name}/"
        for name in sorted({key.partition("/")[0] for key, _ in rows})
    }
    for title, pattern in groups.items():
        if errors := sorted(error for key, error in rows if re.search(pattern, key)):
            middle = statistics.median(errors)
            most = errors[int(0.9 * len(errors))]
            print(
                f"  {title:24} n {len(errors):3}  median {middle:6.1%}  90 % within "
                f"{most:6.1%}  worst {errors[-1]:6.1%}"
            )


def print_limits(frozen, count=100, seed=0):
    chance = random.Random(seed)
    verdicts = collections.Counter()
    short = []
    keys = sorted(frozen)
    for _ in range(count):
        key = chance.choice(keys)
        case = frozen[key]
        peaks = {int(b): peak for b, peak in case["peaks"].items()}
        batches = sorted(peaks)
        limit = chance.uniform(min(peaks.values()), max(peaks.values()))
        fits = [b for b in batches if peaks[b] <= limit]
        tried = [b for b in batches[:2] if peaks[b] <= limit]
        evidence = Evidence("ran to its end")
        trials = [
            Trial(
                FitConfig(b),
                Measurement(Outcome.OK, evidence, device_peak_bytes=peaks[b]),
            )
            for b in tried
        ]
        description = DESCRIPTIONS.validate_python(case["description"])
        limits = Limits(int(limit), LIMITS.host_bytes)
        surrogate = Memory(SearchContext(description, limits, 1, True), trials)
        chosen = [
            b
            for b in batches
            if b in tried
            or surrogate.upper_bytes(ConfigArrays([FitConfig(b)], 1))[0, 0] <= limit
        ]
        right = max(fits)
        best = max(chosen, default=0)
        verdict = (
            "right" if best == right else "too small" if best < right else "too large"
        )
        verdicts[verdict] += 1
        if verdict == "too small":
            short.append(right / max(best, 1))
    print(f"\n2. The largest batch predicted to fit, {count} random limits")
    by = f", by {statistics.median(short):.0f} times (median)" if short else ""
    print(
        f"  right {verdicts['right']}, too small {verdicts['too small']}{by}, too large "
        f"{verdicts['too large']}"
    )


def print_largest(frozen, count=5, seed=0):
    chance = random.Random(seed)
    shares = []
    ooms = []
    runs = []
    for case in frozen.values():
        peaks = {int(b): peak for b, peak in case["peaks"].items()}
        description = DESCRIPTIONS.validate_python(case["description"])
        sizes = sorted({*range(8, max(peaks) + 1, 8), min(peaks)})
        peak_of = dict(
            zip(
                sizes,
                np.interp(sizes, sorted(peaks), sorted(peaks.values())),
                strict=True,
            )
        )
        for _ in range(count):
            limit = int(chance.uniform(min(peaks.values()), max(peaks.values())))
            trials = _find_largest(description, sizes, peak_of, limit)
            found = max(
                (t.config.batch_size for t in trials if t.samples_per_second), default=0
            )
            shares.append(found / max(size for size in sizes if peak_of[size] <= limit))
            ooms.append(sum(t.measurement.outcome.is_oom for t in trials))
            runs.append(len(trials))
    low, middle = np.percentile(shares, (10, 50))
    print(
        f'\n3. batch_size="largest", {len(shares)} limits: the batch found / the largest that fits'
    )
    print(
        f"  median {middle:.2f}, one in ten at most {low:.2f}; a call: "
        f"{statistics.fmean(ooms):.2f} out of memory, "
        f"{statistics.fmean(runs):.1f} trials"
    )


def _find_largest(description, sizes, peak_of, limit):
    """The trials of a search for the largest batch under a limit of device memory."""
    context = SearchContext(description, Limits(limit, LIMITS.host_bytes), 2, True)
    search = LargestBatch(
        SearchSpace(batch_size=tuple(sizes)), FitConfig(sizes[0]), context
    )
    trials = []
    while (
        proposal := (decision := search.propose(trials)).proposal
    ) and not decision.stop_reason:
        size = proposal.config.batch_size
        evidence = Evidence("ran to its end")
        seconds = 10.0
        measurement = Measurement(
            Outcome.DEVICE_OOM, Evidence("memory full"), seconds=seconds
        )
        if peak_of[size] <= limit:
            measurement = Measurement(
                Outcome.OK,
                evidence,
                device_peak_bytes=int(peak_of[size]),
                samples_per_second=100.0,
                seconds=seconds,
            )
        trials.append(Trial(proposal.config, measurement, why=str(proposal)))
    return trials


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measure", action="store_true", help="first measure what the file lacks"
    )
    parser.add_argument(
        "--onednn",
        action="store_true",
        help="with oneDNN's kernels (default: with TensorFlow's own)",
    )
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if arguments.onednn else "0"
    file = FROZEN_ONEDNN if arguments.onednn else FROZEN
    frozen = json.loads(file.read_text())
    if arguments.measure:
        machine = detect()
        frozen["machine"] = {
            "processor": machine.processor,
            "cores": machine.cores,
            "python": platform.python_version(),
        }
        measure_device(frozen, file, onednn=arguments.onednn)
    print(", ".join(f"{name} {value}" for name, value in frozen["machine"].items()))
    whole = {
        key: case for key, case in frozen["device"].items() if "description" in case
    }
    print(
        ", ".join(
            f"{name} {value}"
            for name, value in next(iter(whole.values()))["description"][
                "versions"
            ].items()
        )
    )
    print(f"\n{len(whole)} of {len(list(cases(onednn=arguments.onednn)))} cases")
    print_estimates(whole)
    print_limits(whole)
    print_largest(whole)


if __name__ == "__main__":
    main()
