"""A noise scale in words."""

from __future__ import annotations

from autofit.records.noise import Metric, NoiseScale
from autofit.records.units import counted, format_seconds

CAVEAT = (
    "The worth of a sample is its progress relative to one in a very small batch, if the learning rate is tuned for each "
    "batch. Scales are low early in training and rise. They say nothing about the final accuracy."
)

_FACTORS = (1 / 16, 1 / 4, 1, 4, 16)  # of the noise scale


def facts(scale: NoiseScale) -> dict[str, str]:
    """Return what was measured, a line for each subject."""
    when = "at the given weights" if scale.at_step is None else f"after {counted(scale.at_step, 'update')}"
    if scale.low is None:
        return {"noise scale": f"none: {scale.reason}"}
    if scale.value is None or scale.high is None:
        value = f"at least {_samples(scale.low)}, {when}: in so few samples, the gradient is hidden by noise"
    else:
        value = f"{_samples(scale.value)}, {when}: 95% interval {_number(scale.low)} to {_number(scale.high)}"
    texts = {"noise scale": value}
    if scale.metric is Metric.PRECONDITIONED:
        other = "" if scale.other_value is None else f"; of plain gradients: {_samples(scale.other_value)}"
        texts["metric"] = f"gradients divided as {scale.optimizer} divides them{other}"
    if scale.trend:
        earlier = (f"{brief(each)} after {each.at_step:,}" for each in scale.trend)
        texts["trend"] = f"{', '.join(earlier)} updates"
    batches, took = f"{scale.microbatches:,} batches of {scale.batch_size} samples", format_seconds(scale.seconds)
    texts["measured"] = f"{batches}; {took}, training included"
    return texts


def in_words(scale: NoiseScale) -> str:
    """Return a scale with its interval in one phrase."""
    when = "" if scale.at_step is None else f" after {counted(scale.at_step, 'update')}"
    if scale.value is None or scale.low is None or scale.high is None:
        return f"{brief(scale)} samples{when}"
    return f"{_samples(scale.value)} ({_number(scale.low)} to {_number(scale.high)}){when}"


def sizes(scale: NoiseScale) -> list[int]:
    """Return powers of two around the noise scale, as batch sizes."""
    value = max(1.0, scale.value or 1.0)
    return sorted({2 ** max(0, (round(value * factor)).bit_length() - 1) for factor in _FACTORS})


def brief(scale: NoiseScale) -> str:
    """Return a scale without its interval, as a number of samples."""
    if scale.value is not None:
        return _number(scale.value)
    return "unknown" if scale.low is None else f"at least {_number(scale.low)}"


def _samples(value: float) -> str:
    return f"{_number(value)} samples"


def _number(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
