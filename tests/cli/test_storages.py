"""What the doctor says of a storage that is named."""

import errno
import os
from pathlib import Path

import pytest

from autofit.cli.doctor import resources
from autofit.cli.findings import Status


def test_the_lock_of_a_journal_is_tried_out(tmp_path):
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert (finding.status, finding.remedy) == (Status.OK, None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_links_is_a_problem(tmp_path, monkeypatch):
    def refuse(path, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert finding.status is Status.PROBLEM
    assert os.strerror(errno.EPERM) in finding.detail


def test_a_journal_on_a_network_drive_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "read_folder", lambda path: resources.Folder(tmp_path, True, 2**40, "nfs4"))
    finding = resources.storage_at(f"journal:{tmp_path / 'trials.log'}")
    assert finding.status is Status.WARNING
    assert "nfs4" in finding.detail
    assert "postgresql://" in finding.remedy


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
