"""A folder with a model, in which a test writes a tuning file."""

import pytest

MODEL = "def build_model():\n    pass\n\n\nclass Photos:\n    pass\n"
GOOD = "build_model: model.py:build_model\ndata: model.py:Photos\n"


@pytest.fixture
def write(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)

    def write(text):
        (tmp_path / "tune.yaml").write_text(text)
        return tmp_path / "tune.yaml"

    return write
