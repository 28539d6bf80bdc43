"""The Optuna study of one tune: storage, resume, and what is stored per trial."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import optuna
import platformdirs
import psutil
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from autofit import stored
from autofit.errors import StorageError
from autofit.records import FitConfig, Limits, Measurement, Trial
from autofit.sampler import FrontierSampler

_OWNER = "owner"
_STORAGE_ERRORS = (SQLAlchemyError, optuna.exceptions.StorageInternalError)


def default_storage() -> str:
    """The URL of the SQLite file in which trials are kept when nothing else is said."""
    return f"sqlite:///{platformdirs.user_data_path('autofit') / 'trials.sqlite3'}"


Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")


def _stored(method: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Turn what the storage raises into a `StorageError`."""

    @functools.wraps(method)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        try:
            return method(*args, **kwargs)
        except _STORAGE_ERRORS as error:
            raise _storage_error(error) from None

    return wrapper


class TuningStudy:
    """Asks a sampler, and stores every trial as it ends.

    Args:
        storage: an Optuna storage URL, or the path of an SQLite file.
        name: the study's name: the fingerprint of the question.
        sampler: what asks; it says when to stop.
        limits: the limits that the constraints are measured in.
        fresh: forget what is stored under this name.

    Raises:
        StorageError: the storage cannot be opened; every method raises it, too, when the storage fails.
    """

    def __init__(
        self, storage: str | None, name: str, sampler: FrontierSampler, limits: Limits, *, fresh: bool = False
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        url = storage or default_storage()
        url = url if "://" in url else f"sqlite:///{Path(url).expanduser()}"
        self._sampler, self._limits = sampler, limits
        self._asked: optuna.Trial | None = None
        self._known: dict[int, Trial] = {}
        try:
            if url.startswith("sqlite:///"):
                Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
            backend = self._backend = optuna.storages.RDBStorage(url)
            if fresh and name in optuna.get_all_study_names(backend):
                optuna.delete_study(study_name=name, storage=backend)
            self._study = optuna.create_study(
                storage=backend, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
            )
            self._end_abandoned()
        except (*_STORAGE_ERRORS, OSError, ImportError, ValueError, RuntimeError) as error:
            raise _storage_error(error) from None

    @_stored
    def stop_reason(self) -> str | None:
        """Why the sampler wants no more trials, or None."""
        return self._sampler.stop_reason(self._study)

    @_stored
    def fallback(self) -> str | None:
        """Why the sampler's own model no longer proposes, or None while it does."""
        return self._sampler.fallback(self._study)

    @_stored
    def why(self) -> str:
        """What the next config promises, in words."""
        return self._sampler.why(self._study)

    def rates(self) -> dict[FitConfig, tuple[float, float]]:
        """What is thought of each config that ran: the logarithm of its samples per second, and how unsure that is."""
        return self._sampler.proposer.rates(self.trials())

    @_stored
    def ask(self) -> FitConfig:
        """The next config to try."""
        self._asked = self._study.ask(self._sampler.distributions)
        self._asked.set_user_attr(_OWNER, {"host": socket.gethostname(), "pid": os.getpid()})
        return FitConfig.of(self._asked.params)

    @_stored
    def tell(self, measurement: Measurement) -> None:
        """Store what the config asked for last has shown.

        An OOM is a complete trial that breaks a constraint, so that samplers learn from it; a timeout or a crash is a
        pruned one, never tried again; the user's error is a failed one, and will be.
        """
        assert self._asked is not None, "tell follows ask"
        trial, self._asked = self._asked, None
        for name, value in stored.attributes(measurement).items():
            trial.set_user_attr(name, value)
        for name, value in stored.constraints_of(measurement, self._limits).items():
            trial.set_constraint(name, value)
        state = stored.state_of(measurement)
        values = (measurement.samples_per_second or 0.0) if state is TrialState.COMPLETE else None
        self._study.tell(trial, values, state=state)

    @_stored
    def abandon(self) -> None:
        """Give up what was asked for and has not been told; it may be asked for again."""
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None

    def close(self) -> None:
        """Give up what was asked for, and let go of the storage."""
        self.abandon()
        self._backend.remove_session()
        self._backend.engine.dispose()

    @_stored
    def add(self, trial: Trial) -> None:
        """Store a trial that was not asked for: a run of the confirmation that failed."""
        state = stored.state_of(trial.measurement)
        frozen = optuna.trial.create_trial(
            params={knob: getattr(trial.config, knob) for knob in self._sampler.distributions},
            distributions=self._sampler.distributions,
            state=state,
            value=(trial.measurement.samples_per_second or 0.0) if state is TrialState.COMPLETE else None,
            user_attrs=stored.attributes(trial.measurement),
        )
        for name, value in stored.constraints_of(trial.measurement, self._limits).items():
            frozen.set_constraint(name, value)
        self._study.add_trial(frozen)

    @_stored
    def trials(self) -> tuple[Trial, ...]:
        """All trials that ended, oldest first."""
        for kept in self._study.get_trials(deepcopy=False, states=stored.SPENT):
            if kept.number not in self._known and stored.MEASUREMENT in kept.user_attrs:
                self._known[kept.number] = stored.trial_of(kept, self._limits)
        return tuple(self._known[number] for number in sorted(self._known))

    @_stored
    def note(self, key: str, value: Any) -> None:
        """Keep a JSON value with the study."""
        self._study.set_user_attr(key, value)

    @_stored
    def noted(self, key: str) -> Any:
        """What was kept with the study, or None."""
        return self._study.user_attrs.get(key)

    def _end_abandoned(self) -> None:
        """Mark as failed what a process of this host was trying when it was killed."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            owner = trial.user_attrs.get(_OWNER, {})
            if owner.get("host") == socket.gethostname() and not psutil.pid_exists(owner.get("pid", 0)):
                self._study.tell(trial.number, state=TrialState.FAIL)


def _storage_error(error: Exception) -> StorageError:
    told = str(error).strip().splitlines()
    reason = told[0] if told else type(error).__name__
    return StorageError(f"the trials cannot be stored: {reason}; give a writable place as storage")
