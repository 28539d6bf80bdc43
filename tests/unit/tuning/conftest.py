import pytest

from tests.fakes import use_quick_models


@pytest.fixture(autouse=True)
def _quick_models(monkeypatch):
    use_quick_models(monkeypatch)
