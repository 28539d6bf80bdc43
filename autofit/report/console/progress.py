"""The progress of a tune on a terminal or as plain lines."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from autofit.records.events import Activity, Described, Event
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Limits, Trial
from autofit.records.units import counted, format_rate, format_seconds
from autofit.report.choice import NONE, limits_in_words, model_in_words, outcome_label
from autofit.report.columns import peak_in_words
from autofit.report.console.tables import Terminal, summarise, trial_table

_REFRESH_PER_SECOND = 2  # drawing takes CPU time from the trials


class Progress:
    """Shows events as a live table on a terminal, and as plain lines elsewhere.

    Shows nothing if quiet.

    Example:
        >>> shown = autofit.Progress(quiet=True)  # draws nothing until the summary at the end
        >>> space = {"batch_size": [32, 256]}
        >>> result = autofit.tune(build_model, arrays, space=space, max_seconds=60, progress=shown)
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Terminal()
        self.is_quiet = quiet
        self._live: Live | None = None
        self._limits: Limits | None = None
        self._trials: list[Trial] = []
        self._activity = Activity("starting")
        self._deadline: float | None = None

    def __enter__(self) -> Progress:
        # a display may show several tunes, one after the other
        self._trials = []
        self._activity = Activity("starting")
        self._deadline = None
        if self.console.is_terminal and not self.is_quiet:
            self._live = Live(
                console=self.console,
                get_renderable=self._draw,
                refresh_per_second=_REFRESH_PER_SECOND,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._activity = Activity("")
        live = self._live
        # without it, the last drawing, which remains, has all rows
        self._live = None
        if live is not None:
            live.stop()

    def title(self, text: str) -> None:
        """Print a title for the events that follow."""
        if not self.is_quiet:
            self.console.print(f"\n[bold]{escape(text)}[/bold]", soft_wrap=True)

    def summarise(self, record: TuneRecord) -> None:
        """Print the summary of the result below the progress, unless quiet."""
        if not self.is_quiet:
            summarise(record, self.console)

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Described):
            self._described(event)
        elif isinstance(event, Trial):
            self._trials.append(event)
            self._print(_line(event, self._limits), is_in_table=True)
        elif isinstance(event, str):
            self._print(event)
        else:
            is_new = event.doing != self._activity.doing
            if is_new and event.why:
                line = f"{event.doing}{self._time_left()}\n    {event.why}"
                self._print(line, is_in_table=True)
            elif is_new and event.config is None:
                self._print(event.doing, is_in_table=True)
            self._activity = event

    def _described(self, event: Described) -> None:
        log = event.log
        self._limits = log.limits
        if event.max_seconds is not None:
            self._deadline = time.monotonic() + event.max_seconds - log.seconds
        self._trials = list(log.trials)
        places = event.description.places
        if places:
            self._print(
                f"{log.call_source.model} calls fit at {event.description.fit_call}"
            )
            for knob, place in places.items():
                added = (
                    f"is added at {place}"
                    if place.is_added
                    else f"is {place.value}: {place}"
                )
                self._print(f"    {knob} {added}")
        self._print(
            f"{model_in_words(event.description)}; tuning {', '.join(event.knobs)}"
        )
        limits = limits_in_words(log.limits)
        self._print(
            f"{log.device}, {counted(log.machine.cores, 'core')}; limits: {limits}"
        )
        if event.description.shapes:
            self._print(event.description.shapes)
        if log.trials:
            self._print(
                f"reusing {counted(len(log.trials), 'trial')} of an earlier run"
            )

    def _print(self, line: str, *, is_in_table: bool = False) -> None:
        is_drawn = is_in_table and self._live is not None
        if not self.is_quiet and not is_drawn:
            self.console.print(escape(line), soft_wrap=self._live is None)

    def _draw(self) -> RenderableType:
        now = self._activity
        parts: list[RenderableType] = []
        if now.doing:
            parts.append(Text(f"now: {now.doing}", style="bold"))
            details = [
                str(part)
                for part in (now.config, now.phase and now.phase.label)
                if part
            ]
            parts.append(
                Text(f"     {', '.join(details)}{self._time_left()}", style="dim")
            )
            if now.why:
                parts.append(Text(f"     why: {now.why}", style="dim"))
        if self._trials:
            # rich cuts off the end of what is higher than the terminal; the last drawing is whole
            is_last = self._live is None
            parts.append(
                trial_table(self._trials, self._limits, newest_first=not is_last)
            )
        return Group(*parts)

    def _time_left(self) -> str:
        """Return the time left until max_seconds; empty without one."""
        if self._deadline is None:
            return ""
        seconds = max(1.0, self._deadline - time.monotonic())
        return f" (about {format_seconds(seconds)} left)"


def _line(trial: Trial, limits: Limits | None) -> str:
    measured = trial.measurement
    parts = [outcome_label(measured.outcome)]
    if measured.samples_per_second is not None:
        parts.append(f"{format_rate(measured.samples_per_second)} samples/s")
    for memory in ("device", "host"):
        peak = peak_in_words(trial, limits, memory)
        if peak != NONE:
            parts.append(f"{memory} {peak}")
    parts.append(format_seconds(measured.seconds))
    stage = "" if trial.stage is Stage.SEARCH else f"{trial.stage}: "
    line = f"{stage}{trial.config}: {', '.join(parts)}"
    return (
        line
        if measured.outcome is Outcome.OK
        else f"{line}\n    {measured.evidence.reason}"
    )
