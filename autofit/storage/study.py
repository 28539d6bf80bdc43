"""The Optuna study of one tune: its trials and its attributes."""

from __future__ import annotations

import contextlib
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import optuna
import psutil
from optuna.trial import FrozenTrial, TrialState

from autofit.errors import StorageError, UsageError
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.storage import attributes, codec, connection, urls, validity

Returned = TypeVar("Returned")


class TuningStudy:
    """Asks for the trials of one tune and stores them.

    Its methods raise StorageError if the storage fails or the study was deleted. Its name is the fingerprint of the
    request. The constraints of new trials refer to `limits`, which are lower than those given if a result failed in the
    user's training (see `mark_failed`). Stored timeouts of trials that had less time than `max_trial_seconds` do not count.
    If `fresh`, an existing study is deleted first.

    `trials` omits two kinds of trials: those whose config `is_allowed` rejects, such as configs of a wider search space,
    and those whose number is in `stale`, because they failed under tighter limits than today's.

    A trial that was asked for is running, in Optuna's terms, until `tell` stores its result. Without a result it is stored
    as failed: when the next one is asked for, when the study is closed or, if the process was killed, when it is opened
    again.

    If the storage fails once a trial has run, as on a full disk, `notify` receives the reason, and a study in memory takes
    the place of the stored one.
    """

    def __init__(
        self,
        storage: str | None,
        name: str,
        limits: Limits,
        max_trial_seconds: float,
        notify: Callable[[str], None],
        *,
        fresh: bool = False,
    ) -> None:
        self.limits, self._name, self._max_trial_seconds = limits, name, max_trial_seconds
        self._backend = connection.open_storage(storage)
        self._notify, self._has_trials, self._failed = notify, False, False
        self._asked: optuna.Trial | None = None
        self.is_allowed: Callable[[FitConfig], bool] = lambda config: True
        self._open(fresh=fresh)

    @connection.guarded
    def _open(self, *, fresh: bool) -> None:
        self._read: dict[int, tuple[Trial, Limits, FrozenTrial]] = {}
        if fresh:
            self._delete()
        self._create()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.set_metric_names([codec.METRIC])
        self._fail_abandoned()
        self._read_trials()
        self.limits = validity.lowered(self.limits, self.attribute(attributes.FAILED))
        today = self.limits, self._max_trial_seconds
        self.stale = {
            n for n, (trial, then, _) in self._read.items() if not validity.trial_holds(trial.measurement, then, *today)
        }

    def _create(self) -> None:
        self._study = optuna.create_study(
            storage=self._backend, study_name=self._name, direction="maximize", load_if_exists=True
        )
        self._study_id = self._backend.get_study_id_from_name(self._name)

    def _fail_abandoned(self) -> None:
        """Store as failed what a process of this host was running when it was killed."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            match trial.system_attrs.get(attributes.PROCESS):
                # a container that was started again gives the same number to its process
                case [host, int(pid)] if host == platform.node() and (pid == os.getpid() or not psutil.pid_exists(pid)):
                    self._fail(trial._trial_id)

    def _fail(self, trial_id: int) -> None:
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process was faster
            self._backend.set_trial_state_values(trial_id, TrialState.FAIL)

    def reset(self) -> None:
        self._open(fresh=True)

    @connection.guarded
    def remove(self) -> None:
        self._delete()

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):
            self._backend.delete_study(self._backend.get_study_id_from_name(self._name))

    def close(self) -> None:
        with contextlib.suppress(StorageError):
            self._drop()
        connection.close(self._backend)

    def ask(self, sampler: optuna.samplers.BaseSampler, suggest: Callable[[optuna.Trial], FitConfig]) -> FitConfig:
        """Return the config of a new trial, which `suggest` makes with the sampler."""

        def access() -> FitConfig:
            self._drop()
            self._require_study()
            self._study.sampler = sampler
            self._asked = self._study.ask()
            process = platform.node(), os.getpid()
            self._backend.set_trial_system_attr(self._asked._trial_id, attributes.PROCESS, process)
            return suggest(self._asked)

        return self._unless_failed(access)

    @connection.guarded
    def _drop(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and asked.study is self._study:
            self._fail(asked._trial_id)

    def tell(self, trial: Trial, knobs: Mapping[str, tuple[Any, ...]]) -> Trial:
        """Store what became of the trial that was asked for; arguments and result are those of `add`."""
        return self.add(trial, knobs, is_asked=True)

    def add(self, trial: Trial, knobs: Mapping[str, tuple[Any, ...]], *, is_asked: bool = False) -> Trial:
        """Store a trial and return it with its number; `knobs` has the ascending values of each searched knob."""
        self._has_trials = True
        frozen = codec.frozen_trial(trial, self.limits, knobs)
        number = self._unless_failed(lambda: self._store(frozen, self._asked if is_asked else None))
        numbered = replace(trial, number=number)
        self._read[number] = numbered, self.limits, frozen  # also if it is stored: reading it may fail
        if is_asked:
            self._asked = None
        return numbered

    def _store(self, frozen: FrozenTrial, asked: optuna.Trial | None) -> int:
        self._require_study()
        if asked is None or not self._is_running(asked):
            return self._backend.get_trial(self._backend.create_new_trial(self._study_id, frozen)).number
        for key, value in frozen.user_attrs.items():
            self._backend.set_trial_user_attr(asked._trial_id, key, value)
        for key, value in frozen.system_attrs.items():
            self._backend.set_trial_system_attr(asked._trial_id, key, value)
        self._study.tell(asked, frozen.value, frozen.state)
        return asked.number

    def _is_running(self, asked: optuna.Trial) -> bool:
        """Return whether a trial can take its result: its storage is in use, and no other program ended or replaced it."""
        if asked.study is not self._study:
            return False
        stored = self._backend.get_trial(asked._trial_id)
        return stored.state is TrialState.RUNNING and stored.datetime_start == asked.datetime_start

    def _unless_failed(self, access: Callable[[], Returned]) -> Returned:
        """Access the storage; if that fails once there are trials to keep, access a study in memory instead."""
        access = connection.guarded(access)
        try:
            return access()
        except connection.StudyGoneError:
            raise
        except StorageError as error:
            if self._failed or not self._has_trials:
                raise
            self._failed = True
            self._notify(f"{error}. This tune goes on, but a later one must run again what is not stored")
            self._go_on_in_memory()
            return access()

    def _go_on_in_memory(self) -> None:
        connection.close(self._backend)
        self._backend = optuna.storages.InMemoryStorage()
        self._create()
        other = optuna.trial.create_trial(state=TrialState.FAIL)
        for number in range(max(self._read, default=-1) + 1):
            self._backend.create_new_trial(self._study_id, self._read[number][2] if number in self._read else other)

    def trials(self) -> tuple[Trial, ...]:
        """Return the finished trials, oldest first, without those that are stale or not allowed."""
        self._unless_failed(self._read_trials)
        valid = (read[0] for number, read in sorted(self._read.items()) if number not in self.stale)
        return tuple(trial for trial in valid if self.is_allowed(trial.config))

    def _read_trials(self) -> None:
        """Read the trials that were stored since the last call; skip trials of other programs."""
        self._require_study()
        stored = self._study.get_trials(deepcopy=False, states=codec.FINISHED)
        with connection.readable(self._name):
            for trial in stored:
                if trial.number not in self._read and (read := codec.stored_trial(trial)) is not None:
                    self._read[trial.number] = *read, trial

    @connection.guarded
    def similar_trials(self, warm_start_key: str) -> tuple[Trial, ...]:
        """Return the finished trials of the latest other tune with this key, which tunes of similar requests share."""
        others = [study for study in self._backend.get_all_studies() if study.study_name != self._name]
        for study in sorted(others, key=lambda study: study._study_id, reverse=True):
            study_attributes = self._backend.get_study_system_attrs(study._study_id)
            if study_attributes.get(attributes.WARM_START_KEY) != warm_start_key:
                continue
            trials = []
            with contextlib.suppress(StorageError), connection.readable(study.study_name):  # a damaged study is skipped
                stored = self._backend.get_all_trials(study._study_id, deepcopy=False, states=codec.FINISHED)
                trials = [read[0] for trial in stored if (read := codec.stored_trial(trial)) is not None]
            finished = tuple(trial for trial in trials if trial.measurement.outcome is Outcome.OK)
            if finished:
                return finished
        return ()

    def set_user_attributes(self, values: Mapping[str, Any]) -> None:
        """Store JSON values by name, for people who inspect the study."""

        def store() -> None:
            for key, value in values.items():
                self._study.set_user_attr(key, value)

        self._unless_failed(store)

    def set_attribute(self, key: str, value: Any) -> None:
        self._unless_failed(lambda: self._backend.set_study_system_attr(self._study_id, key, value))

    @connection.guarded
    def attribute(self, key: str) -> Any:
        """Return a value stored with the study, or None if there is none."""
        return self._backend.get_study_system_attrs(self._study_id).get(key)

    def _require_study(self) -> None:
        """Raise StorageError if the study was deleted; SQLite gives the id of a deleted study to the next new one."""
        if self._backend.get_study_name_from_id(self._study_id) != self._name:
            raise connection.study_is_gone()


def mark_failed(record: TuneRecord, memory: str, storage: str | None) -> None:
    """Store the config of a result as out of "device" or "host" memory, and drop the stored results of its tune."""
    if memory not in ("device", "host"):
        raise UsageError(f"{memory!r} is not allowed; write host or device", key="memory")
    stored = connection.attributes_of(storage, record.study)
    if stored is None:
        raise UsageError(
            f"{urls.shown(storage)} does not have the tune {record.study or 'of this result'}: it was deleted, or it ran "
            "with another storage or on another machine. Give the storage that the tune had, or lower the limits",
            key="storage",
        )
    measurement = Measurement(Outcome(f"{memory}_oom"), Evidence(f"your training ran out of {memory} memory"))
    trial = codec.frozen_trial(Trial(record.config, measurement, "the result of an earlier tune"), record.limits, {})
    changed: dict[str, Any] = {key: None for key in stored if key.startswith(attributes.RECORD)}
    if peak_bytes := record.device_peak_bytes if memory == "device" else record.host_peak_bytes:
        # a limit for later tunes: what takes as much in a trial would fail as well
        # the peak is the highest of several confirming runs, so that single runs of a smaller config stay below it
        failed, name, below = stored.get(attributes.FAILED) or {}, f"{memory}_bytes", peak_bytes - 1
        changed[attributes.FAILED] = {**failed, name: min(below, failed.get(name, below))}
    with connection.opened(storage) as backend:
        study_id = backend.get_study_id_from_name(record.study)
        backend.create_new_trial(study_id, trial)
        for key, value in changed.items():
            backend.set_study_system_attr(study_id, key, value)
