"""The wheel as a user gets it."""

import zipfile

from tests.commands import ROOT, python


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    # with what is installed, without the network
    python("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=ROOT)
    with zipfile.ZipFile(next(tmp_path.iterdir())) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (declared,) = (
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith("entry_points.txt")
        )
    tracked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "autofit").rglob("*")
        if file.is_file()
    }
    assert names == {name for name in tracked if "__pycache__" not in name}
    assert "autofit = autofit" in declared
