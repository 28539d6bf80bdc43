"""The private folder of a launcher, and those that were left behind."""

import os
import tempfile

import pytest

from autofit.errors import TrialProcessError
from autofit.trial.folder import TuneFolder

ONE = f"autofit-{8 * 'f0'}"  # the name of a study


def test_folders_in_use_and_those_of_others_stay_and_what_was_left_goes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    linked = tmp_path / "photos"
    linked.mkdir()
    (linked / "file").touch()
    (tmp_path / "autofit-tune-link").symlink_to(linked)
    first, second = TuneFolder(), TuneFolder()
    stay = {"autofit-tune-link", "photos", first.path.name, second.path.name}
    assert {path.name for path in tmp_path.iterdir()} == stay
    assert (linked / "file").exists()
    os.close(first._lock)  # as the kernel does when the process is killed
    third = TuneFolder()
    assert not first.path.exists()
    assert oct(third.path.stat().st_mode & 0o777) == oct(0o700)
    for name in ("workload.pickle", "server.log"):
        (third.path / name).touch()
    third.clear()
    names = {path.name for path in third.path.iterdir()}
    assert names == {".autofit-tune", "server.log", "tmp", "compiled"}


def test_programs_stay_beside_a_study_for_a_week_after_its_last_tune(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parent = tmp_path / "trials.db.compiled"
    first, second, users = (
        parent / name for name in (f"autofit-{8 * '0a'}", ONE, "autofit-mine")
    )
    for kept in (first, second):
        made = TuneFolder(kept)
        assert made.compiled == kept
        assert oct(kept.stat().st_mode & 0o777) == oct(0o700)
        (kept / "a program").touch()
        made.clear()
        made.remove()
    users.mkdir()
    for old in (first, second, users):
        os.utime(old, (0, 0))
    TuneFolder(second).remove()
    assert {path.name for path in parent.iterdir()} == {second.name, users.name}
    assert (second / "a program").exists()


def test_no_folder_stays_where_nothing_was_compiled_or_none_can_be_made(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    for parent in ("trials.db.compiled", "file"):
        made = TuneFolder(tmp_path / parent / ONE)
        assert made.compiled.is_dir()
        assert (made.compiled.parent == made.path) is (parent == "file")
        made.remove()
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize(
    ("name", "marker"),
    [
        ("autofit-tune-photos", None),
        ("autofit-tune-a1b2c3d4", None),
        ("autofit-tune-a1b2c3d4", b"the kernel of another host"),
        ("autofit-tune-a1b2c3d4", b"\xff\xfe"),
        ("autofit-tune-my photos", "ours"),
        ("autofit-tune-a1b2c3d4-copy", "ours"),
        ("autofit-photos", "ours"),
    ],
)
def test_a_folder_that_no_launcher_of_this_host_made_stays(
    tmp_path, monkeypatch, name, marker
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = TuneFolder()
    theirs = tmp_path / name
    (theirs / "tmp").mkdir(parents=True)
    (theirs / "tmp" / "weights").write_bytes(b"a week")
    if marker is not None:
        ours = (made.path / ".autofit-tune").read_bytes()
        (theirs / ".autofit-tune").write_bytes(ours if marker == "ours" else marker)
    before = {path: path.is_file() and path.read_bytes() for path in theirs.rglob("*")}
    os.close(made._lock)
    TuneFolder()
    assert not made.path.exists()  # what is left of a killed launcher goes
    assert {
        path: path.is_file() and path.read_bytes() for path in theirs.rglob("*")
    } == before


@pytest.mark.parametrize("parent", ["/proc", "/nowhere"])
def test_a_place_that_takes_no_files_is_named(monkeypatch, parent):
    monkeypatch.setattr(tempfile, "tempdir", parent)
    with pytest.raises(TrialProcessError, match=f"{parent}, .*TMPDIR"):
        TuneFolder()
