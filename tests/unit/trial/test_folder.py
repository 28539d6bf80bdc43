"""The private folder of a launcher, and those that were left behind."""

import os
import tempfile

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
    stay = {"autofit-photos", "autofit-tune-link", "photos", first.path.name, second.path.name}
    assert {path.name for path in parent.iterdir()} == stay
    assert (linked / "file").exists()
    os.close(first._lock)  # as the kernel does when the process is killed
    second.remove()
    third = TuneFolder()
    assert not first.path.exists()
    assert oct(third.path.stat().st_mode & 0o777) == oct(0o700)
    third.remove()


def test_clearing_keeps_the_folders_and_what_is_named(parent):
    folder = TuneFolder()
    for name in ("workload.pickle", "server.log"):
        (folder.path / name).touch()
    folder.clear()
    assert {path.name for path in folder.path.iterdir()} == {"server.log", "tmp", "compiled"}
    folder.remove()


@pytest.mark.parametrize(("parent_of_it", "problem"), [("/proc", "is not writable: "), ("/nowhere", "was removed")])
def test_a_place_that_takes_no_files_is_named(monkeypatch, parent_of_it, problem):
    monkeypatch.setattr(tempfile, "tempdir", parent_of_it)
    with pytest.raises(TrialProcessError, match=f"{parent_of_it}, {problem}.*TMPDIR"):
        TuneFolder()
