"""Gradients at frozen weights, and the noise scale that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autofit.records.bounds import Count, Positive, Seconds
from autofit.records.states import Text

if TYPE_CHECKING:  # it imports this module
    from autofit.records.trial import FitConfig

STEPS = (100, 400, 1600)
"""The numbers of updates after which the noise scale is measured, as far as the time suffices."""


class Metric(Text):
    """How gradients are measured: as they are, or divided by the optimizer's running root mean square of each."""

    EUCLIDEAN = "euclidean"
    PRECONDITIONED = "preconditioned"


@dataclass(frozen=True)
class Objective:
    """What a tune maximizes: samples per second, times the progress of a sample if the noise scale is given.

    A sample in a batch of `baseline` samples has a progress of 1, one in a batch of B samples (φ + B₀)/(φ + B), where φ is
    the `noise_scale`. The product is the goodput (Qiao et al., Pollux, OSDI 2021). The seconds that XLA takes to compile
    the step, `compile_share` of those of the training, count against the configs that it compiles.
    """

    noise_scale: float | None = None
    baseline: Count = 1
    compile_share: float = 0.0

    @property
    def is_rate(self) -> bool:
        """Whether samples per second are maximized, and not the goodput."""
        return self.noise_scale is None

    def progress(self, batch_size: float | None) -> float:
        """Return the progress of a sample in a batch of this size; 1 without a noise scale or a size."""
        if self.noise_scale is None or batch_size is None:
            return 1.0
        return (self.noise_scale + self.baseline) / (self.noise_scale + batch_size)

    def worth(self, config: FitConfig) -> float:
        """Return the value of a sample in a training with this config: its progress, less what compiling takes."""
        return self.progress(config.batch_size) / (1 + self.compile_share * bool(config.jit_compile))


RATE = Objective()
"""The objective of a tune without a noise scale: samples per second."""


@dataclass(frozen=True)
class GradientProducts:
    """Products of gradients in one metric, of groups of microbatches.

    `squares` has a sum for each group: of |g|² over its microbatches, where g is the mean gradient of a microbatch's
    samples. `products` has the scalar product of each pair of groups, where a group stands for the sum of its gradients.
    """

    squares: tuple[float, ...]
    products: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Gradients:
    """The gradients of microbatches of `batch_size` samples at weights that did not change, `group_batches` in each group.

    `at_step` is the number of updates before; None for weights that the user gave. `by_metric` has the products in the
    metrics that the optimizer allows. `problem` says why they are of no use; it is empty if they are. `normalized` is the
    number of layers that normalize over the batch, and `optimizer` the name of the user's optimizer. `samples` is the
    number of samples in the data; None if it is unknown, or if gradients are random in themselves, as with dropout.
    """

    batch_size: Positive
    group_batches: Count = 0
    by_metric: Mapping[Metric, GradientProducts] = field(default_factory=dict)
    at_step: Count | None = None
    problem: str = ""
    normalized: Count = 0
    optimizer: str = ""
    samples: Positive | None = None

    @property
    def microbatches(self) -> int:
        """The number of microbatches."""
        products = next(iter(self.by_metric.values()), None)
        return 0 if products is None else self.group_batches * len(products.squares)


@dataclass(frozen=True)
class NoiseScale:
    """The gradient noise scale: the batch size, in samples, at which noise and signal of a gradient are equal.

    It is tr(Σ)/|G|², where G is the gradient of the loss and Σ the covariance of the gradients of single samples
    (McCandlish et al., An empirical model of large-batch training, 2018). Batches far below it use every sample fully;
    batches far above it waste most. `low` and `high` are the ends of the 95 % interval. If the gradient does not stand out
    of its noise, `value` and `high` are None and the scale is at least `low`. If nothing is known, all three are None and
    `reason` says why.

    `metric` is the one that suits the optimizer, and `other_value` the value in the other one. The scale was measured after
    `at_step` updates of the weights (None for weights that were given), on `microbatches` of `batch_size` samples, which
    took `seconds`. `trend` has the scales after fewer updates.

    Example:
        >>> scale = autofit.NoiseScale(value=640.0, low=420.0, high=980.0, at_step=1600)
        >>> scale.low < scale.value < scale.high
        True
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    metric: Metric = Metric.EUCLIDEAN
    other_value: float | None = None
    at_step: Count | None = None
    batch_size: Positive = 1
    microbatches: Count = 0
    optimizer: str = ""
    seconds: Seconds = 0.0
    trend: tuple[NoiseScale, ...] = ()

    @property
    def has_rule(self) -> bool:
        """Whether a rule says how the learning rate of this optimizer follows the noise scale; for others it is a guess."""
        return self.metric is Metric.PRECONDITIONED or self.optimizer == "SGD"

    @property
    def value_or_low(self) -> float | None:
        """The value, or else what the scale is at least, in samples; None if nothing is known."""
        return self.low if self.value is None else self.value

    def progress(self, batch_size: float, baseline: int = 0, scale: float | None = None) -> float:
        """Return the progress of a sample in a batch of this size relative to one in a batch of `baseline` samples.

        By default it is relative to a sample in a very small batch: φ/(φ + B) for a scale φ, by default `value` (McCandlish
        et al., 2018, equation 2.12).

        Raises:
            ValueError: `value` is None.
        """
        return Objective(self._known(scale), baseline).progress(batch_size)

    def learning_rate_factor(self, batch_size: int, baseline: int, scale: float | None = None) -> float:
        """Return by how much to multiply the learning rate of batches of `baseline` samples for a batch of this size.

        For a scale φ, by default `value`, the factor is (1 + φ/B₀)/(1 + φ/B): between 1 and B/B₀ (Johnson et al., AdaScale
        SGD, 2020, arXiv:2007.05105; the same formula as McCandlish et al., 2018, equation 2.9). In the preconditioned
        metric it is the square root of that (Malladi et al., On the SDEs and scaling rules for adaptive gradient
        algorithms, 2022, arXiv:2205.10287).

        Raises:
            ValueError: `value` is None.
        """
        gain = self.progress(batch_size, baseline, scale) * batch_size / baseline
        return math.sqrt(gain) if self.metric is Metric.PRECONDITIONED else gain

    def objective(self, baseline: int) -> Objective:
        """Return the goodput relative to batches of `baseline` samples, at `value` or else `low`; or else the rate."""
        return RATE if self.value_or_low is None else Objective(self.value_or_low, baseline)

    def _known(self, scale: float | None) -> float:
        phi = self.value if scale is None else scale
        if phi is None:
            raise ValueError(self.reason or f"the noise scale is only known to be at least {self.low}")
        return phi
