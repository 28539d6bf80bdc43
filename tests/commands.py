"""Commands and programs in processes of their own, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT}/autofit/"  # of frames of autofit; the clone itself may be called autofit, too
AUTOFIT = str(Path(sys.executable).parent / "autofit")


def run(*command, folder=None, **variables):
    """Run a command under environment variables; returns what has ended.

    A variable that is None is not set.
    """
    environment = {
        name: value
        for name, value in {**os.environ, **variables}.items()
        if value is not None
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def python(*arguments, **options):
    """Run Python; returns what it printed."""
    done = run(sys.executable, *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
