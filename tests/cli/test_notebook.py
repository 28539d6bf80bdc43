"""In a real kernel: progress and the result are text."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
PROGRESS = """
import pathlib, tempfile
from autofit.report.console.progress import Progress
from autofit.api.result import Result
from autofit.tuning.engine import tune
from tests.fakes import FakeLauncher, MIB, make_request

def run():
    request = make_request(pathlib.Path(tempfile.mkdtemp()), device_bytes=150 * MIB)
    with Progress() as progress:
        return Result(**vars(tune(request, FakeLauncher(cliff=64), progress.show)))

result = run()
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own libraries
def test_progress_and_result_show_in_a_notebook(tmp_path):
    cells = [nbformat.v4.new_code_cell(PROGRESS), nbformat.v4.new_code_cell("result")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=800, kernel_name="python3").execute()
    printed, shown = (cell.outputs for cell in notebook.cells)
    progress = "".join(output.text for output in printed if output.get("name") == "stdout")
    assert "1,000 parameters" in progress
    assert "baseline: batch 32" in progress
    assert "\x1b" not in progress
    assert "model.fit(" in shown[0].data["text/plain"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own libraries
def test_the_example_notebook_runs_from_top_to_bottom_and_keeps_its_outputs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [cell.outputs for cell in kept.cells if cell.cell_type == "code"]
    assert all(outputs[1:]), "run the notebook and save it with its outputs"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=800, kernel_name="python3", resources=resources).execute()
    again = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    last = "".join(out.text for out in again[-1] if out.output_type == "stream")
    assert "autofit: epoch 3: " in last
