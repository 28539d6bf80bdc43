"""Which Keras backends, and what else is not in the test extra, the tests can use here."""

import importlib.util
import os

import pytest

REQUIRED = "AUTOFIT_REQUIRE_BACKENDS"


def needs(name):
    """Skip the test where a package is not installed; fail where it has to be."""
    if importlib.util.find_spec(name) is None:
        reason = (
            f"{name} is not installed; JAX, torch, grain and Ray come with "
            "'keras-autofit[test-backends]'"
        )
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(reason)
