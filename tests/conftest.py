import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.contracts.cases")  # which several folders import
TESTS = Path(__file__).parent
UNIT = TESTS / "unit"
WITH_EVERY_CHANGE = (
    "unit",
    "contracts",
    "tunes",
)  # by the README's command; the tests of all other folders are slow
BEFORE_A_RELEASE = ("release", "faults", "hosts", "gpu")

# no time that a busy machine could spoil, and the same examples in each run
settings.register_profile(
    "shared machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")

if worker := os.environ.get(
    "PYTEST_XDIST_WORKER"
):  # tunes of two workers run at once, as their tests do not time them
    folder = Path(tempfile.gettempdir()) / f"autofit-tests-{os.getuid()}-{worker}"
    folder.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def pytest_configure(config):
    config.option.loadscopereorder = (
        False  # pytest-xdist starts the files in the order below
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in WITH_EVERY_CHANGE:
            item.add_marker("slow")
        if folder in BEFORE_A_RELEASE:
            item.add_marker("release")
    items.sort(
        key=lambda item: UNIT in item.path.parents
    )  # the shortest last, so that the workers end together
