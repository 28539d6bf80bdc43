"""What a fresh interpreter loads."""

import pytest

from tests.commands import python

HEAVY = ("tensorflow", "jax", "torch", "keras", "optuna", "plotly")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import autofit; dir(autofit); autofit.FitConfig; autofit.UsageError", (*HEAVY, "rich", "jinja2")),
        ("import autofit.api, autofit.cli", (*HEAVY, "sqlalchemy", "scipy")),  # a stored result waits for none of them
    ],
)
def test_an_import_loads_nothing_heavy(statement, heavy):
    program = f"{statement}; import sys; print([m for m in {heavy!r} if m in sys.modules])"
    assert python("-c", program).strip() == "[]"
