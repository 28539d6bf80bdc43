"""Memory: measured peaks against predictions from two trials and estimates without any.

    python tests/benchmarks/memory.py             print the tables from the measurements in memory.json
    python tests/benchmarks/memory.py --measure   first measure the cases missing in memory.json (all: an hour and a half)
    python tests/benchmarks/memory.py --onednn    the same with oneDNN's kernels, in memory-onednn.json; without XLA

A case whose "description" is deleted from the file is estimated anew (ten seconds), against the peaks that were measured.

Method. Everything is measured by autofit's own trials, each in a process of its own: device memory is the peak of the
allocator (on a CPU: TensorFlow's BFC allocator under a limit of 10 GiB), host memory the peak of ΣPSS over the process tree
once the queue was full. Nine models x (float32, Adam), (mixed_float16, SGD) without XLA and (float32, SGD),
(mixed_float16, Adam) with it: every model meets every level of precision, optimizer and XLA, and every pair of levels
occurs. Each case runs at two small batches, b and 2b, and at 8b and 16b.

1. Two probes: `MemorySurrogate` gets the trials at b and 2b (and the estimates, as in a tune) and predicts 8b and 16b.
2. No run: the estimates of a describing trial, at all four batches. For comparison the layer-sum formula found on the web:
   the outputs of all layers and the parameters, each once, times the bytes of a number.
3. Host: for each pipeline the surrogate gets the 4 smallest of 12 settings and predicts the other 8.
4. A hundred limits, each drawn uniformly between the smallest and the largest peak of a randomly drawn case: the largest
   measured batch whose predicted upper bound is within the limit (the default margin), against the largest that fits.
   Only the four measured batches count.

The scale constants of the surrogate were chosen on tables 1 and 4, which are therefore not held out.
"""

import argparse
import collections
import itertools
import json
import math
import os
import pathlib
import platform
import random
import statistics
import sys

from generators import result_of
from pydantic import TypeAdapter

from autofit.machine.host import detect
from autofit.records.description import Description
from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial, TrialSpec
from autofit.search.context import SearchContext
from autofit.search.memory import Memory
from autofit.trial.launcher import ProcessLauncher
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

HERE = pathlib.Path(__file__).parent
FROZEN, FROZEN_ONEDNN = HERE / "memory.json", HERE / "memory-onednn.json"
LIMITS = Limits(10 * 2**30, 18 * 2**30)
HOST_LIMITS = Limits(None, 18 * 2**30)
SECONDS = 600.0
COMBINATIONS = (
    ("float32", "adam", False),
    ("mixed_float16", "sgd", False),
    ("float32", "sgd", True),
    ("mixed_float16", "adam", True),
)
SIDE = 192
PIPELINES = {
    "arrays": [FitConfig(b) for b in (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)],
    "decoding threads": [FitConfig(b, w, q, False) for b, w, q in itertools.product((16, 64), (2, 4), (4, 10, 24))],
    "decoding processes": [FitConfig(b, w, q, True) for b, w, q in itertools.product((16, 64), (2, 4), (4, 10, 24))],
}
GIVEN = {
    "arrays": [0, 1, 2, 3],
    "decoding threads": [0, 2, 3, 6],  # (16, 2, 4), (16, 2, 24), (16, 4, 4), (64, 2, 4)
    "decoding processes": [0, 2, 3, 6],
}
DESCRIPTIONS = TypeAdapter(Description)


def cases(names=None, *, onednn=False):
    """(key, model kwargs, batches) of every device case; with oneDNN without XLA, which does not use it."""
    import zoo

    for build, (precision, optimizer, xla) in itertools.product(zoo.MODELS, COMBINATIONS):
        name = build.__name__
        if (names and name not in names) or (onednn and xla):
            continue
        first = zoo.MODELS[build].first_probe
        kwargs = {"name": name, "precision": precision, "optimizer": optimizer, "xla": xla}
        yield "/".join((name, precision, optimizer, "xla" if xla else "plain")), kwargs, [first * k for k in (1, 2, 8, 16)]


def measure_device(frozen, file, names, *, onednn):
    """Measure the missing peaks and descriptions, case by case."""
    for key, kwargs, batches in cases(names, onednn=onednn):
        case = frozen["device"].setdefault(key, {"peaks": {}})
        lacking = [b for b in batches if str(b) not in case["peaks"]]
        if not lacking and "description" in case:
            continue
        workload = Workload(
            reference("build_model"), reference("Batches"), model_kwargs=kwargs, data_kwargs={"name": kwargs["name"]}
        )
        with ProcessLauncher(workload, None) as launcher:
            spec = TrialSpec(
                Role.DESCRIBE, FitConfig(batches[0]), LIMITS, SECONDS, batch_sizes=tuple(batches), compile_all=True
            )
            case["description"] = DESCRIPTIONS.dump_python(result_of(launcher.run(spec)), mode="json")
            for batch in lacking:
                trial = result_of(launcher.run(TrialSpec(Role.MEASURE, FitConfig(batch), LIMITS, SECONDS, 0.5)))
                assert trial.outcome is Outcome.OK, trial.evidence
                case["peaks"][str(batch)] = trial.device_peak_bytes
        case["layer_sum"] = {str(b): layer_sum_bytes(kwargs, b) for b in batches}
        save(frozen, file)
        print(key, case["peaks"], flush=True)


