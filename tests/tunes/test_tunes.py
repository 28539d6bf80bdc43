"""Whole tunes as a user runs them.

The quickstart, killed and resumed, to its pasted lines, and one where nothing fits.
"""

import json
import subprocess

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from autofit.cli import app
from tests.cli.test_cli import WORKLOAD
from tests.commands import AUTOFIT, ROOT, python, run
from tests.recompute import figures_of
from tests.trial.test_lifetime import are_gone, wait_for

ONE = "workers: [1], max_queue_size: [4], use_multiprocessing: [false], steps_per_execution: [1]"


def commanded(*arguments):
    """What a command prints that reads a result; it runs in this process."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


def kill_after_a_trial(folder):
    """Kill the tune in a folder once a trial has ended.

    Waits for all that it has started to end.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        [AUTOFIT, "tune", "tune.yaml"], cwd=folder, start_new_session=True, **streams
    ) as killed:
        assert any(
            ": ok, " in line for line in killed.stdout
        )  # more trials and runs follow
        below = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
    assert below
    wait_for(lambda: are_gone(below))


def test_the_quickstart_killed_and_resumed_ends_with_a_confirmed_config_whose_lines_train(
    tmp_path,
):
    settings = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    for key in ("build_model", "data", "validation"):
        settings[key] = str((ROOT / "configs" / settings[key]).resolve())
    settings |= {"max_trials": 2, "max_seconds": 600, "storage": "trials.db"}
    settings["space"] = yaml.safe_load(f"{{batch_size: [32, 1024], {ONE}}}")
    settings["baseline"] = {"batch_size": 32, "workers": 1, "max_queue_size": 4}
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(settings))
    kill_after_a_trial(tmp_path)
    done = run(AUTOFIT, "tune", "tune.yaml", "--output", "result.json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reusing 1 trial of an earlier run" in done.stdout

    file = tmp_path / "result.json"
    result = json.loads(file.read_text())
    fastest = result["fastest"]
    assert fastest["confirmed"]
    assert {trial["measurement"]["outcome"] for trial in result["trials"]} == {"ok"}
    assert 0 < fastest["host_peak_bytes"] < result["limits"]["host_bytes"]
    figures = figures_of(file)  # every stated figure follows from the readings
    assert {"rate", "host peak"} < figures.keys()
    for name, (stated, recomputed) in figures.items():
        assert stated == pytest.approx(recomputed, rel=1e-9), name

    summary = done.stdout[done.stdout.index("baseline  ") :].partition("\nwritten to")[
        0
    ]
    again = run(
        AUTOFIT, "tune", "tune.yaml", "--quiet", folder=tmp_path
    )  # answered at once
    assert (again.returncode, again.stdout.strip()) == (0, summary.strip())
    assert " ".join(summary.split()) in " ".join(commanded("show", file).split())
    assert (
        json.loads(commanded("kwargs", file, "--format", "json"))["fit_kwargs"]
        == fastest["fit_kwargs"]
    )
    for options, answer in (([], "fastest"), (["--same-batch"], "same_batch")):
        batch_size = result[answer]["config"]["batch_size"]
        assert commanded("kwargs", file, *options).startswith(
            f"data_kwargs = {{'batch_size': {batch_size}"
        )
    commanded("report", file)
    assert "</html>" in (tmp_path / "result.html").read_text()

    assert "val_accuracy" in python(
        "-c", "import sys" + summary.rpartition("import sys")[2], folder=tmp_path
    )


def test_when_nothing_fits_it_says_what_is_needed(tmp_path):
    text = (
        "Cases\nhost_memory: 150MiB\nstorage: t.db\nbaseline: {batch_size: 1}\n"
        f"space: {{batch_size: [1], {ONE}}}\n"
    )
    (tmp_path / "tune.yaml").write_text(WORKLOAD + text)
    done = run(AUTOFIT, "tune", "tune.yaml", folder=tmp_path)
    assert done.returncode == 1
    for fact in ("a batch of 1 ", " host memory", "150 MiB", "Raise host_memory"):
        assert fact in done.stderr
