"""Tunes with made-up trials for cells on hosts; the engine, the storage and the hosts are real."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from autofit.errors import TrialProcessError
from autofit.records.trial import Measurement
from autofit.storage.connection import url_of
from autofit.tuning import engine
from autofit.tuning.request import reuse
from tests.fakes import FakeLauncher, make_request


class SlowLauncher(FakeLauncher):
    """Runs made-up trials that take `seconds` each."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def run(self, spec):
        started_at = time.time()
        time.sleep(self.seconds if spec.role == "measure" else 0)
        result = yield from super().run(spec)
        return replace(result, started_at=started_at) if isinstance(result, Measurement) else result


def tune(cell):
    """Tune with a few made-up trials, and note in a file what happens to each cell."""
    kwargs = cell.workload.model_kwargs
    folder, name = Path(kwargs["folder"]), kwargs["name"]
    note(folder, f"begins {name}")
    request = make_request(
        folder / "unused",
        workload_fingerprint=name,
        storage=url_of(cell.settings.storage),
        max_trials=kwargs.get("trials", 4),
        baseline={"batch_size": kwargs.get("batch_size", 32)},
    )
    record = reuse(request, ignore)
    if record is None:
        record = engine.tune(request, SlowLauncher(kwargs.get("seconds", 0.05)), ignore)
        note(folder, f"tuned {name}")
    note(folder, f"ends {name}")
    return record


def at_fault(cell):
    """Fail as on a host that cannot tune."""
    note(Path(cell.workload.model_kwargs["folder"]), f"begins {cell.workload.model_kwargs['name']}")
    raise TrialProcessError("no room in /dev/shm")


def deadly(cell):
    """Kill the process that tunes the cell named deadly."""
    if cell.workload.model_kwargs["name"] == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return tune(cell)


def seen(cell):
    """Write down the environment and the labels of the host."""
    import ray

    folder = Path(cell.workload.model_kwargs["folder"])
    (folder / "seen").write_text(json.dumps([dict(os.environ), ray.get_runtime_context().get_node_labels()]))
    return tune(cell)


def ignore(event):
    """Ignore an event."""


def note(folder, text):
    """Append a line to the notes, which all hosts share."""
    with open(folder / "notes", "a") as file:
        file.write(f"{text}\n")