def layer_sum_bytes(kwargs, batch):
    """The formula from the web: number size x (batch x numbers in the outputs of all layers + parameters)."""
    import keras
    import zoo

    keras.backend.clear_session()
    model = zoo.build_model(**kwargs)
    shapes = [t.shape for layer in model.layers for t in keras.tree.flatten(layer.output)]
    numbers = sum(math.prod(shape[1:]) for shape in shapes)
    size = 2 if kwargs["precision"] == "mixed_float16" else 4
    return size * (batch * numbers + model.count_params())


def measure_host(frozen):
    """Measure the missing host peaks."""
    for name, settings in PIPELINES.items():
        case = frozen["host"].setdefault(name, {"trials": {}})
        lacking = [c for c in settings if str(c) not in case["trials"]]
        if not lacking and "description" in case:
            continue
        with ProcessLauncher(host_workload(name), None) as launcher:
            spec = TrialSpec(Role.DESCRIBE, settings[0], HOST_LIMITS, SECONDS, batch_sizes=(8, 64, 512))
            case["description"] = DESCRIPTIONS.dump_python(result_of(launcher.run(spec)), mode="json")
            for config in lacking:
                trial = result_of(launcher.run(TrialSpec(Role.MEASURE, config, HOST_LIMITS, SECONDS, 1.0)))
                assert trial.outcome is Outcome.OK, trial.evidence
                case["trials"][str(config)] = {"peak": trial.host_peak_bytes, "queued": trial.queued_batches}
                save(frozen, FROZEN)
                print(name, config, case["trials"][str(config)], flush=True)


def host_workload(name):
    """The workload of the pipeline `name`, with a light model."""
    if name == "arrays":
        return Workload(
            reference("build_light_model"),
            reference("in_memory"),
            model_kwargs={"shape": (64, 64, 3), "filters": 16},  # else TensorFlow makes batches without end
            data_kwargs={"count": 4096, "side": 64},
        )
    return Workload(
        reference("build_light_model"),
        reference("Photographs"),
        model_kwargs={"shape": (SIDE, SIDE, 3)},
        data_kwargs={"side": SIDE},
    )


def reference(name):
    """A function of zoo.py."""
    return Reference(f"zoo.py:{name}", str(HERE))


def save(frozen, file):
    """Write the measurements so far."""
    file.write_text(json.dumps(frozen, indent=1) + "\n")


def ran(config, device_bytes=None, host_bytes=None, queued=None):
    """A finished trial."""
    evidence = Evidence("ran to its end")
    return Trial(
        config,
        Measurement(
            Outcome.OK, evidence, device_peak_bytes=device_bytes, host_peak_bytes=host_bytes, queued_batches=queued
        ),
    )


def two_probes(frozen):
    """For each case: (key, batch, measured, prediction) at the two larger batches."""
    for key, case in frozen["device"].items():
        description = DESCRIPTIONS.validate_python(case["description"])
        peaks = {int(b): peak for b, peak in case["peaks"].items()}
        batches = sorted(peaks)
        trials = [ran(FitConfig(b), peaks[b]) for b in batches[:2]]
        surrogate = Memory(SearchContext(description, LIMITS, 1, True), trials)
        for batch in batches[2:]:
            yield key, batch, peaks[batch], surrogate.device(FitConfig(batch))


def print_errors(title, errors, covered=None):
    """Print one line of a table."""
    sizes = sorted(abs(e) for e in errors)
    middle, most = statistics.median(sizes), sizes[int(0.9 * len(sizes))]
    line = f"  {title:24} n {len(errors):3}  median {middle:6.1%}  90 % within {most:6.1%}  worst {sizes[-1]:6.1%}"
    print(line + (f"  upper bound covers {covered:.0%}" if covered is not None else ""))


def by_xla(keyed):
    """Group tuples (key, …) as all, without XLA, with XLA; returns titles and groups."""
    keyed = list(keyed)
    groups = (("all", ""), ("without XLA", "/plain"), ("with XLA", "/xla"))
    split = [(title, [item for item in keyed if item[0].endswith(end)]) for title, end in groups]
    return [(title, items) for title, items in split if items]


