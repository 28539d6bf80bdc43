"""The table of trials on a console."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Limits, Trial, value_in_words
from autofit.records.units import format_bytes, format_rate

_BAR_CELLS = 6
_STYLES = {Outcome.OK: "green", Outcome.ERROR: "bold red", Outcome.TIMEOUT: "magenta", Outcome.CRASHED: "magenta"}


def trial_table(rows: list[tuple[str, Trial]], limits: Limits | None, *, skip: int = 0, no_wrap: bool = False) -> Table:
    """A table of (stage, trial).

    Args:
        rows: the trials with their stages, in order.
        limits: the memory limits that the bars relate to.
        skip: rows left out at the top.
        no_wrap: whether each trial takes one line, however narrow the console is.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("#", "batch", "workers", "queue", "outcome", "samples/s", "device", "host", "s"):
        table.add_column(name, justify="left" if name in ("outcome", "device", "host") else "right", no_wrap=no_wrap)
    number = 0
    for index, (stage, trial) in enumerate(rows):
        number += stage in ("kept", "search")
        if index < skip:
            continue
        m = trial.measurement
        label = "" if stage in ("kept", "search") else stage
        table.add_row(
            str(number) if not label else "",
            _cell(trial.config.batch_size),
            _workers(trial.config),
            _queue(trial.config),
            Text(label if label and m.outcome is Outcome.OK else m.outcome.value, style=_STYLES.get(m.outcome, "yellow")),
            "" if m.samples_per_second is None else format_rate(m.samples_per_second),
            _bar(m.device_peak_bytes, limits.device_bytes if limits else None),
            _bar(m.host_peak_bytes, limits.host_bytes if limits else None),
            f"{m.seconds:.0f}",
        )
    return table


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def _workers(config: FitConfig) -> str:
    if config.workers is None:
        return "-"
    return f"{value_in_words(config.workers)} {'proc' if config.use_multiprocessing else 'thr'}"


def _queue(config: FitConfig) -> str:
    return config.queue_in_words or "-"


def _bar(peak_bytes: int | None, limit_bytes: int | None) -> str:
    if peak_bytes is None:
        return "-"
    if limit_bytes is None:
        return format_bytes(peak_bytes)
    share = peak_bytes / limit_bytes
    full = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {share:.0%}"
