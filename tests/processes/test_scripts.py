"""Fresh interpreters.

They show what an import loads, and the fingerprints of functions of a script.
"""

import os
import sys

import pytest

from tests.commands import python

SCRIPT = """
import numpy as np
from dataclasses import dataclass, field
from autofit.workload.fingerprint import identify
from autofit.workload.workload import Workload

SIZES = {"a": 1}

@dataclass
class Options:
    width: int = 1
    rest: list = field(default_factory=list)

class Photos:
    def __init__(self):
        self.x = np.zeros((4, 2))
        self.options = Options()

    def __getitem__(self, index):
        return self.x

def build(tags=None):
    return tags, SIZES

if __name__ == "__main__":
    given = {"tags": {"a", "b", "c", "d"}, "options": Options()}
    for data in (None, Photos(), Photos, Options):
        print(identify(**vars(Workload(build, data, model_kwargs=given))))
"""


def run_script(path, text, seed):
    path.write_text(text)
    return python(
        path, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(sys.path)
    ).split()


def test_a_script_asks_the_same_whenever_it_runs(tmp_path):
    before = run_script(tmp_path / "script.py", SCRIPT, "1")
    assert len(set(before)) == 4
    assert run_script(tmp_path / "script.py", SCRIPT, "2") == before
    changed = run_script(
        tmp_path / "script.py",
        SCRIPT.replace('"a": 1', '"a": 2').replace("(4, 2)", "(4, 3)"),
        "1",
    )
    assert not set(changed) & set(before)


HEAVY = ("tensorflow", "jax", "torch", "keras", "optuna", "plotly")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import autofit; dir(autofit); autofit.FitConfig; autofit.UsageError",
            (*HEAVY, "rich", "jinja2"),
        ),
        (
            "import autofit.api, autofit.cli",
            (*HEAVY, "sqlalchemy", "scipy"),
        ),  # a stored result waits for none of them
    ],
)
def test_an_import_loads_nothing_heavy(statement, heavy):
    program = (
        f"{statement}; import sys; print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert python("-c", program).strip() == "[]"
