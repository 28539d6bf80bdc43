from tests.backends.conftest import backend, launched, play, warm  # noqa: F401  # fixtures
