"""Past tunes as a list, as JSON, and which of them a person means."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from autofit.errors import UsageError
from autofit.records.result import PastTune
from autofit.records.units import format_rate

_UNIT_SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def print_history(tunes: Sequence[PastTune], place: str, console: Console) -> None:
    """Print three lines for each: when and what; on what; the answer. `place` is where they are kept."""
    if not tunes:
        console.print(f"nothing was tuned yet that is kept in {place}", soft_wrap=True)
    for tune in tunes:
        when = f"{datetime.fromtimestamp(tune.started_at):%Y-%m-%d %H:%M}"
        console.print(Text.assemble((when, "bold"), f"  {tune.title}"))
        answer = f"{tune.config}" if tune.config else "no answer yet"
        if tune.samples_per_second is not None:
            answer += f": {format_rate(tune.samples_per_second)} samples/s"
        trials = f"{tune.trials} {'trial' if tune.trials == 1 else 'trials'}"
        console.print(Padding(Text(f"on {tune.host}, {tune.device}; {tune.limits}"), (0, 0, 0, 4)))
        console.print(Padding(Text(f"{answer} ({trials}, {tune.name})"), (0, 0, 0, 4)))


def as_json(tunes: Sequence[PastTune]) -> str:
    """The list as JSON; times in seconds since 1970 (UTC)."""
    return json.dumps([asdict(tune) for tune in tunes], indent=2)


def matching(tunes: Sequence[PastTune], which: str) -> tuple[str, ...]:
    """The names of the tunes that are meant: older than an age (30d), by a name or how it begins, or all.

    Raises:
        UsageError: nothing can be meant by it, or more than one by a name.
    """
    if which == "all":
        return tuple(tune.name for tune in tunes)
    age = re.fullmatch(r"(\d+)([hdw])", which)
    if age:
        before = time.time() - int(age[1]) * _UNIT_SECONDS[age[2]]
        return tuple(tune.name for tune in tunes if tune.started_at < before)
    named = tuple(tune.name for tune in tunes if which and tune.name.startswith(which))
    if len(named) != 1:
        problem = "is the beginning of several names" if named else "is neither an age (30d), the name of a tune, nor all"
        raise UsageError(f"--prune: {which!r} {problem}; names are listed by: autofit history")
    return named
