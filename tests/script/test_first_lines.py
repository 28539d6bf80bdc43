"""What a script sets above `import keras` acts in trials as with `python train.py`, and the stored
answer is found again.
"""

import json
import sys

import pytest

import autofit
from autofit.api.tune_script import describe
from autofit.records.knobs import FitConfig
from autofit.workload.script.given import edits_for
from tests.commands import AUTOFIT, run
from tests.script.scripts import HEAD, PLACES

LINES = {
    "backend": (
        'import os\nos.environ["KERAS_BACKEND"] = "{backend}"\n',
        "keras.backend.backend()",
    ),
    "threads": (
        'import os\nos.environ["OMP_NUM_THREADS"] = "1"\n',
        'os.environ["OMP_NUM_THREADS"]',
    ),
    "devices": (
        'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "-1"\n',
        'os.environ["CUDA_VISIBLE_DEVICES"]',
    ),
    "flags": (
        'import os\nos.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"\n',
        '"xla_cpu_multi_thread_eigen=false" in os.environ["XLA_FLAGS"]',
    ),
    "precision": (
        'import os\nimport keras\nkeras.config.set_floatx("float64")\n',
        "keras.config.floatx()",
    ),
}


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_first_lines_act_as_in_a_plain_run(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = "".join(lines.format(backend=backend) for lines, _ in LINES.values())
    asked = ", ".join(expression for _, expression in LINES.values())
    told = f"print('told', [{asked}], flush=True)\n"
    (tmp_path / "train.py").write_text(
        f"{first}{HEAD}{told}model.fit(x, y, batch_size=32)\n"
    )
    seen = tmp_path / "seen"
    # each trial writes what it sees where the test can read it
    text = (tmp_path / "train.py").read_text()
    note = f"with open({str(seen)!r}, 'a') as f: f.write(repr([{asked}]) + '\\n')\n"
    (tmp_path / "train.py").write_text(text.replace(told, told + note))
    plain = run(sys.executable, "train.py", folder=tmp_path, KERAS_BACKEND=None)
    assert plain.returncode == 0, plain.stderr
    autofit.tune_script(
        "train.py",
        writes=True,
        space={"batch_size": [32, 128]},
        max_trials=2,
        max_seconds=300,
        storage=str(tmp_path / "trials.db"),
        progress=False,
    )
    lines = seen.read_text().splitlines()
    assert len(lines) >= 4  # the plain run, the first run, and forks
    assert {*lines} == {lines[0]}


def test_the_answer_is_found_after_its_patch_and_a_comment_and_not_after_a_change(
    tmp_path,
):
    script = tmp_path / "train.py"
    script.write_text(PLACES["constant"][0].replace("(512, 8)", "(100_000, 8)"))
    (tmp_path / "short.yaml").write_text(
        "script: train.py\nspace: {batch_size: [32, 1024]}\nmax_trials: 4\nmax_seconds: 90\n"
    )

    def tune():
        command = (AUTOFIT, "tune", "short.yaml", "--output", "result.json")
        done = run(*command, folder=tmp_path, XDG_DATA_HOME=str(tmp_path / "share"))
        assert done.returncode == 0, done.stderr
        return "using the stored result" in done.stdout

    assert not tune()
    answer = json.loads((tmp_path / "result.json").read_text())["fastest"]
    assert answer["config"]["batch_size"] == 1024
    assert tune()
    patched = run("patch", "-p0", "-i", "result.fastest.patch", folder=tmp_path)
    assert patched.returncode == 0, patched.stdout
    assert "BATCH_SIZE = 1024" in script.read_text()
    assert tune()
    script.write_text(script.read_text() + "# a comment\n")
    assert tune()
    script.write_text(
        script.read_text().replace("Dense(1)", "Dense(1, use_bias=False)")
    )
    assert not tune()


def test_options_are_the_answer_of_a_script_that_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PLACES["argparse"][0])
    described = describe({"script": "train.py", "arguments": ["-b", "64"]})
    assert described.places["batch_size"].value == 64
    edits = edits_for(described.places, FitConfig(batch_size=128))
    assert (edits.files, edits.options) == ([], ["--batch-size", "128"])


def test_first_lines_act_as_well_where_one_of_several_calls_is_tuned(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = tmp_path / "seen"
    (tmp_path / "train.py").write_text(
        'import os\nos.environ["OMP_NUM_THREADS"] = "1"\n'
        + HEAD
        # a fork has imported keras before this line, and notes what was set by then
        + f"with open({str(seen)!r}, 'a') as f:\n"
        + "    environment = open('/proc/self/environ').read()\n"
        + "    f.write(f\"{'OMP_NUM_THREADS=1' in environment}\\n\")\n"
        + "model.fit(x, y, batch_size=32)\nmodel.fit(x, y, batch_size=32, epochs=50)\n"
    )
    result = autofit.tune_script(
        "train.py",
        writes=True,
        space={"batch_size": [32, 128]},
        max_trials=2,
        max_seconds=300,
        storage=str(tmp_path / "trials.db"),
        progress=False,
    )
    assert result.description.fit_call.startswith("train.py:14 ")
    looks = seen.read_text().split()
    # the first run and its second start do not have it at their start; forks of the server do
    assert looks[:2] == ["False", "False"]
    assert {*looks[2:]} == {"True"}
