"""Internals for the pinned tests, which survive moves of the code; nothing else imports this module."""

from autofit.records.events import Described
from autofit.records.result import Cell, SweepRecord
from autofit.report import columns
from autofit.storage import result_files
from autofit.workload.fingerprint import identify
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.fakes import DESCRIPTION, FakeLauncher, collect, make_request, tune

__all__ = ["FakeLauncher", "described_in", "fingerprint_of", "names_of", "run_tune", "save_result", "save_sweep"]


def fingerprint_of(folder, build_model, data, **kwargs):
    """The fingerprint of a workload whose functions are references relative to a folder."""
    return identify(Workload(Reference(build_model, str(folder)), Reference(data, str(folder)), **kwargs))


def names_of(tmp_path, **changes):
    """The storage keys of a tune: its study, its result, and its warm start."""
    request = make_request(tmp_path, **changes)
    return {"study": request.fingerprint(), "answer": request.result_key(), "kin": request.warm_start_key(DESCRIPTION)}


def run_tune(tmp_path, **changes):
    """Run a tune with the fake launcher; returns its events and its record."""
    return collect(tune, make_request(tmp_path, **changes), FakeLauncher())


def described_in(events):
    """The event with the number of trials that a search starts from."""
    return next(event for event in events if isinstance(event, Described))


def save_result(record, path):
    """Write a record as `autofit tune --output` does."""
    result_files.save(record, path)


def save_sweep(record, path):
    """Write a sweep of two cells: one with the record, one that failed."""
    cells = (Cell({"model_kwargs.width": 8}, record), Cell({"model_kwargs.width": 16}, None, "it failed"))
    sweep = SweepRecord(title="made up", cells=cells, machine=record.machine, seconds=2.0, started_at=record.started_at)
    result_files.save_sweep(sweep, path, columns.as_csv(sweep))
