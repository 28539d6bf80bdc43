"""The import of the user's modules: it does not train."""

import sys

import pytest

from autofit.errors import UsageError
from autofit.workload.reference import Reference


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Write a module of the user's; return a function that resolves it."""
    monkeypatch.syspath_prepend(tmp_path)

    def resolve(text):
        (tmp_path / "users.py").write_text(f"import keras\n{text}\ndef build_model(): return 1\n")
        return Reference("users.py:build_model", str(tmp_path)).resolve()

    yield resolve
    sys.modules.pop("users", None)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("keras.Model().fit(1)", "calls fit of a model"),
        ("keras.Model().save('model.keras')", "calls save of a model"),
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
    scaler = "class Scaler:\n    def fit(self, x): return x\nfitted = Scaler().fit(1)\nimport sys; arguments = list(sys.argv)"
    assert user(scaler)() == 1
    (argument,) = sys.modules["users"].arguments
    assert argument.endswith("users.py")
    assert sys.argv == ["autofit", "tune", "tune.yaml"]
