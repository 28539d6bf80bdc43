from tests.backends.conftest import backend, launched, play, server  # noqa: F401  # fixtures
