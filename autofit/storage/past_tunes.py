"""Past tunes in a storage: look up, list and delete them, and find those similar to a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import TrialState

from autofit.records.result import PastTune
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Trial
from autofit.storage import attributes, codec, connection, urls


def attributes_of(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """Read the system attributes of a study; None if there is no such study.

    Raises:
        StorageError: the storage cannot be read.
    """
    if not urls.exists(storage):
        return None
    with connection.opened(storage) as backend:
        try:
            return backend.get_study_system_attrs(backend.get_study_id_from_name(name))
        except KeyError:
            return None


def similar_trials(backend: BaseStorage, name: str, warm_start_key: str) -> tuple[Trial, ...]:
    """The finished trials of the latest other tune with this key, which tunes of one workload and hardware share."""
    others = [
        study
        for study in backend.get_all_studies()
        if study.study_name != name
        and backend.get_study_system_attrs(study._study_id).get(attributes.WARM_START_KEY) == warm_start_key
    ]
    for study in sorted(others, key=lambda study: study._study_id, reverse=True):
        stored = backend.get_all_trials(study._study_id, deepcopy=False, states=codec.FINISHED)
        trials = [codec.trial_of(trial, Limits(None, 1)) for trial in stored if codec.MEASUREMENT in trial.user_attrs]
        finished = tuple(trial for trial in trials if trial.measurement.outcome is Outcome.OK)
        if finished:
            return finished
    return ()


def past_tunes(storage: str | None, prefix: str) -> tuple[PastTune, ...]:
    """List all tunes in a storage whose names begin with `prefix`, latest first.

    Raises:
        StorageError: the storage cannot be read.
    """
    if not urls.exists(storage):
        return ()
    with connection.opened(storage) as backend:
        studies = [study for study in backend.get_all_studies() if study.study_name.startswith(prefix)]
        tunes = [_past_tune(backend, study) for study in studies]
    return tuple(sorted(tunes, key=lambda tune: tune.started_at, reverse=True))


def forget(storage: str | None, names: tuple[str, ...]) -> None:
    """Delete tunes by their names.

    Raises:
        StorageError: the storage cannot be written.
    """
    with connection.opened(storage) as backend:
        for name in names:
            forget_study(backend, name)


def forget_study(backend: BaseStorage, name: str) -> None:
    """Delete a study, if it exists."""
    with contextlib.suppress(KeyError):
        backend.delete_study(backend.get_study_id_from_name(name))


def _past_tune(backend: BaseStorage, study: Any) -> PastTune:
    user_attributes = study.user_attrs
    states = [trial.state for trial in backend.get_all_trials(study._study_id, deepcopy=False)]
    return PastTune(
        name=study.study_name,
        title=user_attributes.get("title", ""),
        started_at=user_attributes.get("started_at", 0.0),
        host=user_attributes.get("host", ""),
        device=user_attributes.get("device", ""),
        limits=user_attributes.get("limits", ""),
        trials=sum(state is not TrialState.FAIL for state in states),
        config=user_attributes.get("chosen", ""),
        samples_per_second=user_attributes.get(codec.METRIC),
    )
