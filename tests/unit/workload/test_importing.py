"""The import of the user's modules: it does not train."""

import importlib
import sys

import pytest

from autofit.errors import UsageError
from autofit.workload.reference import Reference

KERAS = """
class Trainer:
    def fit(self, *args): return "trained"
    def predict(self, *args): return "predicted"
class Model(Trainer):
    def save(self, path): return path
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Write a module of the user, next to a module in the place of Keras; return a function that resolves it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "keras.py").write_text(KERAS)
    for name in ("keras", "users"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def resolve(text):
        (tmp_path / "users.py").write_text(text + "\ndef build_model(): return 1\n")
        importlib.invalidate_caches()
        return Reference("users.py:build_model", str(tmp_path)).resolve()

    yield resolve
    for name in ("keras", "users"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("keras.Model().fit(1)", "calls fit of a model"),
        ("keras.Model().predict(1)", "calls predict of a model"),
        ("keras.Model().save('model.keras')", "calls save of a model"),
        ("class Mine(keras.Model): pass\nMine().fit()", "calls fit of a model"),
        ("raise SystemExit(2)", r"ends the program \(SystemExit: 2\)"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--what'])", r"ends the program \(SystemExit: 2\)"),
    ],
)
def test_a_module_that_trains_is_refused_with_its_line(user, line, does):
    number = 2 + line.count("\n")
    with pytest.raises(UsageError, match=rf"^users.py:{number} {does} when .*__main__"):
        user("import keras\n" + line)
    model = sys.modules["keras"].Model()
    assert (model.fit(1), model.predict(1), model.save("path")) == ("trained", "predicted", "path")
    assert "fit" not in vars(type(model))


def test_fit_of_another_library_runs(user):
    scaler = "class Scaler:\n    def fit(self, x): return x\nfitted = Scaler().fit(1)"
    assert user(f"import keras\n{scaler}")() == 1


def test_a_module_reads_no_arguments_of_the_command_line(user, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["autofit", "tune", "tune.yaml"])
    user("import sys\narguments = list(sys.argv)")
    (argument,) = sys.modules["users"].arguments
    assert argument.endswith("users.py")
    assert sys.argv == ["autofit", "tune", "tune.yaml"]
