"""What a result means, in sentences: the bottleneck, the learning rate, the last batch of an epoch. Reads a record."""

from __future__ import annotations

import math

from autofit.records.result import TuneRecord
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import counted, format_rate

_NOISY = 1.25  # times the slowest run: runs differ by 2 to 10 % where a machine does nothing else
_PICKLING_SHARE = 0.6  # of what its workers could make: a pool below that, and heavy to hand over, is held back
_COLD_BYTES_PER_SECOND = 2e6  # code that is loaded late stays below (measured: 0.8e6)
_COLD = 0.02  # of the bytes trained on: a JPEG file has a tenth to a fiftieth of its pixels' bytes
_HEAVY_BYTES_PER_SECOND = 50e6  # a pool hands over 120 to 160 MB/s (measured with batches of 19 MB)


def advice(record: TuneRecord) -> dict[str, str]:
    """Sentences by what they are about, in the order in which they matter."""
    found = {
        "noise": _noise(record),
        "bottleneck": bottleneck(record),
        "learning rate": _learning_rate(record),
        "epoch": _epoch(record),
        "page cache": _page_cache(record),
    }
    return {subject: text for subject, text in found.items() if text}


def bottleneck(record: TuneRecord) -> str:
    """What holds the rate back, from the three rates of the trials."""
    compute, inputs = record.compute_samples_per_second, record.input_samples_per_second
    if compute is None or inputs is None or record.bottleneck == "unknown":
        return "unknown: the rates of step and input alone were not taken"
    if record.bottleneck == "compute" and inputs < compute:
        return (
            f"compute-bound: together they reach {format_rate(record.samples_per_second)} of the {format_rate(compute)} "
            f"samples/s that the model takes alone; the input alone makes {format_rate(inputs)}: "
            "a faster model would wait for it"
        )
    if record.bottleneck == "compute":
        return (
            f"compute-bound: the model takes {format_rate(compute)} samples/s, the input could make {format_rate(inputs)}; "
            "more workers would not help"
        )
    if record.bottleneck == "contention":
        return (
            f"contention: alone the model takes {format_rate(compute)} samples/s and the input makes {format_rate(inputs)}"
            f", together they reach {format_rate(record.samples_per_second)}"
            ": they take cores or memory bandwidth from each other"
        )
    return "input-bound: " + "; ".join(_input_bound(record, compute, inputs))


def _noise(record: TuneRecord) -> str:
    """Whether the confirming runs differ by more than a machine that does nothing else makes them."""
    runs = [run.trial for run in record.runs if run.stage == "chosen" and run.trial.config == record.config]
    rates = [rate for trial in runs if (rate := trial.measurement.samples_per_second)]
    if not rates or max(rates) <= _NOISY * min(rates):
        return ""
    return (
        f"runs of the chosen configuration reached {format_rate(min(rates))} to {format_rate(max(rates))} samples/s: "
        "something else used the machine, or the data was read from storage. Do not rely on these rates: tune once more "
        "when it is quiet, --fresh"
    )


def _input_bound(record: TuneRecord, compute: float, inputs: float) -> list[str]:
    """What the input makes, and with more workers; a rate above the model's is no limit, nor one at another batch size."""
    rates = {t.config: t.measurement.input_samples_per_second for t in record.trials}
    slower = {config: rate for config, rate in rates.items() if rate and rate < compute}
    here = {config: rate for config, rate in slower.items() if config.batch_size == record.config.batch_size}
    single = [c for c in slower if c.workers is not None and not c.has_queue]
    alone = max(single, key=lambda config: (config in here, slower[config]), default=None)
    if alone is None:
        return [f"the input makes {format_rate(inputs)} samples/s, the model could take {format_rate(compute)}"]
    one, named = slower[alone], "" if alone in here else f" (batch {alone.batch_size})"
    parts = [f"one worker makes {format_rate(one)} samples/s{named}, the model could take {format_rate(compute)}"]
    best = max(here, key=lambda config: here[config], default=alone)
    if best.has_queue and slower[best] > one:
        at = f" (batch {best.batch_size})" if named else ""
        parts.append(f"{_workers(best)} reach {format_rate(slower[best])}{at}")
    if any(_is_held_back(trial, one, record) for trial in record.trials if trial.config in here):
        parts.append("handing batches over from process to process (pickling) limits beyond")
    return parts


def _is_held_back(trial: Trial, one: float, record: TuneRecord) -> bool:
    """Whether a pool of processes makes far less than its workers could, and moves many bytes."""
    rate, config = trial.measurement.input_samples_per_second, trial.config
    if not rate or not config.use_multiprocessing or (config.workers or 0) < 2:
        return False
    could = one * min(config.workers or 1, record.machine.cores)
    heavy = rate * record.description.sample_bytes > _HEAVY_BYTES_PER_SECOND
    return heavy and rate < _PICKLING_SHARE * could


def _workers(config: FitConfig) -> str:
    return counted(config.workers or 0, "process" if config.use_multiprocessing else "thread")


def _learning_rate(record: TuneRecord) -> str:
    """The rules that scale it with the batch; nothing is applied."""
    now, before = record.config.batch_size, record.speedup.baseline.batch_size
    if record.optimizer_kwargs:
        return "unchanged: gradients are accumulated, so that an update still averages as many samples"
    if record.effective_batch_size is not None:
        return f"unchanged: an update averages {record.effective_batch_size} samples, as asked"
    if not now or not before or now == before:
        return ""
    ratio = now / before
    return (
        f"an update averages {now} samples instead of {before}. If training suffers: times {ratio:.3g} by the linear rule, "
        f"with a warm-up (Goyal et al. 2017, arXiv:1706.02677), or times {math.sqrt(ratio):.3g} by the square-root rule "
        "(Krizhevsky 2014, arXiv:1404.5997; for Adam, Malladi et al. 2022, arXiv:2205.10287)"
    )


def _epoch(record: TuneRecord) -> str:
    """Steps an epoch, and its last batch; only arrays say exactly how many samples there are."""
    count, batch = record.description.sample_count, record.config.batch_size
    if record.description.input_kind != "arrays" or not count or not batch:
        return ""
    steps, last = math.ceil(count / batch), count % batch
    text = counted(steps, "step")
    if not last or steps == 1:
        return text
    text += f", the last of {last} samples"
    return f"{text}, for which XLA compiles once more" if record.description.jit_compile else text


def _page_cache(record: TuneRecord) -> str:
    """Whether some trials read from storage what others found in the page cache, so that they do not compare."""
    made = [(t.measurement.storage_bytes_per_second, t.measurement.samples_per_second) for t in record.trials]
    needed = record.description.sample_bytes
    known = [(read, read / (rate * needed)) for read, rate in made if read is not None and rate and needed]
    cold = sum(share > _COLD and read > _COLD_BYTES_PER_SECOND for read, share in known)
    if not cold or cold == len(known):
        return ""
    return (
        f"{cold} of {len(known)} trials read from storage what the others found in memory: their rates do not compare. "
        "Where the data is larger than memory, tune on all of it; where it is not, tune once more, --fresh"
    )
