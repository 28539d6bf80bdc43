"""The next step of a search: a proposal, or the reason to stop."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.states import Text
from autofit.records.trial import AUTOTUNE, FitConfig, value_in_words

INTERVAL_DEVIATIONS = 2.0  # standard deviations from a predicted rate to either end of its 95% interval
_CLEAR_GAIN = 0.005  # relative gain: a config with a smaller predicted gain is tried because its rate is uncertain


class Reason(Text):
    """Why a config is proposed."""

    WARM_START = "warm_start"
    PROBE = "probe"
    PROMISE = "promise"
    RISK = "risk"
    LARGER = "larger"
    SAMPLED = "sampled"


LABELS = {  # any other is shown with its predicted gain
    Reason.WARM_START: "predicted to be the best by an earlier tune of this workload",
    Reason.PROBE: "to learn how time and memory grow",
    Reason.LARGER: "the largest batch that is certain to fit",
    Reason.SAMPLED: "proposed by the sampler",
}


@dataclass(frozen=True)
class Proposal:
    """A config to try, the reason, and the expected result.

    `gain` is the expected relative gain over the best config so far, `most_gain` the upper end of its 95% interval, and
    `change` the difference from that config in words. `device_share` and `host_share` are the upper bounds of both memories
    as shares of their limits; `likely_share` is the expected share of the one with the higher bound.
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
        """Describe the reason, the change and the predicted memory for the user."""
        share = max(self.device_share, self.host_share)
        name = "device" if self.device_share >= self.host_share else "host"
        memory = f", {name} memory {self.likely_share:.0%} ± {share - self.likely_share:.0%} of the limit" if share else ""
        reason = LABELS.get(self.reason) or self._prediction()
        if self.reason is Reason.RISK:
            reason += ", worth the risk of running out of memory"
        return f"{self.change}: {reason}{memory}" if self.change else f"{reason}{memory}"

    def _prediction(self) -> str:
        """Describe the expected gain; add the upper end of its interval if the uncertainty is the reason for the trial."""
        gain = self.gain or 0.0
        predicted = f"predicted {_percent(gain)}"
        if gain >= _CLEAR_GAIN or self.most_gain is None:
            return predicted
        return f"{predicted}, but uncertain: the 95% interval reaches {_percent(self.most_gain)}"


@dataclass(frozen=True)
class Decision:
    """The next step of a search: try the proposal, or stop.

    With a `stop_reason`, the proposal is the best remaining config, which is not worth a trial, or None if none remains.
    """

    proposal: Proposal | None = None
    stop_reason: str | None = None


def _percent(gain: float) -> str:
    return f"{gain:+.0%}" if round(gain, 2) else "0%"


def difference(config: FitConfig, other: FitConfig) -> str:
    """Describe how a config differs from another, in a few words."""
    words = []
    for knob, name, less, more in (
        ("batch_size", "batch", "smaller", "larger"),
        ("workers", "workers", "fewer", "more"),
        ("max_queue_size", "queue", "shorter", "longer"),
        ("prefetch_factor", "prefetch", "less", "more"),
        ("steps_per_execution", "steps a call", "fewer", "more"),
    ):
        value, reference = getattr(config, knob), getattr(other, knob)
        is_idle = knob in ("max_queue_size", "prefetch_factor") and not config.has_queue
        if value is None or reference is None or value == reference or is_idle:
            continue
        if AUTOTUNE in (value, reference):
            words.append(f"{name} {value_in_words(value)}")
        else:
            words.append(f"{more if value > reference else less} {name}")
    if config.has_queue and config.use_multiprocessing != other.use_multiprocessing:
        words.append("processes" if config.use_multiprocessing else "threads")
    return ", ".join(words)
