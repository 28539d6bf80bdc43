"""The next step of a search: a proposal, or the reason to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autofit.records.states import Text
from autofit.records.trial import AUTOTUNE, FitConfig, Trial, value_in_words

INTERVAL_DEVIATIONS = 2.0
"""Standard deviations from a predicted rate to the ends of its interval of 95 %."""

_CLEAR_GAIN = 0.005  # relative: below this predicted gain a config is tried for its uncertainty


class Reason(Text):
    """Why a config is proposed."""

    WARM_START = "what an earlier tune of this workload would choose now"
    PROBE = "to see how time and memory grow"
    STEP = "a step towards what promises more"
    PROMISE = "promising"
    FALLBACK = "proposed by Optuna's TPE"


@dataclass(frozen=True)
class Proposal:
    """A config to try, why, and what is expected of it.

    `gain` is the expected relative gain over the best config so far, `most_gain` the upper end of its 95 % interval;
    `change` says how the config differs from that one.
    `device_share` and `host_share` are upper bounds of memory in units of the limits; `likely_share` is the expected value
    of the memory with the higher bound.
    """

    config: FitConfig
    reason: Reason
    gain: float | None = None
    device_share: float = 0.0
    host_share: float = 0.0
    likely_share: float = 0.0
    change: str = ""
    most_gain: float | None = None

    def __str__(self) -> str:
        """Why this config, in words."""
        share = max(self.device_share, self.host_share)
        name = "device" if self.device_share >= self.host_share else "host"
        memory = f", {name} memory {self.likely_share:.0%} ± {share - self.likely_share:.0%} of the limit" if share else ""
        reason = self._prediction() if self.reason is Reason.PROMISE else str(self.reason)
        return f"{self.change}: {reason}{memory}" if self.change else f"{reason}{memory}"

    def _prediction(self) -> str:
        """The expected gain; with the upper end of its interval where that, not the gain itself, is the reason."""
        gain = self.gain or 0.0
        predicted = f"predicted {_percent(gain)}"
        if gain >= _CLEAR_GAIN or self.most_gain is None:
            return predicted
        return f"{predicted}, but uncertain: up to {_percent(self.most_gain)} is within the 95 % interval"


@dataclass(frozen=True)
class Decision:
    """The next step: try a proposal, stop, or let another sampler choose among `candidates` (`fallback` is the reason).

    `candidates` are all configs that may be tried; they are listed only without a proposal.
    """

    proposal: Proposal | None = None
    stop_reason: str | None = None
    fallback: str | None = None
    candidates: tuple[FitConfig, ...] = ()


class Proposer(Protocol):
    """What a tune needs of a search; plug in another one by `tuner.tune(..., make_proposer=...)`."""

    def propose(self, trials: Sequence[Trial]) -> Decision:
        """The next config after these trials, or the reason to stop."""

    def rates(self, trials: Sequence[Trial]) -> Mapping[FitConfig, tuple[float, float]]:
        """For each config that ran, the logarithm of its samples per second and the standard deviation of that."""


def _percent(gain: float) -> str:
    """A relative gain with its sign; none where it rounds to 0."""
    return f"{gain:+.0%}" if round(gain, 2) else "0%"


def difference(config: FitConfig, other: FitConfig) -> str:
    """How a config differs from another, in a few words."""
    words = []
    for knob, name, less, more in (
        ("batch_size", "batch", "smaller", "larger"),
        ("workers", "workers", "fewer", "more"),
        ("max_queue_size", "queue", "shorter", "longer"),
        ("prefetch_factor", "prefetch", "less", "more"),
    ):
        own, its = getattr(config, knob), getattr(other, knob)
        is_idle = knob in ("max_queue_size", "prefetch_factor") and not config.has_queue
        if own is None or its is None or own == its or is_idle:
            continue
        if AUTOTUNE in (own, its):
            words.append(f"{name} {value_in_words(own)}")
        else:
            words.append(f"{more if own > its else less} {name}")
    if config.has_queue and config.use_multiprocessing != other.use_multiprocessing:
        words.append("processes" if config.use_multiprocessing else "threads")
    return ", ".join(words)
