"""What trains in plain `fit` is tried as it is: every form of data, train steps of the user's own, arguments of `fit`."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests import programs
from tests.trial.forms import OPTIONS

ROLES = ("describe", "measure", "confirm")


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """What `train_step` gets for each form of data, from plain `fit` and in a trial, as one process found it."""
    command = [sys.executable, "-m", "tests.trial.forms", str(tmp_path_factory.mktemp("forms"))]
    done = subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True, timeout=800)
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"["))


def without_sizes(structures):
    """Structures of batches of any size: the describing trial traces the step for a size of its own."""
    return {line.replace(programs.FIXED, "") for line in structures}


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("form", [*(make.__name__ for make in (*programs.ARRAYS, *programs.FACTORIES)), *OPTIONS])
def test_a_train_step_gets_what_plain_fit_hands_it_in_every_phase(form, forms):
    found = forms[form]
    assert found["failures"] == []
    assert found["plain"]
    assert found["measure"] == found["confirm"] == found["plain"]
    assert without_sizes(found["describe"]) == without_sizes(found["plain"])


@pytest.mark.release
@pytest.mark.slow
def test_a_validation_split_takes_samples_from_the_epoch(forms):
    assert forms["validation_split"]["sample_count"] == programs.SAMPLES * 3 // 4


@pytest.mark.parametrize("make", [programs.nested_inputs, programs.tfdata_of_ragged, programs.pydataset_of_dicts])
def test_a_form_of_data_gets_through_every_role_in_processes_of_their_own(make, turn, play, tmp_path):
    written = tmp_path / "structures"
    launcher = turn(programs.build_witness, make, validation=make, model_kwargs={"path": str(written)})
    for role in ROLES:
        result = play(launcher, FitConfig(programs.BATCH), role=role, batch_sizes=(4, 8))
        assert isinstance(result, Description) or result.outcome is Outcome.OK, result.evidence
    assert len(without_sizes(written.read_text().splitlines())) == 1


def test_a_split_of_what_is_no_array_is_refused(turn, play):
    launcher = turn(programs.build_dense, programs.tfdata_of_x, fit_kwargs={"validation_split": 0.2})
    with pytest.raises(UsageError) as caught:
        play(launcher, FitConfig(programs.BATCH), role="describe")
    assert caught.value.key == "fit_kwargs.validation_split"


def test_callbacks_that_a_function_makes_for_a_folder_run_in_trials(turn, play, tmp_path):
    diary = tmp_path / "diary"
    callbacks = functools.partial(_callbacks, str(diary))
    launcher = turn(programs.build_dense, programs.with_labels, fit_kwargs={"callbacks": callbacks})
    described = play(launcher, FitConfig(programs.BATCH), role="describe")
    assert (described.batch_callbacks, described.left_out_callbacks) == (("Diary",), ())
    for role in ("measure", "confirm"):
        diary.unlink(missing_ok=True)
        assert play(launcher, FitConfig(programs.BATCH), role=role).outcome is Outcome.OK
        assert len(diary.read_text().splitlines()) > 8
    assert list(tmp_path.iterdir()) == [diary]  # the checkpoint is in the folder of the trial


def _callbacks(diary, folder):
    return [programs.Diary(diary), keras.callbacks.ModelCheckpoint(f"{folder}/model.keras")]


def test_callbacks_in_a_list_do_not_run_in_trials(turn, play, tmp_path):
    diary, checkpoint = tmp_path / "diary", tmp_path / "model.keras"
    callbacks = [programs.Diary(diary), keras.callbacks.ModelCheckpoint(checkpoint), keras.callbacks.SwapEMAWeights()]
    launcher = turn(programs.build_dense, programs.with_labels, fit_kwargs={"callbacks": callbacks})
    described = play(launcher, FitConfig(programs.BATCH), role="describe")
    assert described.left_out_callbacks == ("Diary", "ModelCheckpoint")
    assert [notice for notice in described.notices if "Diary, ModelCheckpoint" in notice]
    assert described.batch_callbacks == ("Diary",)
    assert not list(tmp_path.iterdir())


def test_the_optimizers_that_a_step_uses_count_and_no_other(turn, play, tmp_path):
    launcher = turn(programs.build_witness, programs.array, model_kwargs={"path": str(tmp_path / "structures")})
    described = play(launcher, FitConfig(programs.BATCH), role="describe", batch_sizes=(8, 32))
    slots = 2 * 4 * (programs.WIDTH + 1)  # of Adam; compile made an RMSprop that the step does not use
    assert slots <= described.optimizer_bytes <= slots + 16
    assert described.accumulates_by == ""
    assert [footprint.batch_size for footprint in described.footprints] == [8, 32]


@pytest.mark.parametrize(
    ("build", "data", "config", "samples"),
    [
        (programs.build_for_one_size, programs.tfdata_of_pairs, FitConfig(programs.BATCH), programs.BATCH),
        (programs.build_with_input_of_one_size, programs.tfdata_of_pairs, FitConfig(32), programs.BATCH),
        (programs.build_dense, programs.owns_its_batch, FitConfig(32), 5),
        (programs.build_for_pairs, programs.tfdata_of_twos, FitConfig(programs.BATCH), None),
    ],
    ids=["train step", "input", "data", "even batches"],
)
def test_a_workload_of_one_batch_size_is_recognised(build, data, config, samples, turn, play):
    described = play(turn(build, data), config, role="describe", batch_sizes=(8, 32))
    assert described.fixed_batch_size == samples
    assert ("batch_size" in described.untuned) == (samples is not None)
    assert described.estimate_problem is None
    assert [footprint.batch_size for footprint in described.footprints] == ([8, 32] if samples is None else [samples])


def test_rates_of_graphs_count_the_samples_of_the_batch_size(turn, play):
    launcher = turn(programs.build_for_graphs, programs.Graphs)
    described = play(launcher, FitConfig(programs.BATCH, 1, 10, False), role="describe", batch_sizes=(8, 32))
    assert described.sample_count == 8 * programs.BATCH
    assert described.fixed_batch_size is None
    assert described.footprints == ()
    measured = play(turn(programs.build_for_graphs, programs.Graphs), FitConfig(programs.BATCH, 1, 10, False))
    assert measured.samples_per_second * measured.step_seconds == pytest.approx(programs.BATCH)
