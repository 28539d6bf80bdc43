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
from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.storage import codec, connection
from autofit.storage.result_files import (
    FAILED,
    MODEL,
    RECORD,
    WARM_START_KEY,
    has_grown,
)


class TuningStudy:
    """Stores the trials of one tune when they end, and asks a user's sampler for new ones.

    `name` is the fingerprint of the request.
    """

    # The sampler's study is a copy in memory, and a trial is stored as a whole when it has ended.
    # So a process that is killed leaves no trial that seems to run, a storage that fails takes
    # nothing from the tune, and an error in an access to the storage is never one of a user's
    # sampler.

    def __init__(
        self,
        storage: str | None,
        name: str,
        notify: Callable[[str], None],
        *,
        fresh: bool = False,
    ) -> None:
        self._name = name
        self._notify = notify
        self._has_run = False
        self._has_failed = False
        self._opened = contextlib.ExitStack()
        self._backend = self._opened.enter_context(connection.opened(storage))
        self._open(fresh=fresh)

    @connection.explained()
    def _open(self, *, fresh: bool) -> None:
        if fresh:
            with contextlib.suppress(KeyError):
                self._backend.delete_study(self._study_id())
        optuna.create_study(
            storage=self._backend,
            study_name=self._name,
            direction="maximize",
            load_if_exists=True,
        )
        self.attributes = dict(self._backend.get_study_system_attrs(self._study_id()))
        self.set_attribute("study:metric_names", ["samples per second"])
        memory = optuna.storages.InMemoryStorage()
        optuna.copy_study(
            from_study_name=self._name, from_storage=self._backend, to_storage=memory
        )
        self._study = optuna.load_study(study_name=self._name, storage=memory)
        self._count = len(self._study.trials)
        self._trials = list[Trial]()

    def _study_id(self) -> int:
        # looked up each time: SQLite gives the id of a study that another process deleted to the
        # next new one
        return self._backend.get_study_id_from_name(self._name)

    def resume(self, limits: Limits) -> None:
        """Take up the trials that earlier runs of this tune have stored and that count."""
        # Without those that timed out or crashed, whose cause may be gone, and OOMs under limits
        # that have grown since.
        complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        for trial, then in codec.stored_trials(complete):
            outcome = trial.measurement.outcome
            if not outcome.is_oom or not has_grown(
                outcome.removesuffix("_oom"), then, limits
            ):
                self._trials.append(trial)

    def leave_out(self, is_foreign: Callable[[FitConfig], bool]) -> None:
        """Leave out the trials so far whose config is foreign to the problem."""
        self._trials = [trial for trial in self._trials if not is_foreign(trial.config)]

    def forget_other_model(self, fingerprint: str) -> bool:
        """Delete the trials if they are of another model; return whether they were."""
        is_other = self.attributes.get(MODEL) not in (None, fingerprint)
        if is_other:
            self._open(fresh=True)
        self.set_attribute(MODEL, fingerprint)
        return is_other

    def close(self) -> None:
        self._opened.close()

    def ask(self, sampler: optuna.samplers.BaseSampler) -> optuna.Trial:
        """Return a new trial of Optuna, whose values the sampler suggests."""
        self._study.sampler = sampler
        return self._study.ask()

    def add(
        self,
        trial: Trial,
        limits: Limits,
        knobs: Mapping[str, tuple[Any, ...]],
        asked: optuna.Trial | None = None,
    ) -> Trial:
        """Store a trial, as the one that was `asked` for, if any; return it with its number."""
        frozen = codec.frozen_trial(trial, limits, knobs)
        if asked is None:
            self._study.add_trial(frozen)
        else:
            for key, value in frozen.user_attrs.items():
                asked.set_user_attr(key, value)
            for key, value in frozen.system_attrs.items():
                asked.storage.set_trial_system_attr(asked._trial_id, key, value)
            frozen = self._study.tell(asked, frozen.value, frozen.state)
        self._has_run = True
        numbered = replace(trial, number=self._count)
        self._trials.append(numbered)
        # the storage counts in the same way, unless two processes run this tune at once
        self._count += 1
        self._access(partial(self._backend.create_new_trial, template_trial=frozen))
        return numbered

    def _access(self, access: Callable[[int], Any]) -> None:
        """Call `access` with the id of the study; once a trial has run, go on if that fails."""
        if self._has_failed:
            return
        try:
            with connection.explained():
                access(self._study_id())
        except StorageError as error:
            if not self._has_run:
                raise
            self._has_failed = True
            consequence = (
                "This tune goes on, but a later one must run again what is not stored"
            )
            self._notify(f"{error}. {consequence}")

    def trials(self) -> tuple[Trial, ...]:
        """Return the trials that count, oldest first."""
        return tuple(self._trials)

    def similar_trials(self, warm_start_key: str) -> tuple[Trial, ...]:
        """Return the finished trials of the latest other tune that stored the same key.

        The key, which tunes of similar requests share, is stored for this tune, too.
        """
        self.set_attribute(WARM_START_KEY, warm_start_key)
        # such as a damaged study
        with contextlib.suppress(StorageError), connection.explained():
            for study in reversed(self._backend.get_all_studies()):
                is_similar = study.system_attrs.get(WARM_START_KEY) == warm_start_key
                if study.study_name == self._name or not is_similar:
                    continue
                stored = self._backend.get_all_trials(
                    study._study_id, deepcopy=False, states=(TrialState.COMPLETE,)
                )
                finished = [
                    trial
                    for trial, _ in codec.stored_trials(stored)
                    if trial.measurement.outcome is Outcome.OK
                ]
                if finished:
                    return tuple(finished)
        return ()

    def set_labels(self, values: Mapping[str, Any]) -> None:
        """Store JSON values by name, which Optuna's tools show."""
        for key, value in values.items():
            self._access(
                partial(self._backend.set_study_user_attr, key=key, value=value)
            )

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value
        self._access(partial(self._backend.set_study_system_attr, key=key, value=value))


def mark_failed(
    record: TuneRecord, answer: Answer, memory: str, storage: str | None
) -> None:
    """Store an answer of a tune as out of "device" or "host" memory; drop the tune's results."""
    if memory not in ("device", "host"):
        raise UsageError(
            f"{memory!r} is not allowed; write host or device", key="memory"
        )
    stored = connection.attributes_of(storage, record.study)
    if stored is None:
        problem = f"does not have the tune {record.study or 'of this result'}"
        remedy = "give the storage of that tune, or lower the limits"
        raise UsageError(
            f"{connection.shown(storage)} {problem}: {remedy}", key="storage"
        )
    changed: dict[str, Any] = {key: None for key in stored if key.startswith(RECORD)}
    peak_bytes = getattr(answer, f"{memory}_peak_bytes")
    if peak_bytes:
        # A limit for later tunes: what takes as much in a trial would fail as well. The peak is the
        # highest of several runs, so that single runs of a smaller config stay below it.
        failed = stored.get(FAILED) or {}
        name = f"{memory}_bytes"
        lower = min(peak_bytes - 1, failed.get(name, peak_bytes))
        changed[FAILED] = {**failed, name: lower}
    evidence = Evidence(f"your training ran out of {memory} memory")
    measurement = Measurement(Outcome(f"{memory}_oom"), evidence)
    trial = Trial(answer.config, measurement, "the result of an earlier tune")
    with connection.opened(storage) as backend:
        study_id = backend.get_study_id_from_name(record.study)
        backend.create_new_trial(study_id, codec.frozen_trial(trial, record.limits, {}))
        for key, value in changed.items():
            backend.set_study_system_attr(study_id, key, value)
