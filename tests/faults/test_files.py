"""Files in the way of the commands, as a user runs them.

Such files cannot be written, have odd names, go away, or are written by two.
"""

import re
import shlex
import subprocess
import sys

import pytest

from autofit.storage import connection
from tests.commands import AUTOFIT, ROOT, run
from tests.unit.api.test_config import TOO_LARGE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the faults are those of Linux"
)

PROGRAM = """
def build_model(width=8):
    model.compile()

def data(batch_size, workers=1):
    pass
"""
JOB = """
build_model: program.py:build_model
data: program.py:data
max_trials: 2
space: {batch_size: [32, 64], workers: [1]}
storage: t.db
"""
FAKED = (sys.executable, "-c", "from tests.faults import faked; faked.run()")
TUNE = (*FAKED, "tune", "job.yaml")
REAL = (AUTOFIT, "tune", "job.yaml")
ESTIMATE = (AUTOFIT, "estimate", "job.yaml")
INIT = (AUTOFIT, "init", "program.py")
SWEEP = (*FAKED, "sweep", "sweep.yaml")
RESULT = f"{ROOT}/tests/data/pinned/result.json"
REPORT = (AUTOFIT, "report", RESULT)
JOURNAL = ("--storage", "journal:t.log")
UNWRITTEN = "cannot be written (No such file or directory); give another path"


@pytest.fixture
def here(tmp_path):
    """A folder with a program, its files, and a folder for temporary files.

    Links in it lead to a full disk.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "sweep.yaml").write_text(
        f"{JOB}matrix: {{model_kwargs.width: [8, 16]}}\n"
    )
    (tmp_path / "tmp").mkdir()
    for name in ("full.json", "full.html", "other.csv"):
        (tmp_path / name).symlink_to("/dev/full")
    return tmp_path


def end(command, folder, largest=None):
    """Run a command with a limit on the size of each file, in bytes.

    Returns its exit code, output and messages.
    """
    limit = () if largest is None else ("prlimit", f"--fsize={largest}")
    variables = {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": f"{folder}/tmp",
        "XDG_DATA_HOME": str(folder),
    }
    done = run(*limit, *command, folder=folder, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    assert not [*folder.glob("tmp/autofit-tune-*")]
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "largest", "code", "told", "left"),
    [
        ((*TUNE, "--output", "full.json"), None, 2,
         "full.json cannot be written (No space", "t.db"),
        ((*SWEEP, "--output", "full.json"), None, 2,
         "full.json cannot be written (No space", "t.db"),
        ((*SWEEP, "--output", "other.json"), None, 2,
         "other.csv cannot be written (No", "other.json t.db"),
        ((*REPORT, "--output", "full.html"), None, 2, "full.html cannot be written (No space", ""),
        (INIT, 100, 2, "tune.yaml cannot be written (File too large)", ""),
        (TUNE, 4096, 2, "cannot be stored in sqlite:///t.db: disk I/O error; give", "t.db"),
        ((*TUNE, *JOURNAL), 512, 2, "cannot be stored: [Errno 27] File too large; give", "t.log"),
        ((*TUNE, *JOURNAL), 9000, 0, "File too large; give a storage that is writable", "t.log"),
        (REAL, 0, 1, "/var/tmp", ""),
        (REAL, 20, 1, "is not writable: File too large. Free some space there, or set TMPDIR", ""),
        (ESTIMATE, 200, 2, "File too large. Set TMPDIR to a folder with more free space", ""),
    ],
)  # fmt: skip  # a row each
def test_a_file_on_a_full_disk(here, command, largest, code, told, left):
    before = {*here.iterdir()}
    ended, shown, messages = end(command, here, largest)
    assert (ended, messages.count("autofit: ")) == (code, int(code > 0)), messages
    assert told in shown + messages
    assert {path.name for path in {*here.iterdir()} - before} == {*left.split()}


@pytest.mark.parametrize("command", [TUNE, SWEEP, REPORT, INIT])
def test_an_output_in_a_folder_that_takes_none_is_refused_before_the_first_trial(
    here, command
):
    before = {*here.iterdir()}
    code, shown, messages = end((*command, "--output", "/proc/file.json"), here)
    # as root, and as another user
    reason = "(No such file or directory|Permission denied)"
    told = (
        rf"autofit: --output: /proc/file.json cannot be written \({reason}\); "
        r"give another path\n"
    )
    assert (code, shown, bool(re.fullmatch(told, messages))) == (2, "", True), messages
    assert {*here.iterdir()} == before


def test_any_name_of_a_folder_and_a_file(here):
    odd = "-a 'b'\"c\" #d%20{e}?&\n\\é"
    folder = here / odd
    folder.mkdir()
    (here / "tmp").rename(folder / "tmp")
    (folder / f"{odd}.py").write_text(PROGRAM)
    files = {
        suffix: f"{odd}.{suffix}"
        for suffix in ("py", "yaml", "db", "json", "log", "html")
    }
    _, shown, _ = end(
        (AUTOFIT, "init", f"--output={files['yaml']}", "--", files["py"]), folder
    )
    assert shlex.split(shown)[-1] == files["yaml"]
    with (folder / files["yaml"]).open("a") as file:
        file.write("space: {batch_size: [32, 64], workers: [1]}\n")
    for storage in (files["db"], f"journal:{files['log']}"):
        asked = (
            f"--storage={storage}",
            f"--output={files['json']}",
            "--",
            files["yaml"],
        )
        assert end((*FAKED, "tune", *asked), folder)[0] == 0
    failed = ("--failed=host", f"--storage={files['db']}", "--", files["json"])
    for command in ("report", "--", files["json"]), ("show", *failed):
        assert end((AUTOFIT, *command), folder)[0] == 0
    assert {path.name for path in folder.iterdir()} == {"tmp", *files.values()}


GONE = ("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ((AUTOFIT, "tune", "{}/job.yaml"),
         "the working folder was deleted; change to a folder that"),
        ((AUTOFIT, "init", "{}/program.py"), UNWRITTEN),
        ((AUTOFIT, "report", RESULT, "--output", "r.html"), UNWRITTEN),
    ],
)  # fmt: skip  # a row each
def test_a_working_folder_that_was_deleted(here, command, told):
    code, _, messages = end((*GONE, *(part.format(here) for part in command)), here)
    assert (code, messages.count("\n"), told in messages) == (2, 1, True), messages


DELETES = """if True:
    import shutil
    from autofit.errors import UserCodeError
    from tests.faults import faked
    def before_each():
        shutil.rmtree({folder!r}, ignore_errors=True)
        if {fails}:
            raise UserCodeError("while training", "ValueError: boom")
    faked.run(before_each)
