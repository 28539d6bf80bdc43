import os

import pytest


@pytest.fixture(autouse=True)
def quick_files(monkeypatch):
    """Files of unit tests need not survive a failure of the machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
