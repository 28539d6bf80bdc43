"""The Optuna study of one tune: its trials and its attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import optuna
from optuna.trial import TrialState

from autofit.errors import StorageError, UsageError
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.storage import codec, connection
from autofit.storage.result_files import FAILED, MODEL, RECORD, WARM_START_KEY, has_grown, lowered


class TuningStudy:
    """Asks for the trials of one tune and stores them when they end; its name is the fingerprint of the request."""

    # The sampler's study is a copy in memory, and a trial is stored as a whole when it has ended. So a process that is
    # killed leaves no trial that seems to run, a storage that fails takes nothing from the tune, and an error in an access
    # to the storage is never one of a user's sampler.

    def __init__(
        self,
        storage: str | None,
        name: str,
        limits: Limits,
        notify: Callable[[str], None],
        *,
        fresh: bool = False,
    ) -> None:
        self._name = name
        self._notify = notify
        # or lower ones, if a result failed in the user's training (see `mark_failed`)
        self.limits = limits
        # by the search space of the caller
        self.is_allowed: Callable[[FitConfig], bool] = lambda config: True
        self._has_run = False
        self._has_failed = False
        self._opened = contextlib.ExitStack()
        self._backend = self._opened.enter_context(connection.opened(storage))
        self._open(fresh=fresh)

    @connection.explained()
    def _open(self, *, fresh: bool) -> None:
        if fresh:
            self.remove()
        optuna.create_study(
            storage=self._backend, study_name=self._name, direction="maximize", load_if_exists=True
        )
        self.attributes = dict(
            self._backend.get_study_system_attrs(self._backend.get_study_id_from_name(self._name))
        )
        self.set_attribute("study:metric_names", ["samples per second"])
        self.lowered: dict[str, int] = self.attributes.get(FAILED) or {}
        self.limits = lowered(self.limits, self.lowered)
        memory = optuna.storages.InMemoryStorage()
        optuna.copy_study(from_study_name=self._name, from_storage=self._backend, to_storage=memory)
        self._study = optuna.load_study(study_name=self._name, storage=memory)
        self._count = len(self._study.trials)
        self._trials = list[Trial]()
        # Without those that timed out or crashed, whose cause may be gone, and OOMs under limits that have grown since.
        for trial, then in codec.stored_trials(
            self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        ):
            outcome = trial.measurement.outcome
            if not outcome.is_oom or not has_grown(outcome.removesuffix("_oom"), then, self.limits):
                self._trials.append(trial)

    def forget_other_model(self, fingerprint: str) -> bool:
        """Delete the stored trials if they are of a model with another fingerprint; return whether they were."""
        is_other = self.attributes.get(MODEL) not in (None, fingerprint)
        if is_other:
            self._open(fresh=True)
        self.set_attribute(MODEL, fingerprint)
        return is_other

    @connection.explained()
    def remove(self) -> None:
        with contextlib.suppress(KeyError):
            self._backend.delete_study(self._backend.get_study_id_from_name(self._name))

    def close(self) -> None:
        self._opened.close()

    def ask(
        self, sampler: optuna.samplers.BaseSampler, suggest: Callable[[optuna.Trial], FitConfig]
    ) -> FitConfig:
        """Return the config of a new trial, which `suggest` makes with the sampler."""
        self._study.sampler = sampler
        self._asked = self._study.ask()
        return suggest(self._asked)

    def add(
        self, trial: Trial, knobs: Mapping[str, tuple[Any, ...]], *, is_asked: bool = False
    ) -> Trial:
        """Store a trial, which may be the one that was asked for, and return it with its number."""
        frozen = codec.frozen_trial(trial, self.limits, knobs)
        if is_asked:
            for key, value in frozen.user_attrs.items():
                self._asked.set_user_attr(key, value)
            for key, value in frozen.system_attrs.items():
                self._asked.storage.set_trial_system_attr(self._asked._trial_id, key, value)
            frozen = self._study.tell(self._asked, frozen.value, frozen.state)
        else:
            self._study.add_trial(frozen)
        self._has_run = True
        self._trials.append(replace(trial, number=self._count))
        self._count += (
            1  # the storage counts in the same way, unless two processes run this tune at once
        )
        self._access(partial(self._backend.create_new_trial, template_trial=frozen))
        return self._trials[-1]

    def _access(self, access: Callable[[int], Any]) -> None:
        """Call `access` with the id of the study; once a trial has run, go on without a storage that fails."""
        if self._has_failed:
            return
        try:
            with connection.explained():
                # looked up each time: SQLite gives the id of a study that another process deleted to the next new one
                access(self._backend.get_study_id_from_name(self._name))
        except StorageError as error:
            if not self._has_run:
                raise
            self._has_failed = True
            self._notify(
                f"{error}. This tune goes on, but a later one must run again what is not stored"
            )

    def trials(self) -> tuple[Trial, ...]:
        """Return the trials that count, oldest first, without those whose config `is_allowed` rejects."""
        return tuple(trial for trial in self._trials if self.is_allowed(trial.config))

    def similar_trials(self, warm_start_key: str) -> tuple[Trial, ...]:
        """Store the key that tunes of similar requests share; return the finished trials of the latest other such tune."""
        self.set_attribute(WARM_START_KEY, warm_start_key)
        with contextlib.suppress(StorageError), connection.explained():  # such as a damaged study
            for study in reversed(self._backend.get_all_studies()):
                if (
                    study.study_name != self._name
                    and study.system_attrs.get(WARM_START_KEY) == warm_start_key
                ):
                    stored = self._backend.get_all_trials(
                        study._study_id, deepcopy=False, states=(TrialState.COMPLETE,)
                    )
                    read = (trial for trial, _ in codec.stored_trials(stored))
                    if finished := tuple(
                        trial for trial in read if trial.measurement.outcome is Outcome.OK
                    ):
                        return finished
        return ()

    def set_labels(self, values: Mapping[str, Any]) -> None:
        """Store JSON values by name, which Optuna's tools show."""
        for key, value in values.items():
            self._access(partial(self._backend.set_study_user_attr, key=key, value=value))

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value
        self._access(partial(self._backend.set_study_system_attr, key=key, value=value))


