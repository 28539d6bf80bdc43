"""Any Optuna storage."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.trial import TrialState

from autofit.errors import StorageError, UserCodeError
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, Measurement, Trial
from autofit.storage import connection
from autofit.tuning import engine
from tests.fakes import BASELINE, FakeLauncher, collect, make_request, tune


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("{}/t.db", RDBStorage),
        ("sqlite:///{}/new/folder/t.db", RDBStorage),
        ("journal:{}/t.log", JournalStorage),
        ("{}/t{{0}}.db", RDBStorage),
        ("{}/a%20b.db", RDBStorage),
        ("{}/what?.db", RDBStorage),
        ("{}/no#1 ü.db", RDBStorage),
        ("sqlite:///{}/t{{0}}.db", RDBStorage),
        ("sqlite:///{}/a%20b.db", RDBStorage),
    ],
)
def test_any_storage_returns_the_result_of_a_tune(tmp_path, where, kind):
    storage = where.format(tmp_path)
    assert not connection.file_of(storage).exists()
    _, first = collect(tune, make_request(tmp_path, storage=storage), FakeLauncher())
    again = FakeLauncher()
    assert collect(tune, make_request(tmp_path, storage=storage), again)[1] == first
    assert again.specs == []
    assert connection.file_of(storage).exists()
    if "://" not in storage and not storage.startswith("journal:"):
        assert Path(storage).is_file()
    with connection.opened(storage) as backend:
        assert isinstance(backend, kind)


def test_processes_that_make_a_storage_at_the_same_time_all_get_it(tmp_path):
    def names(file):
        with connection.opened(f"sqlite:///{file}") as backend:
            return backend.get_all_studies()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(names, [tmp_path / "t.db"] * 4)) == [[]] * 4


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ("nosuchdb://x", "nosuchdb"),
        ("postgresql://nobody@127.0.0.1:1/none", "start its server|postgresql"),
        ("sqlite:////proc/none/t.db", "/proc/none.* give a storage that is writable"),
        ("journal:/proc/none/t.log", "/proc/none.* give a storage that is writable"),
        ("{}/diary", "file is not a database"),
    ],
)
def test_a_storage_that_cannot_be_opened_raises(storage, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 0)
    (tmp_path / "diary").write_text("this is a diary, not a database")
    with (
        pytest.raises(StorageError, match=reason),
        connection.opened(storage.format(tmp_path)),
    ):
        pass


def test_the_study_shows_in_optunas_terms_what_was_measured(tmp_path):
    where = f"sqlite:///{tmp_path}/t.db"
    _, record = collect(
        tune, make_request(tmp_path, storage=where, device_bytes=2**28), FakeLauncher()
    )
    with connection.opened(where) as backend:
        (study,) = backend.get_all_studies()
        trial = backend.get_all_trials(study._study_id)[0]
    first = record.trials[0]
    assert (trial.params, trial.value) == (
        first.config.values(),
        first.measurement.samples_per_second,
    )
    assert trial.system_attrs["constraints"] == [
        trial.constraints["device_memory"],
        trial.constraints["host_memory"],
    ]
    assert study.user_attrs["fastest"].startswith(f"{record.config}: ")


@pytest.mark.parametrize(
    "content", [b"notes\nof mine", b'{"op_code": 0', b"\x00\x01\n\x02"]
)
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with (
        contextlib.suppress(StorageError),
        connection.opened(f"journal:{file}") as backend,
    ):
        backend.get_all_studies()
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("storage", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql+psycopg://me:***@host/db"),
        (
            "postgres://me:se:cr@et@host:5432/db",
            "postgresql+psycopg://me:***@host:5432/db",
        ),
        ("foo://me:secret@host", "foo://me:***@host"),
        ("journal:/a/b@c.log", "journal:/a/b@c.log"),
    ],
)
def test_a_password_is_never_shown(storage, shown, monkeypatch):
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 0)
    assert connection.shown(storage) == shown
    if "secret" in storage:
        for block in (connection.opened(storage), connection.explained()):
            with pytest.raises(StorageError) as error, block:
                raise RuntimeError("tried") from ValueError(f"no {storage}\nat all")
            assert "secret" not in str(error.value)


def test_a_locked_database_is_said_to_be_locked(tmp_path, monkeypatch):
    file = tmp_path / "trials.db"
    with connection.opened(str(file)):
        pass
    monkeypatch.setattr(connection, "_BUSY_SECONDS", 0.01)
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 0)
    holder = sqlite3.connect(file)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="database is locked"):
        collect(tune, make_request(tmp_path, storage=str(file)), FakeLauncher())
    holder.close()


@pytest.mark.parametrize(
    ("kind", "finished"),
    [("journal:{}/t.log", 2), ("sqlite:///{}/t.db", 2), ("{}/t.db", 9)],
)
def test_a_tune_that_was_killed_goes_on_and_leaves_no_running_trial(
    tmp_path, kind, finished
):
    """Nine have finished: six trials, and half of the runs beside each other.

    The runs beside each other begin anew.
    """
    request = make_request(tmp_path, storage=kind.format(tmp_path))
    program = """if True:
        import os, pathlib, signal, sys
        from tests.fakes import BASELINE, FakeLauncher, make_request, tune

        class Killed(FakeLauncher):
            def measure(self, spec):
                if len(self.specs) == int(sys.argv[3]) + 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().measure(spec)

        request = make_request(pathlib.Path(sys.argv[1]), storage=sys.argv[2])
        tune(request, Killed(), lambda event: None)
    """

    def states():
        with connection.opened(request.settings.storage) as backend:
            trials = backend.get_all_trials(
                backend.get_study_id_from_name(request.fingerprint())
            )
            return [trial.state for trial in trials]

    command = [
        sys.executable,
        "-c",
        program,
        tmp_path,
        request.settings.storage,
        str(finished),
    ]
    assert (
        subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode
        == -signal.SIGKILL
    )
    assert states() == finished * [TrialState.COMPLETE]
    events, record = collect(tune, request, FakeLauncher())
    ran = [event for event in events if isinstance(event, Trial)]
    assert len(record.trials) + len(record.runs) == finished + len(ran)
    beside = [trial.config for trial in ran if trial.stage == "beside"]
    assert (
        beside.count(BASELINE)
        == beside.count(record.config)
        == record.speedup.pairs
        == 3
    )
    assert states() == (finished + len(ran)) * [TrialState.COMPLETE]


def failed_description():
    return Measurement(
        Outcome.ERROR, Evidence("boom"), 1.0, traceback="ValueError: boom"
    )


@pytest.mark.parametrize("kind", ["{}/t.db", "journal:{}/t.log"])
def test_a_tune_that_fails_leaves_what_another_process_stored_meanwhile(tmp_path, kind):
    request = make_request(tmp_path, storage=kind.format(tmp_path))
    other = []

    class Failing(FakeLauncher):
        def run(self, spec, on_phase):
            other.append(tune(request, FakeLauncher(), lambda event: None))
            on_phase(Phase.TRAINING)
            return failed_description()

    with pytest.raises(UserCodeError, match="boom"):
        engine.tune(request, Failing(), lambda event: None)
    again = FakeLauncher()
    assert tune(request, again, lambda event: None) == other[0]
    assert again.specs == []


def test_the_users_error_is_shown_although_the_storage_breaks(tmp_path):
    class Failing(FakeLauncher):
        def run(self, spec, on_phase):
            (tmp_path / "t.db").write_text("damaged by another program " * 1000)
            on_phase(Phase.TRAINING)
            return failed_description()

    request = make_request(tmp_path, storage=f"{tmp_path}/t.db")
    with pytest.raises(UserCodeError, match="boom"):
        engine.tune(request, Failing(), lambda event: None)
