"""The private folder of a launcher, and those that were left behind."""

import os
import tempfile

import pytest

from autofit.errors import TrialProcessError
from autofit.trial.folder import TuneFolder


def test_folders_in_use_and_those_of_others_stay_and_what_was_left_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other, linked = (
        tmp_path / name for name in ("autofit-tune-left", "autofit-photos", "photos")
    )
    for folder in (left / "tmp", other, linked):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (tmp_path / "autofit-tune-link").symlink_to(linked)
    first, second = TuneFolder(), TuneFolder()
    stay = {"autofit-photos", "autofit-tune-link", "photos", first.path.name, second.path.name}
    assert {path.name for path in tmp_path.iterdir()} == stay
    assert (linked / "file").exists()
    os.close(first._lock)  # as the kernel does when the process is killed
    third = TuneFolder()
    assert not first.path.exists()
    assert oct(third.path.stat().st_mode & 0o777) == oct(0o700)
    for name in ("workload.pickle", "server.log"):
        (third.path / name).touch()
    third.clear()
    assert {path.name for path in third.path.iterdir()} == {"server.log", "tmp", "compiled"}


@pytest.mark.parametrize("parent", ["/proc", "/nowhere"])
def test_a_place_that_takes_no_files_is_named(monkeypatch, parent):
    monkeypatch.setattr(tempfile, "tempdir", parent)
    with pytest.raises(TrialProcessError, match=f"{parent}, .*TMPDIR"):
        TuneFolder()
