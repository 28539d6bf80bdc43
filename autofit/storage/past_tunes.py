"""Past tunes: found again by their fingerprint, found as relatives of a new question, listed and forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.storages import BaseStorage

from autofit.records.result import PastTune
from autofit.records.trial import Limits, Outcome, Trial
from autofit.storage import attributes, codec, connection, urls


def attributes_of(where: str | None, name: str) -> Mapping[str, Any] | None:
    """What is kept with a study; None where there is no such study.

    Raises:
        StorageError: the storage cannot be read.
    """
    if not urls.exists(where):
        return None
    with connection.opened(where) as backend:
        try:
            return backend.get_study_system_attrs(backend.get_study_id_from_name(name))
        except KeyError:
            return None


def similar_trials(backend: BaseStorage, name: str, warm_start_key: str) -> tuple[Trial, ...]:
    """The trials that ran of the latest other question with this kinship: the same model and device, asked otherwise."""
    others = [
        study
        for study in backend.get_all_studies()
        if study.study_name != name
        and backend.get_study_system_attrs(study._study_id).get(attributes.WARM_START_KEY) == warm_start_key
    ]
    for study in sorted(others, key=lambda study: study._study_id, reverse=True):
        kept = backend.get_all_trials(study._study_id, deepcopy=False, states=codec.FINISHED)
        trials = [codec.trial_of(trial, Limits(None, 1)) for trial in kept if codec.MEASUREMENT in trial.user_attrs]
        ran = tuple(t for t in trials if t.measurement.outcome is Outcome.OK)
        if ran:
            return ran
    return ()


def past_tunes(where: str | None, prefix: str) -> tuple[PastTune, ...]:
    """All tunes that a storage holds, latest first; their names begin with `prefix`.

    Raises:
        StorageError: the storage cannot be read.
    """
    if not urls.exists(where):
        return ()
    with connection.opened(where) as backend:
        found = [_past_tune(backend, study) for study in backend.get_all_studies() if study.study_name.startswith(prefix)]
    return tuple(sorted(found, key=lambda past: past.started_at, reverse=True))


def forget(where: str | None, names: tuple[str, ...]) -> None:
    """Delete tunes by their names.

    Raises:
        StorageError: the storage cannot be written.
    """
    with connection.opened(where) as backend:
        for name in names:
            forget_study(backend, name)


def forget_study(backend: BaseStorage, name: str) -> None:
    """Delete a study, if it is there."""
    with contextlib.suppress(KeyError):
        backend.delete_study(backend.get_study_id_from_name(name))


def _past_tune(backend: BaseStorage, study: Any) -> PastTune:
    told = study.user_attrs
    states = [trial.state for trial in backend.get_all_trials(study._study_id, deepcopy=False)]
    return PastTune(
        name=study.study_name,
        title=told.get("title", ""),
        started_at=told.get("started_at", 0.0),
        host=told.get("host", ""),
        device=told.get("device", ""),
        limits=told.get("limits", ""),
        trials=sum(state is not optuna.trial.TrialState.FAIL for state in states),
        config=told.get("chosen", ""),
        samples_per_second=told.get(codec.METRIC),
    )
