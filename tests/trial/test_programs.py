"""What trains in plain `fit` is tried as it is: every form of data, train steps of the user's own, arguments of `fit`."""

import functools
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

ROLES = ("describe", "measure", "confirm")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The structures that `train_step` gets from plain `fit`, by kind of data."""
    folder = tmp_path_factory.mktemp("plain")
    command = [sys.executable, "-m", "tests.programs", str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True, timeout=110)
    return {file.name: set(file.read_text().splitlines()) for file in folder.iterdir()}


@pytest.mark.parametrize("make", [*programs.ARRAYS, *programs.FACTORIES], ids=lambda make: make.__name__)
def test_a_train_step_gets_what_plain_fit_hands_it_in_every_phase(make, plain, turn, play, tmp_path):
    written = tmp_path / "structures"
    launcher = turn(programs.build_witness, make, validation=make, model_kwargs={"path": str(written)})
    described = play(launcher, FitConfig(programs.BATCH), role="describe", batch_sizes=(4, 8))
    assert isinstance(described, Description), described.evidence
    traced = {line.replace(programs.FIXED, "") for line in written.read_text().splitlines()}  # for a size of its own
    assert traced == {line.replace(programs.FIXED, "") for line in plain[make.__name__]}
    written.unlink()
    for role in ("measure", "confirm"):
        result = play(launcher, FitConfig(programs.BATCH), role=role)
        assert result.outcome is Outcome.OK, result.evidence
    assert set(written.read_text().splitlines()) == plain[make.__name__]


@pytest.mark.parametrize(
    ("argument", "value", "make"),
    [("validation_split", 0.25, programs.list_of_inputs), ("class_weight", programs.CLASS_WEIGHT, programs.with_labels)],
)
def test_arguments_of_fit_pass_through_every_phase(argument, value, make, plain, turn, play, tmp_path):
    written = tmp_path / "structures"
    launcher = turn(programs.build_witness, make, model_kwargs={"path": str(written)}, fit_kwargs={argument: value})
    for role in ROLES:
        result = play(launcher, FitConfig(programs.BATCH), role=role, batch_sizes=(4, 8))
        assert isinstance(result, Description) or result.outcome is Outcome.OK, result.evidence
    assert set(written.read_text().splitlines()) == plain[argument]
    if argument == "validation_split":
        described = play(launcher, FitConfig(programs.BATCH), role="describe")
        assert described.sample_count == programs.SAMPLES * 3 // 4


def test_a_split_of_what_is_no_array_is_refused(turn, play):
    launcher = turn(programs.build_dense, programs.tfdata_of_x, fit_kwargs={"validation_split": 0.2})
    with pytest.raises(UsageError, match="validation_split divides arrays") as caught:
        play(launcher, FitConfig(programs.BATCH), role="describe")
    assert caught.value.key == "fit_kwargs.validation_split"


def test_callbacks_run_in_trials_but_for_those_that_write_files(turn, play, tmp_path):
    diary, checkpoint = tmp_path / "diary", tmp_path / "model.keras"
    callbacks = functools.partial(_callbacks, str(diary), str(checkpoint))
    launcher = turn(programs.build_dense, programs.with_labels, fit_kwargs={"callbacks": callbacks})
    described = play(launcher, FitConfig(programs.BATCH), role="describe")
    assert [notice for notice in described.notices if "ModelCheckpoint" in notice]
    for role in ("measure", "confirm"):
        diary.unlink(missing_ok=True)
        assert play(launcher, FitConfig(programs.BATCH), role=role).outcome is Outcome.OK
        assert len(diary.read_text().splitlines()) > 8
    assert not checkpoint.exists()


def _callbacks(diary, checkpoint):
    return [programs.Diary(diary), keras.callbacks.ModelCheckpoint(checkpoint)]


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
    assert bool(described.fixed_batch_size_reason) == (samples is not None)
    assert described.estimate_problem is None
    assert [footprint.batch_size for footprint in described.footprints] == ([8, 32] if samples is None else [samples])


def test_rates_of_graphs_count_the_samples_of_the_batch_size(turn, play):
    launcher = turn(programs.build_for_graphs, programs.Graphs)
    described = play(launcher, FitConfig(programs.BATCH, 1, 10, False), role="describe", batch_sizes=(8, 32))
    assert described.sample_count == 8 * programs.BATCH
    assert described.fixed_batch_size is None
    assert described.footprints == ()
    assert [notice for notice in described.notices if "24 entries" in notice]
    fixed = play(
        turn(programs.build_for_graphs, programs.Graphs, model_kwargs={"count": programs.BATCH}),
        FitConfig(programs.BATCH, 1, 10, False),
        role="describe",
    )
    assert fixed.fixed_batch_size == programs.BATCH
    measured = play(turn(programs.build_for_graphs, programs.Graphs), FitConfig(programs.BATCH, 1, 10, False))
    assert measured.samples_per_second * measured.step_seconds == pytest.approx(programs.BATCH)
