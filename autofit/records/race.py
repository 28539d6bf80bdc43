"""A race: trainings of several batch sizes from one checkpoint, for equally many seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit.records.bounds import Count, Positive, Ratio, Seconds
from autofit.records.trial import FitConfig, LossPoint


@dataclass(frozen=True)
class Heat:
    """One training of a race: the loss on held-out samples over the seconds of training, of weights averaged over time.

    `pair` is the number of the seed. `points` start with the checkpoint; they are empty if the training failed, and
    `problem` then says how.
    """

    config: FitConfig
    pair: Count
    points: tuple[LossPoint, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Contestant:
    """A config in a race, with what it changes in the baseline's optimizer.

    `ratio` is how many times sooner than the baseline it reaches the same loss, as the geometric mean over `pairs` of
    trainings; `low` and `high` are the ends of its 95 % interval. They are None if `problem` says why nothing is known, and
    the interval also if there is only one pair. `rate_ratio` is the ratio of its samples per second to the baseline's.
    """

    config: FitConfig
    learning_rate_factor: Ratio = 1.0
    beta_2: Ratio | None = None
    ratio: Ratio | None = None
    low: Ratio | None = None
    high: Ratio | None = None
    pairs: Count = 0
    rate_ratio: Ratio | None = None
    problem: str = ""

    @property
    def is_sooner(self) -> bool:
        """Whether it is shown to reach the same loss sooner than the baseline."""
        return self.low is not None and self.low > 1.0

    @property
    def is_later(self) -> bool:
        """Whether it is shown to reach the same loss later than the baseline."""
        return self.high is not None and self.high < 1.0

    def critical_batch_size(self, baseline: Positive) -> float | None:
        """Return the critical batch size Bc that follows from the race, in samples; None if none does.

        The samples to a loss grow as 1 + B/Bc (McCandlish et al., An empirical model of large-batch training, 2018,
        equation 2.11). It is infinite if a larger batch needed no more samples than `baseline`.
        """
        size = self.config.batch_size
        if not (self.ratio and self.rate_ratio and size) or size == baseline:
            return None
        growth = self.rate_ratio / self.ratio  # of the samples to the loss
        if (growth - 1) * (size - baseline) <= 0:
            return math.inf
        critical = (size - growth * baseline) / (growth - 1)
        return critical if critical > 0 else None


@dataclass(frozen=True)
class Race:
    """Trainings of the baseline and of other batch sizes from one checkpoint, each for `heat_seconds`.

    The checkpoint had `updates` of the weights, and the loss is that of `held_out_samples` samples of the validation data.
    `reason` says why nothing was raced; it is empty otherwise.
    """

    contestants: tuple[Contestant, ...] = ()
    heats: tuple[Heat, ...] = ()
    heat_seconds: Seconds = 0.0
    updates: Count = 0
    held_out_samples: Count = 0
    seconds: Seconds = 0.0
    reason: str = ""
