"""The wheel as a user gets it."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    # with what is installed, without the network
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, timeout=800)
    with zipfile.ZipFile(next(tmp_path.iterdir())) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (declared,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    tracked = {str(file.relative_to(ROOT)) for file in (ROOT / "autofit").rglob("*") if file.is_file()}
    assert names == {name for name in tracked if "__pycache__" not in name}
    assert "autofit = autofit" in declared
