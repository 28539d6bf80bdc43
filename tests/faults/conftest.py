from tests.trial.conftest import play, shared, turn  # noqa: F401  # fixtures
