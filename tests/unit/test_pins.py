"""What must not change by moving code: saved files, and the names under which tunes are stored."""

import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from autofit.records import FIRST_PYTHON_WITHOUT_TENSORFLOW
from autofit.storage import result_files
from autofit.workload.fingerprint import identify
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload
from tests.fakes import DESCRIPTION, make_request

PINNED = Path(__file__).parents[1] / "data" / "pinned"


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="code is hashed as this version of Python compiles it",
)
def test_the_fingerprint_of_a_workload():
    build, data = (
        Reference(f"model.py:{name}", str(PINNED)) for name in ("build", "Photos")
    )
    workload = Workload(
        build, data, model_kwargs={"depth": 3}, data_kwargs={"folder": "photos"}
    )
    assert identify(**vars(workload)) == "80fe0f68e0ae6f3d"


def test_the_names_under_which_a_tune_is_stored(tmp_path):
    request = make_request(tmp_path)
    assert request.fingerprint() == "autofit-eb50c09e94388644"
    assert request.result_key() == "autofit:record:4d21b4428acfb0f0"
    assert request.warm_start_key(DESCRIPTION) == "823f4e7e95d1e54b 1000 262144"


def test_the_extras_take_the_newest_jax_that_has_run_and_all_that_cuda_13_needs():
    extras = (PINNED.parents[2] / "pyproject.toml").read_text()
    assert all(
        "0.12.0.1" in Requirement(jax).specifier
        for jax in re.findall(r'"(jax.*?\d)[";]', extras)
    )
    assert '"nvidia-nvvm' in extras


def test_tensorflow_is_installed_with_every_python_for_which_errors_say_that_it_can_be():
    text = (PINNED.parents[2] / "pyproject.toml").read_text()
    (line,) = re.findall(r'"(tensorflow>.*?)"', text)
    major, minor = FIRST_PYTHON_WITHOUT_TENSORFLOW
    assert str(Requirement(line).marker) == f'python_version < "{major}.{minor}"'


@pytest.mark.parametrize("name", ["result.json", "sweep.json"])
def test_a_saved_file_is_read_and_written_as_before(tmp_path, name):
    record = result_files.load(PINNED / name)
    result_files.save(record, tmp_path / name)
    assert result_files.load(tmp_path / name) == record
    assert set(json.loads((PINNED / name).read_text())) <= set(
        json.loads((tmp_path / name).read_text())
    )
