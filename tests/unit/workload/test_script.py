"""What a script sets, cut out of its identity; the edits of its places; and what its guard lets
pass.
"""

from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.places import Edits, Place, read_text
from autofit.workload.script import guard, make_script
from autofit.workload.script.calls import FitCall, chosen
from autofit.workload.script.given import edits_for
from autofit.workload.script.identity import digest_of, digest_without, key_of
from tests.commands import run

TEXT = """\
import keras
BATCH = 32  # samples
train = Data(BATCH)
model.fit(train, epochs=3)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TEXT)
    return make_script("train.py")


def places_of(script):
    line = Place(1, script.file, (4, 0, 4, 0), "model.steps_per_execution = {}\n")
    workers = Place(1, script.file, (4, 0, 4, 0), "train.workers = {}\n")
    batch = Place(32, script.file, (2, 8, 2, 10), name="BATCH")
    return {"batch_size": batch, "workers": workers, "steps_per_execution": line}


def test_an_answer_is_a_diff_of_the_lines_that_change(script):
    places = places_of(script)
    config = FitConfig(batch_size=256, workers=1, steps_per_execution=8)
    diff = edits_for(places, config).diff(Path.cwd())
    added = [line for line in diff.splitlines() if line[0] in "+-"]
    assert added == [
        "--- train.py",
        "+++ train.py",
        "-BATCH = 32  # samples",
        "+BATCH = 256  # samples",
        "+model.steps_per_execution = 8",
    ]
    assert edits_for(places, FitConfig(batch_size=32, workers=1)).diff(Path.cwd()) == ""


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_an_edit_keeps_ends_of_lines_and_counts_columns_in_bytes(ending, tmp_path):
    file = tmp_path / "a.py"
    text = ending.join(["é = 'größe'; BS = 8", "x = 1"])
    file.write_bytes(text.encode())
    span = (1, text.split(ending)[0].encode().index(b"8"), 1, 0)
    place = Place(8, str(file), (*span[:2], 1, span[1] + 1))
    edited = Edits({"batch_size": place}, {"batch_size": 16}).apply(
        str(file), read_text(str(file))
    )
    assert edited == text.replace("8", "16")


def test_lines_that_a_patch_adds_end_as_the_others_of_a_file(script):
    text = TEXT.replace("Data(BATCH)", "Data(BATCH)\x0c").replace("\n", "\r\n")
    Path(script.file).write_bytes(text.encode())
    edits = edits_for(places_of(script), FitConfig(256, 4, steps_per_execution=8))
    Path("a.patch").write_bytes(edits.diff(Path.cwd()).encode())
    patched = run("patch", "-p0", "-i", "a.patch")
    assert patched.returncode == 0, patched.stdout + patched.stderr
    lines = Path(script.file).read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    assert all(line.endswith(b"\r\n") for line in lines)


def test_the_key_is_the_same_after_a_patch_and_another_after_a_change(script):
    edits = edits_for(places_of(script), FitConfig(256, 4, steps_per_execution=8))
    key, digest, patched = key_of(script), digest_of(script), digest_of(script, edits)
    Path(script.file).write_text(edits.apply(script.file, TEXT) + "# a comment\n")
    assert key_of(script) == key
    assert digest_of(script) == patched != digest
    Path(script.file).write_text(TEXT.replace("32", "64"))
    assert key_of(script) == key
    assert digest_of(script) not in (digest, patched)
    Path(script.file).write_text(TEXT.replace("epochs=3", "epochs=4"))
    assert key_of(script) != key


def test_trials_count_for_a_script_whose_tuned_places_have_other_values(script):
    edits = edits_for(places_of(script), FitConfig(256, 1))
    cut = digest_without(script, edits.places)
    Path(script.file).write_text(TEXT.replace("BATCH = 32", "BATCH = 64"))
    places = {**places_of(script), "batch_size": Place(64, script.file, (2, 8, 2, 10))}
    assert digest_without(script, places) == cut
    Path(script.file).write_text(
        TEXT.replace("Data(BATCH)", "Data(BATCH, buffer_size=9)")
    )
    assert digest_without(script, edits.places) != cut


def test_options_that_set_knobs_are_no_part_of_the_key_but_others_are(script):
    def of(*arguments):
        return make_script(script.file, arguments)

    assert key_of(of("--batch-size", "64", "--data", "a")) == key_of(of("--data", "a"))
    assert key_of(of("--data", "a")) != key_of(of("--data", "b"))
    option = {"batch_size": Place(32, option="--batch-size")}
    edits = Edits(option, {"batch_size": 64})
    assert digest_of(of("--data", "a"), edits) == digest_of(
        of("--data", "a", "--batch-size", "64")
    )


def test_a_notebook_and_launchers_are_refused_with_a_remedy(tmp_path):
    for name, said in (
        ("a.ipynb", "tune in one of its cells"),
        ("torchrun", "device: 2x gpu"),
    ):
        with pytest.raises(UsageError, match=said):
            make_script(str(tmp_path / name))


def test_of_several_calls_the_one_with_most_steps_is_tuned_or_the_user_chooses():
    warm, fit = FitCall("train.py:4", 1, 10), FitCall("train.py:9", 50, 10)
    assert chosen("train.py", [warm, fit]) == 2
    assert chosen("train.py", [fit, fit, fit]) == 1  # folds
    with pytest.raises(UsageError, match=r"--fit 2: train.py:9, 50 epochs of 10 steps"):
        chosen("train.py", [FitCall("train.py:4", 50, 10), fit])


@pytest.mark.parametrize(
    ("event", "arguments", "does"),
    [
        ("open", ("a.csv", "w", 0), "writes a.csv"),
        ("open", ("a.csv", "r", 0), None),
        ("open", ("a.csv", None, 0), None),
        ("os.remove", ("a.csv", -1), "deletes a.csv"),
        ("os.rename", ("a.tmp", "a.csv", -1, -1), "moves a.tmp to a.csv"),
        ("os.mkdir", ("/", 0o777, -1), None),  # `makedirs` of what exists
        ("os.mkdir", ("runs", 0o777, -1), "makes the folder runs"),
        (
            "subprocess.Popen",
            ("rm", ["rm", "-r", "photos"], None, None),
            "runs the program",
        ),
        ("os.system", (b"rm -r photos",), "runs the program 'rm -r photos'"),
        ("socket.connect", (None, ("10.0.0.1", 80)), "connects to 10.0.0.1"),
        ("socket.connect", (None, "/run/a.socket"), None),
    ],
)
def test_what_an_audit_event_does(event, arguments, does):
    done = guard._does(event, arguments)
    assert (done is None) if does is None else does in done[0]
