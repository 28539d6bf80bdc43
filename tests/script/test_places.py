"""Each way in which scripts set the batch size: the place is found, and the patch, applied by
`patch`, changes the batch.
"""

import re
import shutil
import sys

import pytest

import autofit
from autofit.api.tune_script import describe
from autofit.records.knobs import FitConfig
from autofit.workload.script.given import edits_for
from tests.commands import run
from tests.script.scripts import HEAD, PLACES

STEPS = re.compile(r"(\d+)/\1\D")


@pytest.mark.parametrize("way", PLACES)
def test_the_place_is_found_and_its_patch_changes_the_batch(way, tmp_path, monkeypatch):
    text, where = PLACES[way]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "config.yaml").write_text("train: {batch_size: 32, epochs: 1}\n")
    described = describe({"script": "train.py"})
    place = described.places["batch_size"]
    assert described.defaults["batch_size"] == place.value == 32
    assert place.is_added == where.startswith("added")
    if where.startswith("--"):
        assert place.option == where
    else:
        assert str(place).endswith(
            f":{where[-2:].strip()}" if "line" in where else ":1"
        )

    edits = edits_for(described.places, FitConfig(batch_size=128))
    (tmp_path / "a.patch").write_text(edits.diff(str(tmp_path)))
    if edits.files:
        patched = run("patch", "-p0", "-i", "a.patch", folder=tmp_path)
        assert patched.returncode == 0, patched.stdout + patched.stderr
    trained = run(sys.executable, "train.py", *edits.options, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert STEPS.findall(trained.stdout)[-1] == "4", trained.stdout


@pytest.mark.parametrize("passed", ["**kwargs", ""])
def test_a_dataset_that_the_call_makes_gets_keywords_if_its_class_passes_them_on(
    passed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        HEAD
        + "class Data(keras.utils.PyDataset):\n"
        + "    def __init__(self, batch_size, **kwargs):\n"
        + f"        super().__init__({passed})\n"
        + "        self.batch_size = batch_size\n\n"
        + "    def __len__(self):\n        return 16\n\n"
        + "    def __getitem__(self, index):\n"
        + "        return x[: self.batch_size], y[: self.batch_size]\n\n"
        + "model.fit(Data(32))\n"
    )
    places = describe({"script": "train.py"}).places
    config = FitConfig(batch_size=64, workers=2, max_queue_size=4)
    diff = edits_for(places, config).diff(str(tmp_path))
    added = ", workers=2, max_queue_size=4" if passed else ""
    assert f"+model.fit(Data(64{added}))\n" in diff


def test_git_takes_the_patch_as_well(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    text, _ = PLACES["constant"]
    script = tmp_path / "train.py"
    script.write_text(text.rstrip("\n"))  # without a newline at the end
    from autofit.records.places import Edits, Place

    places = {"batch_size": Place(32, str(script), (8, 13, 8, 15))}
    (tmp_path / "a.patch").write_text(
        Edits(places, {"batch_size": 64}).diff(str(tmp_path))
    )
    applied = run("git", "apply", "a.patch", folder=tmp_path)
    assert applied.returncode == 0, applied.stderr
    assert script.read_text() == text.rstrip("\n").replace("= 32", "= 64")


def test_a_place_without_effect_is_no_answer(tmp_path, monkeypatch):
    text = PLACES["literal"][0] + "batch_unused = 32\n"
    monkeypatch.chdir(tmp_path)
    lines = text.splitlines()
    script = "\n".join([*lines[:7], "batch_unused = 32", *lines[7:8]]) + "\n"
    (tmp_path / "train.py").write_text(script)
    with pytest.raises(autofit.UsageError) as raised:
        autofit.tune_script(
            "train.py",
            places={"batch_size": "train.py:8"},
            space={"batch_size": [32, 128]},
            storage="trials.db",
            progress=False,
        )
    expected = "train.py:8: changing it does not change the batch of fit (train.py:9), which stays"
    assert expected in str(raised.value)
