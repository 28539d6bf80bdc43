"""Look up, list and delete the past tunes in a storage."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import TrialState
from pydantic import TypeAdapter

from autofit.errors import StorageError
from autofit.records.result import PastTune
from autofit.storage import codec, connection, urls

_TUNES = TypeAdapter(PastTune)
_RENAMED = {"chosen": "config", codec.METRIC: "samples_per_second"}  # user attributes that do not have the field's name


def attributes_of(storage: str | None, name: str) -> Mapping[str, Any] | None:
    """Read the system attributes of a study; return None if there is no such study."""
    with connection.opened(storage) as backend:
        try:
            return backend.get_study_system_attrs(backend.get_study_id_from_name(name))
        except KeyError:
            return None


def past_tunes(storage: str | None, prefix: str) -> tuple[PastTune, ...]:
    """List all tunes in a storage whose names begin with `prefix`, latest first."""
    if not urls.exists(storage):
        return ()
    with connection.opened(storage) as backend:
        studies = [study for study in backend.get_all_studies() if study.study_name.startswith(prefix)]
        tunes = [_past_tune(backend, study) for study in studies]
    return tuple(sorted(tunes, key=lambda tune: tune.started_at, reverse=True))


def forget(storage: str | None, names: tuple[str, ...]) -> None:
    """Delete tunes by their names."""
    with connection.opened(storage) as backend:
        for name in names:
            forget_study(backend, name)


def forget_study(backend: BaseStorage, name: str) -> None:
    """Delete a study, if it exists."""
    with contextlib.suppress(KeyError):
        backend.delete_study(backend.get_study_id_from_name(name))


def _past_tune(backend: BaseStorage, study: Any) -> PastTune:
    fields = {_RENAMED.get(key, key): value for key, value in study.user_attrs.items()}
    try:
        with connection.readable(study.study_name):
            states = [trial.state for trial in backend.get_all_trials(study._study_id, deepcopy=False)]
            trials = sum(state is not TrialState.FAIL for state in states)
            return _TUNES.validate_python({**fields, "name": study.study_name, "trials": trials})
    except StorageError:
        return PastTune(study.study_name, "damaged, or not written by autofit")