"""


@pytest.mark.parametrize(
    ("fails", "code", "ends"),
    [(False, 2, "# to compare"), (True, 1, "ValueError: boom")],
)
def test_a_working_folder_that_is_deleted_during_a_tune_costs_only_what_is_written_to_it(
    here, fails, code, ends
):
    (here / "working").mkdir()
    deletes = DELETES.format(folder=f"{here}/working", fails=fails)
    there = ("sh", "-c", 'cd working && exec "$@"', "sh", sys.executable, "-c", deletes)
    asked = ("--storage", f"{here}/t.db", "--output", "r.json")
    ended, shown, messages = end((*there, "tune", "../job.yaml", *asked), here)
    assert (ended, ends in (messages if fails else shown)) == (code, True)
    assert messages.count(f"r.json {UNWRITTEN}\n") == 1
    if not fails:  # the result is stored
        assert end((*TUNE, *asked), here)[::2] == (0, "")


@pytest.mark.parametrize("storage", ["{}/t.db", "journal:{}/t.log"])
def test_two_tunes_of_one_study_at_once_both_end_and_lose_no_trial(here, storage):
    # containers that share a storage, but no folder for temporary files: no lock lets one wait
    meets = """if True:
        import os, pathlib, sys, time
        from tests.faults import faked
        here = pathlib.Path(os.environ["TMPDIR"])
        def meet():
            (here / "here").touch()
            while len([*here.parent.glob("*/here")]) < 2:
                time.sleep(0.01)
        faked.run(meet)
    """
    where = storage.format(here)
    processes = []
    for name in ("one", "two"):
        (here / name).mkdir()
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", meets, "tune", "job.yaml", "--storage", where],
                cwd=here,
                env={"PATH": "", "PYTHONPATH": str(ROOT), "TMPDIR": str(here / name)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with connection.opened(where) as backend:
        (study,) = backend.get_all_studies()
        stored = backend.get_all_trials(study._study_id)
    printed = [
        line
        for output in outputs
        for line in output.splitlines()
        if line.startswith("batch ") and ": ok, " in line
    ]
    assert len(stored) == len(printed) > 2
    assert [trial.number for trial in stored] == list(range(len(stored)))
    assert all("trial" in trial.user_attrs for trial in stored)


@pytest.mark.parametrize("name", ["bomb", "cycle", "brackets", "minus signs", "large"])
def test_a_file_that_takes_too_much_to_read_is_refused_in_one_line(here, name):
    (here / "job.yaml").write_text(JOB + TOO_LARGE[name][0])
    code, shown, messages = end((AUTOFIT, "check", "job.yaml"), here)
    assert (code, shown, messages.count("\n")) == (2, "", 1)
    assert messages.startswith("autofit: job.yaml:")
    assert len(messages) < 300
