"""The Optuna study of one tune: storage, resume, and what is stored per trial."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from autofit.errors import StorageError
from autofit.records.trial import Limits, Trial
from autofit.storage import codec, connection, past_tunes


class TuningStudy:
    """Stores every trial as it ends.

    Args:
        where: an Optuna storage URL, `journal:FILE`, or the path of an SQLite file.
        name: the study's name: the fingerprint of the question.
        limits: the limits that the constraints are measured in.
        max_trial_seconds: how long a trial may take; one that was ended sooner does not count.
        fresh: forget what is stored under this name.

    Raises:
        StorageError: the storage cannot be opened; every method raises it, too, when the storage fails.
    """

    def __init__(
        self, where: str | None, name: str, limits: Limits, max_trial_seconds: float, *, fresh: bool = False
    ) -> None:
        self._limits, self._name, self._max_trial_seconds = limits, name, max_trial_seconds
        self._backend = connection.open_storage(where)
        self._open(fresh=fresh)

    @connection.guarded
    def _open(self, *, fresh: bool) -> None:
        self._known: dict[int, Trial] = {}
        if fresh:
            past_tunes.forget_study(self._backend, self._name)
        self._study = optuna.create_study(
            storage=self._backend, study_name=self._name, direction="maximize", load_if_exists=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.set_metric_names([codec.METRIC])
        before = self._study.get_trials(deepcopy=False, states=codec.SPENT)
        given = self._limits, self._max_trial_seconds
        self._stale = {kept.number for kept in before if not codec.is_still_valid(kept, *given)}

    def reset(self) -> None:
        """Forget what is stored: it is not of this question."""
        self._open(fresh=True)

    @connection.guarded
    def remove(self) -> None:
        """Forget that this was ever asked."""
        past_tunes.forget_study(self._backend, self._name)

    def close(self) -> None:
        """Let go of the storage."""
        connection.close(self._backend)

    @connection.guarded
    def add(self, trial: Trial, distributions: Mapping[str, BaseDistribution]) -> None:
        """Store a trial as it ended; `distributions` are those of its knobs."""
        self._see_that_it_is_there()
        self._study.add_trial(codec.frozen_trial(trial, self._limits, distributions))

    @connection.guarded
    def trials(self) -> tuple[Trial, ...]:
        """All trials that ended, oldest first, but for those of an earlier tune that had less than there is now."""
        self._see_that_it_is_there()
        for kept in self._study.get_trials(deepcopy=False, states=codec.SPENT):
            if kept.number not in {*self._known, *self._stale} and codec.MEASUREMENT in kept.user_attrs:
                self._known[kept.number] = codec.trial_of(kept, self._limits)
        return tuple(self._known[number] for number in sorted(self._known))

    @property
    def stale(self) -> int:
        """How many trials of an earlier tune do not count, since they ran out of less memory or time than there is now."""
        return len(self._stale)

    def _see_that_it_is_there(self) -> None:
        """SQLite gives the number of a study that was forgotten to the next one, which may be of another question."""
        if self._backend.get_study_name_from_id(self._study._study_id) != self._name:
            raise StorageError(connection.GONE)

    @connection.guarded
    def similar_trials(self, warm_start_key: str) -> tuple[Trial, ...]:
        """The trials of the latest tune of a similar question in the same storage."""
        return past_tunes.similar_trials(self._backend, self._name, warm_start_key)

    @connection.guarded
    def set_user_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Write what people read beside the study: JSON values by name."""
        for key, value in attributes.items():
            self._study.set_user_attr(key, value)

    @connection.guarded
    def set_attribute(self, key: str, value: Any) -> None:
        """Keep a JSON value with the study."""
        self._backend.set_study_system_attr(self._study._study_id, key, value)

    @connection.guarded
    def attribute(self, key: str) -> Any:
        """What was kept with the study, or None."""
        return self._backend.get_study_system_attrs(self._study._study_id).get(key)
