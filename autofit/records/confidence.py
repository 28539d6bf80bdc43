"""The level of confidence of all intervals, and the widths and texts that follow from it."""

from __future__ import annotations

from statistics import NormalDist

LEVEL = 0.95  # the probability with which an interval contains the true value


def upper_quantile() -> float:
    """Return the quantile at the upper end of a two-sided interval."""
    return (1 + LEVEL) / 2


def deviations() -> float:
    """Return how many standard deviations of a Gaussian are on either side of its mean."""
    return round(NormalDist().inv_cdf(upper_quantile()), 2)


def rough_deviations() -> float:
    """Return the same to one digit, for deviations that are rough themselves."""
    return round(deviations(), 1)


def interval_in_words() -> str:
    """Name an interval in messages: `95% interval`."""
    return f"{LEVEL:.0%} interval"
