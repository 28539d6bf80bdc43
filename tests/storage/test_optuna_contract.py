"""What `autofit.storage` takes from Optuna beyond its documented interface, each pinned against the installed version."""

import contextlib
import sqlite3
from datetime import datetime

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

VALUES = {"text": "x", "nested": {"list": [1, 2.5, None, True]}, "long": "y" * 5000}


@contextlib.contextmanager
def relied_on_by(file, fact):
    """Name the broken fact, and the file to change, when a check of the block fails."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
        pytest.fail(
            f"Optuna {optuna.__version__} changed {fact}; autofit/storage/{file} relies on it. {problem}", pytrace=False
        )


@pytest.fixture
def database(tmp_path):
    backend = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/t.db")
    yield backend
    backend.remove_session()
    backend.engine.dispose()


@pytest.fixture(params=["database", "journal"])
def backend(request, tmp_path):
    """The two kinds of storage that autofit opens."""
    if request.param == "database":
        return request.getfixturevalue("database")
    return optuna.storages.JournalStorage(JournalFileBackend(f"{tmp_path}/t.log"))


def create_study(backend, name):
    return optuna.create_study(storage=backend, study_name=name, direction="maximize")


def rows(tmp_path, query):
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        return connection.execute(query).fetchall()


def template():
    trial = create_trial(
        params={"batch_size": 8, "use_multiprocessing": True},
        distributions={
            "batch_size": IntDistribution(1, 1024, log=True),
            "use_multiprocessing": CategoricalDistribution((False, True)),
        },
        state=TrialState.COMPLETE,
        value=123.5,
        user_attrs=VALUES,
        system_attrs={"constraints": [0.5, -0.25]},
    )
    trial.set_constraint("device_memory", 0.5)
    trial.datetime_start = datetime(2026, 1, 2, 3, 4, 5)
    return trial


def test_studies_have_ascending_ids(backend):
    ids = {name: create_study(backend, name)._study_id for name in ("first", "second")}
    with relied_on_by("study.py", "FrozenStudy._study_id, the ascending id that storages take"):
        assert {study.study_name: study._study_id for study in backend.get_all_studies()} == ids
        assert ids["first"] < ids["second"], ids
    with relied_on_by("study.py", "get_study_id_from_name and its inverse"):
        assert {name: backend.get_study_id_from_name(name) for name in ids} == ids
        assert [backend.get_study_name_from_id(study_id) for study_id in ids.values()] == list(ids)


def test_a_study_that_does_not_exist_raises_a_key_error(backend):
    study_id = create_study(backend, "a")._study_id
    backend.delete_study(study_id)
    calls = {
        "get_study_id_from_name": lambda: backend.get_study_id_from_name("a"),
        "get_study_name_from_id": lambda: backend.get_study_name_from_id(study_id),
        "set_study_system_attr": lambda: backend.set_study_system_attr(study_id, "key", 1),
        "create_new_trial": lambda: backend.create_new_trial(study_id, template()),
    }
    for name, call in calls.items():
        with relied_on_by("connection.py", f"the KeyError of {name} for a study that was deleted"), pytest.raises(KeyError):
            call()


def test_system_attributes_keep_json_values(backend):
    study_id = create_study(backend, "a")._study_id
    with relied_on_by("study.py", "set_study_system_attr and get_study_system_attrs"):
        assert backend.get_study_system_attrs(study_id) == {}
        for key, value in VALUES.items():
            backend.set_study_system_attr(study_id, key, value)
        assert backend.get_study_system_attrs(study_id) == VALUES


def test_a_trial_is_created_from_a_template(backend):
    study = create_study(backend, "a")
    with relied_on_by("study.py", "create_new_trial(study_id, template)"):
        trial_ids = [backend.create_new_trial(study._study_id, template()) for _ in range(2)]
        assert [backend.get_trial(trial_id).number for trial_id in trial_ids] == [0, 1]
    with relied_on_by("codec.py", "the fields of a trial that was created from a template"):
        stored = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))[0]
        assert (stored.state, stored.value, stored.params) == (TrialState.COMPLETE, 123.5, template().params)
        assert stored.user_attrs == VALUES
        assert stored.datetime_start == template().datetime_start
        assert stored.constraints["device_memory"] == 0.5
        assert stored.system_attrs["constraints"] == [0.5, -0.25], "optuna-dashboard reads the constraints there"


def test_a_trial_is_asked_and_told(backend):
    study = create_study(backend, "a")
    asked = study.ask(template().distributions)
    with relied_on_by("study.py", "the state and the start of a trial that was asked for"):
        running = study.get_trials(states=(TrialState.RUNNING,))
        assert [(trial.number, trial._trial_id) for trial in running] == [(asked.number, asked._trial_id)]
        assert running[0].datetime_start == asked.datetime_start
    with relied_on_by("study.py", "a constraint that is set by its attribute, as in a template"):
        backend.set_trial_system_attr(asked._trial_id, "constraints:device_memory", 0.5)
        study.tell(asked, None, TrialState.PRUNED)
        assert study.get_trials()[0].constraints == {"device_memory": 0.5}
    finished = pytest.raises(optuna.exceptions.UpdateFinishedTrialError)
    with relied_on_by("study.py", "the error for a trial that is finished"), finished:
        backend.set_trial_state_values(asked._trial_id, TrialState.FAIL)


def test_a_sampler_that_stops_the_study_raises_when_its_trial_is_told(backend):
    study = optuna.create_study(storage=backend, sampler=optuna.samplers.GridSampler({"batch_size": [8]}))
    asked = study.ask({"batch_size": IntDistribution(1, 16)})
    with relied_on_by("../search/sampler.py", "the error of Study.stop outside of Study.optimize"):
        with pytest.raises(RuntimeError, match=r"Study\.stop"):
            study.tell(asked, 1.0)
        assert study.get_trials()[0].state is TrialState.COMPLETE


def test_a_study_in_memory_takes_trials_under_their_numbers(backend):
    trial_id = backend.create_new_trial(create_study(backend, "a")._study_id, template())
    memory = optuna.storages.InMemoryStorage()
    study = create_study(memory, "a")
    with relied_on_by("study.py", "create_new_trial of an InMemoryStorage"):
        for trial in (create_trial(state=TrialState.FAIL), backend.get_trial(trial_id)):
            memory.create_new_trial(study._study_id, trial)
        assert [(trial.number, trial.params) for trial in study.trials] == [(0, {}), (1, template().params)]
        assert study.ask().number == 2


def test_user_attributes_of_trials_have_their_table(database, tmp_path):
    database.create_new_trial(create_study(database, "a")._study_id, template())
    with relied_on_by("codec.py", "the table trial_user_attributes, where other programs read stored trials"):
        assert {key for (key,) in rows(tmp_path, "SELECT key FROM trial_user_attributes")} == set(VALUES)
        assert rows(tmp_path, "SELECT value_json FROM trial_user_attributes WHERE key = 'text'") == [('"x"',)]