def mark_failed(record: TuneRecord, memory: str, storage: str | None) -> None:
    """Store the config of a result as out of "device" or "host" memory, and drop the stored results of its tune."""
    if memory not in ("device", "host"):
        raise UsageError(f"{memory!r} is not allowed; write host or device", key="memory")
    stored = connection.attributes_of(storage, record.study)
    if stored is None:
        raise UsageError(
            f"{connection.shown(storage)} does not have the tune {record.study or 'of this result'}: "
            "give the storage of that tune, or lower the limits",
            key="storage",
        )
    changed: dict[str, Any] = {key: None for key in stored if key.startswith(RECORD)}
    if peak_bytes := getattr(record, f"{memory}_peak_bytes"):
        # a limit for later tunes: what takes as much in a trial would fail as well
        # the peak is the highest of several runs, so that single runs of a smaller config stay below it
        failed = stored.get(FAILED) or {}
        name = f"{memory}_bytes"
        changed[FAILED] = {**failed, name: min(peak_bytes - 1, failed.get(name, peak_bytes))}
    measurement = Measurement(
        Outcome(f"{memory}_oom"), Evidence(f"your training ran out of {memory} memory")
    )
    trial = Trial(record.config, measurement, "the result of an earlier tune")
    with connection.opened(storage) as backend:
        study_id = backend.get_study_id_from_name(record.study)
        backend.create_new_trial(study_id, codec.frozen_trial(trial, record.limits, {}))
        for key, value in changed.items():
            backend.set_study_system_attr(study_id, key, value)
