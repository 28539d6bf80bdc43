"""What the doctor says of a storage that is named."""

import re
import time

import pytest

from autofit.cli.doctor import resources
from autofit.cli.doctor.findings import Status
from autofit.storage import journal_lock


class NoLock:
    def __init__(self, path):
        pass

    def acquire(self):
        time.sleep(0.001)

    def release(self):
        pass


def test_the_lock_of_a_journal_is_tried_out(tmp_path):
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert (finding.status, finding.remedy) == (Status.OK, None)
    assert re.search(r"^2 writers took \d+ turns with a journal", finding.detail)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_does_not_hold_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_lock, "JournalFileSymlinkLock", NoLock)
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert finding.status is Status.PROBLEM
    assert re.search(r"lost [1-9]\d* of \d+ turns", finding.detail)
    assert "postgresql://" in finding.remedy


def test_a_folder_that_cannot_be_locked_in_is_a_problem(tmp_path, monkeypatch):
    def refuse(lock):
        raise OSError("Operation not permitted")

    monkeypatch.setattr(NoLock, "acquire", refuse)
    monkeypatch.setattr(journal_lock, "JournalFileSymlinkLock", NoLock)
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert finding.status is Status.PROBLEM
    assert "cannot be locked: Operation not permitted" in finding.detail


@pytest.mark.parametrize("missing", ["postgresql://nobody@127.0.0.1:1/none"])
def test_a_server_that_does_not_answer_is_a_problem(missing):
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    finding = resources.storage_at(missing)
    assert finding.status is Status.PROBLEM
    assert "127.0.0.1" in finding.detail


def test_a_file_is_checked_by_its_folder(tmp_path):
    finding = resources.storage_at(str(tmp_path / "trials.db"))
    assert (finding.subject, finding.status) == ("storage", Status.OK)
    assert str(tmp_path) in finding.detail
