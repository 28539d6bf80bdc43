"""What `autofit.Watch` saw of the user's own trainings: a small file for each, in the user's data folder.

The file of a training that is running is written again and again, so the readings before a sudden end are kept.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import psutil
from pydantic import TypeAdapter, ValidationError

from autofit.records.bounds import Count, Ratio, Seconds
from autofit.records.trial import FitConfig
from autofit.records.units import format_rate

_KEPT = 20  # files of all trainings
_FULL_SHARE = 0.95  # of the limit: a training that ended suddenly with this much memory ran out of it


@dataclass(frozen=True)
class Training:
    """A training with the config that a tune chose, and its rates and peaks relative to the promised ones.

    `study` is the name of the tune's study. `ended` is true if `fit` returned. `pid` and `created_at` identify the
    process. `host_bytes` is the last reading of its memory, and `host_limit_bytes` what the machine had.
    """

    study: str
    config: FitConfig
    started_at: Seconds
    pid: Count
    created_at: Seconds
    seconds: Seconds = 0.0
    rate_ratio: Ratio | None = None
    host_ratio: Ratio | None = None
    device_ratio: Ratio | None = None
    host_bytes: Count = 0
    host_limit_bytes: Count = 0
    ended: bool = False

    @property
    def is_running(self) -> bool:
        """Whether the process is still there, and `fit` has not returned."""
        if self.ended:
            return False
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created_at) < 1
        except psutil.Error:
            return False

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether it ended suddenly while it held nearly all of the machine's memory."""
        full = self.host_bytes >= _FULL_SHARE * self.host_limit_bytes > 0
        return full and not self.ended and not self.is_running

    def in_words(self, promised: float | None = None) -> str:
        """Return what was seen in one sentence; `promised` is the promised rate in samples per second, if it is known."""
        parts = ["the training was too short for a rate"]
        if self.rate_ratio is not None:
            rate = "rate" if promised is None else f"{format_rate(promised)} samples/s"
            parts = [f"the training ran at {self.rate_ratio:.2f} of the promised {rate}"]
        for name, ratio in {"host": self.host_ratio, "device": self.device_ratio}.items():
            parts += [] if ratio is None else [f"{name} memory at {ratio:.2f} of the promised peak"]
        return ", ".join(parts)


_TRAININGS = TypeAdapter(Training)


def keep(training: Training) -> None:
    """Write the file of a training, if the folder is writable; only the latest trainings are kept."""
    with contextlib.suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        path = _path(training)
        written = path.with_suffix(".new")
        written.write_bytes(_TRAININGS.dump_json(training))
        written.replace(path)
        for old in sorted(_folder().glob("*.json"), key=os.path.getmtime)[:-_KEPT]:
            old.unlink()


def forget(training: Training) -> None:
    """Remove the file of a training."""
    _path(training).unlink(missing_ok=True)


def of(study: str) -> tuple[Training, ...]:
    """Return the trainings of a study, the latest last; damaged files are ignored."""
    found = []
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError, ValidationError):
            found.append(_TRAININGS.validate_json(path.read_bytes()))
    return tuple(sorted((each for each in found if each.study == study), key=lambda each: each.started_at))


def _path(training: Training) -> Path:
    return _folder() / f"{training.study}-{training.pid}-{training.started_at:.0f}.json"


def _folder() -> Path:
    return platformdirs.user_data_path("autofit") / "trainings"
