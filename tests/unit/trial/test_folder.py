"""The private folder of a launcher, and those that were left behind."""

import os
import tempfile
from pathlib import Path

import pytest

from autofit.errors import TrialProcessError
from autofit.trial.folder import TuneFolder


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_in_use_and_those_of_others_stay_what_was_left_goes(parent):
    left, other, linked = parent / "autofit-tune-left", parent / "autofit-photos", parent / "photos"
    for folder in (left / "tmp", other, linked):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (parent / "autofit-tune-link").symlink_to(linked)
    first, second = TuneFolder(), TuneFolder()
    assert {path.name for path in parent.iterdir()} == {
        "autofit-photos",
        "autofit-tune-link",
        "photos",
        first.path.name,
        second.path.name,
    }
    assert (linked / "file").exists()
    os.close(first._lock)  # as the kernel does when the process is killed
    second.remove()
    third = TuneFolder()
    assert not first.path.exists()
    assert oct(third.path.stat().st_mode & 0o777) == oct(0o700)
    third.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_folders_of_other_users_stay(parent):
    theirs = parent / "autofit-tune-theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    TuneFolder().remove()
    assert theirs.exists()


def test_clearing_keeps_the_folders_and_what_is_named(parent):
    folder = TuneFolder()
    for name in ("workload.pickle", "server.log"):
        (folder.path / name).touch()
    folder.clear("server.log")
    assert {path.name for path in folder.path.iterdir()} == {"server.log", "tmp", "compiled"}
    folder.remove()


@pytest.mark.parametrize(("parent_of_it", "problem"), [("/proc", "is not writable: "), ("/nowhere", "was removed")])
def test_a_place_that_takes_no_files_is_named(monkeypatch, parent_of_it, problem):
    monkeypatch.setattr(tempfile, "tempdir", parent_of_it)
    with pytest.raises(TrialProcessError, match=f"{parent_of_it}, {problem}.*TMPDIR"):
        TuneFolder()


def test_another_error_in_the_folder_names_it(parent):
    folder = TuneFolder()
    with pytest.raises(TrialProcessError, match="Is a directory"), folder.explained_errors():
        Path(folder.path).write_text("")
    folder.remove()
