"""The import of the user's modules: it does not train."""

import sys
from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.workload import fit_options, reference
from autofit.workload.reference import Reference

TRACKER = """
import inspect

def autolog(model):
    found = inspect.getattr_static(model, "fit")
    if not inspect.isfunction(found):
        raise RuntimeError("Unsupported patch")

    def fit(self, *args):
        runs.append(args)
        return found(self, *args)

    model.fit, model.found = fit, found

runs = []
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Write a module of the user's, beside an installed library.

    Returns a function that resolves the module.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(reference, "left_out", set())
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "tracker.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(library)

    def resolve(text):
        (tmp_path / "users.py").write_text(
            f"import keras\n{text}\ndef build_model(): return 1\n"
        )
        return Reference("users.py:build_model", str(tmp_path)).resolve()

    yield resolve
    for name in ("users", "tracker"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("keras.Model().fit(1)", "calls fit of a model"),
        ("keras.Model().save('model.keras')", "calls save of a model"),
        (
            "import tracker; tracker.autolog(keras.Model); keras.Model().fit(1)",
            "calls fit of a model",
        ),
        (
            "import argparse; argparse.ArgumentParser().parse_args(['--what'])",
            r"ends the program \(SystemExit: 2\)",
        ),
    ],
)
def test_a_module_that_trains_is_refused_with_its_line(user, keras, line, does):
    number = 2 + line.count("\n")
    with pytest.raises(UsageError, match=rf"^users.py:{number} {does} when .*__main__"):
        user(line)
    model = keras.Model()
    assert (model.fit(1), model.save("path")) == ("trained", "path")
    assert "fit" not in vars(keras.Model)


def test_fit_of_another_library_runs_and_arguments_of_the_command_line_are_not_seen(
    user, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["autofit", "tune", "tune.yaml"])
    scaler = (
        "class Scaler:\n    def fit(self, x): return x\n"
        "fitted = Scaler().fit(1)\nimport sys; arguments = list(sys.argv)"
    )
    assert user(scaler)() == 1
    (argument,) = sys.modules["users"].arguments
    assert argument.endswith("users.py")
    assert sys.argv == ["autofit", "tune", "tune.yaml"]


def test_a_library_may_patch_fit_and_trials_leave_its_patch_out(user, keras):
    for _ in range(2):  # two modules may do it
        sys.modules.pop("users", None)
        user("import tracker; tracker.autolog(keras.Model)")
        model = keras.Model()
        assert (model.fit(1), model.found(1)) == ("trained", "trained")
    assert sys.modules["tracker"].runs == []
    left_out = fit_options.resolved({}, Path("scratch"))["callbacks"].left_out
    assert left_out == ("tracker's patch of fit",)
    sys.modules.pop("users")
    with pytest.raises(
        UsageError, match="calls fit"
    ):  # by the guard of the import before
        user("keras.Model().found(1)")
