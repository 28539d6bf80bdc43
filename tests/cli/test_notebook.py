"""In a real kernel: progress is one output that is drawn anew, and a result shows itself."""

import re

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")

PROGRESS = """
import pathlib, tempfile
from autofit.report.console.progress import Progress
from autofit.api.result import Result
from autofit.tuning.tuner import tune
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
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3").execute()
    printed, shown = (cell.outputs for cell in notebook.cells)
    (progress,) = (output for output in printed if output.output_type != "stream")  # tqdm warns that ipywidgets is missing
    text = re.sub(r"<[^>]+>", "", progress.data["text/html"])
    assert "1,000 parameters" in text
    assert re.search(r"trial\s+batch\s+workers\s+queue\s+outcome", text)
    assert len(re.findall(r"\bchosen\b", text)) == 2
    assert "now:" not in text
    (answer,) = shown
    assert "model.fit(" in answer.data["text/html"]
    assert "<script" not in answer.data["text/html"]
