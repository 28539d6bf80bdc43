"""The example notebook in a real kernel: progress is text, a result shows itself, and it keeps its
outputs.
"""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of the kernel's own libraries
def test_the_example_notebook_runs_from_top_to_bottom_and_keeps_its_outputs(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(
        [cell.outputs for cell in notebook.cells if cell.cell_type == "code"][1:]
    ), "save it with its outputs"
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(
        notebook, timeout=800, kernel_name="python3", resources=resources
    ).execute()
    outputs = [
        out
        for cell in notebook.cells
        if cell.cell_type == "code"
        for out in cell.outputs
    ]
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    for text in ("beside: batch 32", "autofit: epoch 3: "):
        assert text in printed
    shown = "".join(
        out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})
    )
    assert "model.fit(" in shown
    assert "<script" not in shown
