from tests.trial.conftest import play  # noqa: F401  # a fixture
