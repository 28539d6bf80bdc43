"""What `autofit.storage` takes from Optuna beyond its documented interface: change it there if Optuna changes it."""

import contextlib
import sqlite3
from datetime import datetime

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

VALUES = {"text": "x", "nested": {"list": [1, 2.5, None, True]}, "long": "y" * 5000}


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
    return optuna.create_study(storage=backend, study_name=name, direction="maximize")._study_id


def template():
    trial = create_trial(
        params={"batch_size": 8, "processes": True},
        distributions={"batch_size": IntDistribution(1, 9, log=True), "processes": CategoricalDistribution((False, True))},
        state=TrialState.COMPLETE,
        value=123.5,
        user_attrs=VALUES,
        system_attrs={"constraints": [0.5, -0.25]},
    )
    trial.set_constraint("device_memory", 0.5)
    trial.datetime_start = datetime(2026, 1, 2, 3, 4, 5)
    return trial


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_studies_are_listed_in_the_order_of_their_creation_with_their_json_attributes(backend):
    ids = {name: create_study(backend, name) for name in ("b", "a", "c")}
    for key, value in {**VALUES, "study:metric_names": ["rate"]}.items():
        backend.set_study_system_attr(ids["a"], key, value)
    assert optuna.load_study(study_name="a", storage=backend).metric_names == ["rate"]
    backend.delete_study(ids["c"])
    with pytest.raises(KeyError, match="Record does not exist"):
        backend.get_study_id_from_name("c")
    listed = [(study.study_name, study._study_id, study.system_attrs) for study in backend.get_all_studies()]
    attributes = {**VALUES, "study:metric_names": ["rate"]}
    assert listed == [("b", ids["b"], {}), ("a", ids["a"], attributes)]
    assert backend.get_study_system_attrs(ids["a"]) == attributes


def test_a_trial_is_created_from_a_template(backend):
    study_id = create_study(backend, "a")
    trial_ids = [backend.create_new_trial(study_id, template()) for _ in range(2)]
    assert [backend.get_trial(trial_id).number for trial_id in trial_ids] == [0, 1]
    stored = backend.get_all_trials(study_id, deepcopy=False, states=(TrialState.COMPLETE,))[0]
    assert (stored.state, stored.value, stored.params) == (TrialState.COMPLETE, 123.5, template().params)
    assert (stored.user_attrs, stored.datetime_start) == (VALUES, template().datetime_start)
    assert stored.constraints["device_memory"] == 0.5
    assert stored.system_attrs["constraints"] == [0.5, -0.25], "optuna-dashboard reads the constraints there"


def test_a_trial_is_asked_and_told_in_memory_and_then_stored(backend):
    study = optuna.create_study(direction="maximize")
    asked = study.ask(template().distributions)
    asked.storage.set_trial_system_attr(asked._trial_id, "constraints:device_memory", 0.5)
    told = study.tell(asked, None, TrialState.PRUNED)
    assert told.constraints == {"device_memory": 0.5}
    stored = backend.get_trial(backend.create_new_trial(create_study(backend, "a"), told))
    assert (stored.params, stored.state, stored.constraints) == (told.params, TrialState.PRUNED, told.constraints)
    assert stored.datetime_start == told.datetime_start


def test_a_sampler_that_stops_the_study_raises_when_its_trial_is_told():
    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"batch_size": [8]}))
    asked = study.ask({"batch_size": IntDistribution(1, 16)})
    with pytest.raises(RuntimeError, match=r"Study\.stop"):  # which `BoundedSampler` relies on
        study.tell(asked, 1.0)
    assert study.get_trials()[0].state is TrialState.COMPLETE


def test_a_study_is_copied_to_memory_with_the_numbers_of_its_trials(backend):
    study_id, memory = create_study(backend, "a"), optuna.storages.InMemoryStorage()
    for trial in (create_trial(state=TrialState.FAIL), template()):
        backend.create_new_trial(study_id, trial)
    optuna.copy_study(from_study_name="a", from_storage=backend, to_storage=memory)
    copied = optuna.load_study(study_name="a", storage=memory)
    assert [(trial.number, trial.params) for trial in copied.trials] == [(0, {}), (1, template().params)]
    assert copied.ask().number == 2


def test_user_attributes_of_trials_have_their_table(database, tmp_path):  # where other programs read them
    database.create_new_trial(create_study(database, "a"), template())
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        assert ("text", '"x"') in connection.execute("SELECT key, value_json FROM trial_user_attributes").fetchall()
