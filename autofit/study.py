"""The Optuna study of one tune: storage, resume, and what is stored per trial."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import optuna
import platformdirs
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from autofit import stored
from autofit.errors import StorageError
from autofit.proposal import Decision
from autofit.records import FitConfig, Limits, Trial
from autofit.sampler import FrontierSampler

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
        except (*_STORAGE_ERRORS, OSError, ImportError, ValueError, RuntimeError) as error:
            raise _storage_error(error) from None

    def decide(self, trials: tuple[Trial, ...]) -> Decision:
        """What to do after these trials."""
        return self._sampler.proposer.decide(trials)

    @_stored
    def ask(self) -> FitConfig:
        """A config that the sampler draws, from a copy of the study: here a trial is kept when it has ended, not before."""
        copy = optuna.create_study(direction="maximize", sampler=self._sampler)
        copy.add_trials(self._study.get_trials(deepcopy=False, states=stored.SPENT))
        return FitConfig.of(copy.ask(self._sampler.distributions).params)

    def rates(self) -> dict[FitConfig, tuple[float, float]]:
        """What is thought of each config that ran: the logarithm of its samples per second, and how unsure that is."""
        return self._sampler.proposer.rates(self.trials())

    def close(self) -> None:
        """Let go of the storage."""
        self._backend.remove_session()
        self._backend.engine.dispose()

    @_stored
    def add(self, trial: Trial) -> None:
        """Store a trial as it ended.

        An OOM is a complete trial that breaks a constraint, so that samplers learn from it; a timeout or a crash is a
        pruned one, never tried again; the user's error is a failed one, and will be.
        """
        state = stored.state_of(trial.measurement)
        frozen = optuna.trial.create_trial(
            params={knob: getattr(trial.config, knob) for knob in self._sampler.distributions},
            distributions=self._sampler.distributions,
            state=state,
            value=(trial.measurement.samples_per_second or 0.0) if state is TrialState.COMPLETE else None,
            user_attrs=stored.attributes(trial),
        )
        for name, value in stored.constraints_of(trial.measurement, self._limits).items():
            frozen.set_constraint(name, value)
        frozen.datetime_start = datetime.now() - timedelta(seconds=trial.measurement.seconds)
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


def _storage_error(error: Exception) -> StorageError:
    told = str(error).strip().splitlines()
    reason = told[0] if told else type(error).__name__
    return StorageError(f"the trials cannot be stored: {reason}; give a writable place as storage")