def print_device_tables(frozen):
    """Tables 1, 2 and 4."""
    print("\n1. Device memory predicted from two probes, at 4 and 8 times the larger probe's batch")
    predictions = list(two_probes(frozen))
    for title, items in by_xla(predictions):
        covered = statistics.mean(measured <= p.upper_bytes for _, _, measured, p in items)
        print_errors(title, [p.expected_bytes / measured - 1 for _, _, measured, p in items], covered)
    for key, batch, measured, p in predictions:
        if abs(p.expected_bytes / measured - 1) > 0.1:
            off = p.expected_bytes / measured - 1
            print(f"    {key} batch {batch}: measured {measured / 2**20:.1f} MiB, predicted {off:+.1%}")
    print("\n2. Device memory estimated without a run")
    rows = []
    for key, case in frozen["device"].items():
        for f in DESCRIPTIONS.validate_python(case["description"]).footprints:
            measured = case["peaks"][str(f.batch_size)]
            rows.append((f.device_bytes / measured - 1, case["layer_sum"][str(f.batch_size)] / measured - 1, key, f))
    for title, end in (("without XLA", "/plain"), ("with XLA", "/xla")):
        group = [row for row in rows if row[2].endswith(end)]
        if group:
            print_errors(f"{title}: autofit", [row[0] for row in group])
            print_errors(f"{title}: layer sum", [row[1] for row in group])
    for name in sorted({row[2].partition("/")[0] for row in rows}):
        group = [row for row in rows if row[2].startswith(f"{name}/")]
        print_errors(f"  {name}", [row[0] for row in group])
    print_limits(frozen)


def print_limits(frozen, count=100, seed=0):
    """Table 4."""
    chance = random.Random(seed)
    verdicts = collections.Counter()
    short = []
    keys = sorted(frozen["device"])
    for _ in range(count):
        key = chance.choice(keys)
        case = frozen["device"][key]
        peaks = {int(b): peak for b, peak in case["peaks"].items()}
        batches = sorted(peaks)
        limit = chance.uniform(min(peaks.values()), max(peaks.values()))
        fits = [b for b in batches if peaks[b] <= limit]
        trials = [ran(FitConfig(b), peaks[b]) for b in batches[:2] if peaks[b] <= limit]
        surrogate = Memory(
            SearchContext(
                DESCRIPTIONS.validate_python(case["description"]), Limits(int(limit), LIMITS.host_bytes), 1, True
            ),
            trials,
        )
        tried = {t.config.batch_size for t in trials}
        chosen = [b for b in batches if b in tried or surrogate.device(FitConfig(b)).upper_bytes <= limit]
        right, best = max(fits), max(chosen, default=0)
        verdict = "right" if best == right else "too small" if best < right else "too large"
        verdicts[verdict] += 1
        if verdict == "too small":
            short.append(right / max(best, 1))
    print(f"\n4. The largest batch predicted to fit, {count} random limits")
    by = f", by {statistics.median(short):.0f} times (median)" if short else ""
    print(f"  right {verdicts['right']}, too small {verdicts['too small']}{by}, too large {verdicts['too large']}")


def print_host_table(frozen):
    """Table 3."""
    print("\n3. Host memory (ΣPSS): fitted on 4 of 12 settings, predicting the other 8")
    every, inside = [], []
    for name, settings in PIPELINES.items():
        case = frozen["host"][name]
        trials = [
            ran(c, host_bytes=case["trials"][str(c)]["peak"], queued=case["trials"][str(c)]["queued"])
            for c in (settings[i] for i in GIVEN[name])
        ]
        surrogate = Memory(SearchContext(DESCRIPTIONS.validate_python(case["description"]), HOST_LIMITS, 1, True), trials)
        errors, covered = [], []
        for config in (c for i, c in enumerate(settings) if i not in GIVEN[name]):
            measured, predicted = case["trials"][str(config)]["peak"], surrogate.host(config)
            errors.append(predicted.expected_bytes / measured - 1)
            covered.append(measured <= predicted.upper_bytes)
        print_errors(name, errors, statistics.mean(covered))
        every, inside = every + errors, inside + covered
    print_errors("all", every, statistics.mean(inside))


def main():
    """Measure the missing cases on request, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    memories = ("device", "host")
    parser.add_argument("--measure", nargs="*", choices=memories, help="measure what memory.json lacks (default: both)")
    parser.add_argument("--models", nargs="*", help="only these models")
    parser.add_argument("--onednn", action="store_true", help="with oneDNN's kernels (default: with TensorFlow's own)")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if arguments.onednn else "0"
    file = FROZEN_ONEDNN if arguments.onednn else FROZEN
    frozen = json.loads(file.read_text()) if file.exists() else {"device": {}, "host": {}}
    if arguments.measure is not None:
        machine = detect()
        frozen["machine"] = {"processor": machine.processor, "cores": machine.cores, "python": platform.python_version()}
        if "host" in (arguments.measure or memories) and not arguments.onednn:
            measure_host(frozen)
        if "device" in (arguments.measure or memories):
            measure_device(frozen, file, arguments.models, onednn=arguments.onednn)
    print(", ".join(f"{name} {value}" for name, value in frozen.get("machine", {}).items()))
    versions = next(iter(frozen["device"].values()), {}).get("description", {}).get("versions", {})
    print(", ".join(f"{name} {value}" for name, value in versions.items()))
    if all(len(frozen["host"].get(name, {}).get("trials", {})) == len(settings) for name, settings in PIPELINES.items()):
        print_host_table(frozen)
    whole = {key: case for key, case in frozen["device"].items() if "description" in case}
    if whole:
        print(f"\n{len(whole)} of {len(list(cases(onednn=arguments.onednn)))} device cases")
        print_device_tables({**frozen, "device": whole})


if __name__ == "__main__":
    main()
