"""Where the pinned tests find the internals that they need; nothing else imports from here."""

from autofit.records.events import Described
from autofit.records.result import Cell, SweepRecord
from autofit.storage import result_files, sweep_files
from autofit.tuning.cached import tune
from autofit.workload.fingerprint.fingerprint import identify
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.fakes import FakeLauncher, collect, make_request

__all__ = ["FakeLauncher", "described_in", "fingerprint_of", "names_of", "run_tune", "save_result", "save_sweep"]


def fingerprint_of(folder, build_model, data, **kwargs):
    """The fingerprint of a workload whose functions are named in a file of a folder."""
    return identify(Workload(Reference(build_model, str(folder)), Reference(data, str(folder)), **kwargs)).fingerprint


def names_of(tmp_path, **changes):
    """Under which names a tune, its answer and those that are similar to it are stored."""
    asked = make_request(tmp_path, **changes)
    return {"study": asked.fingerprint(), "answer": asked.result_key(), "kin": asked.warm_start_key()}


def run_tune(tmp_path, **changes):
    """A tune of the made-up launcher: its events and its record."""
    return collect(tune, make_request(tmp_path, **changes), FakeLauncher())


def described_in(events):
    """The event that says with how many trials a search begins."""
    return next(event for event in events if isinstance(event, Described))


def save_result(record, path):
    """Write a record as `--output` does."""
    result_files.save(record, path)


def save_sweep(record, path):
    """Write a sweep of one cell that holds a record."""
    cells = (Cell({"model_kwargs.width": 8}, record), Cell({"model_kwargs.width": 16}, None, "it failed"))
    sweep = SweepRecord(title="made up", cells=cells, machine=record.machine, seconds=2.0, started_at=record.started_at)
    sweep_files.save(sweep, path)
