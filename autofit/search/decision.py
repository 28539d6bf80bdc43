"""What the search decides to do next, and how it says so."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.trial import FitConfig

_PLAIN_GAIN = 0.005  # what is predicted to gain less is tried for what is not known of it


@dataclass(frozen=True)
class Proposal:
    """A config to try, why, and what is expected of it.

    `gain` is the rate expected over the best so far, less one, and `change` says what is other than in that; shares are
    upper bounds of memory over the limits, `likely_share` is what is expected of the higher one.
    """

    config: FitConfig
    phase: str
    gain: float | None = None
    device_share: float = 0.0
    host_share: float = 0.0
    likely_share: float = 0.0
    change: str = ""

    def __str__(self) -> str:
        """Why this config, in words."""
        share = max(self.device_share, self.host_share)
        name = "device" if self.device_share >= self.host_share else "host"
        memory = f", {name} memory {self.likely_share:.0%} ± {share - self.likely_share:.0%} of the limit" if share else ""
        gain = self.gain or 0.0
        promise = f"predicted {gain:+.0%}" if gain >= _PLAIN_GAIN else f"unsure, may be faster (predicted {gain:+.0%})"
        reasons = {
            "recall": "what an earlier tune of this workload would choose now",
            "probe": "to see how time and memory grow",
            "step": "a step towards what promises more",
            "propose": promise,
        }
        return f"{self.change}: {reasons[self.phase]}{memory}" if self.change else f"{reasons[self.phase]}{memory}"


@dataclass(frozen=True)
class Decision:
    """What to do next: try a proposal, stop, or let another sampler choose among `candidates` (`fallback` says why).

    `candidates` are all configs that may be tried; it is empty unless there is no proposal.
    """

    proposal: Proposal | None = None
    stop_reason: str | None = None
    fallback: str | None = None
    candidates: tuple[FitConfig, ...] = ()


def difference(config: FitConfig, other: FitConfig) -> str:
    """What a config has other than another, in a few words."""
    words = []
    for knob, name, less, more in (
        ("batch_size", "batch", "smaller", "larger"),
        ("workers", "workers", "fewer", "more"),
        ("max_queue_size", "queue", "shorter", "longer"),
    ):
        own, its = getattr(config, knob), getattr(other, knob)
        if own is not None and its is not None and own != its and (knob != "max_queue_size" or config.has_queue):
            words.append(f"{more if own > its else less} {name}")
    if config.has_queue and config.use_multiprocessing != other.use_multiprocessing:
        words.append("processes" if config.use_multiprocessing else "threads")
    return ", ".join(words)
