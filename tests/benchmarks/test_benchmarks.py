"""The benchmarks print their frozen output, from which the published figures follow."""

import pathlib

import pytest

from tests.benchmarks import validation
from tests.commands import python

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    "name", ["backend_rates", "beside", "confirmation", "inputs", "memory", "memory-onednn", "public_tunes", "search"]
)
def test_the_output_is_the_frozen_one(name):
    program, _, option = name.partition("-")
    assert python(HERE / f"{program}.py", *([f"--{option}"] if option else [])) == (HERE / f"{name}.txt").read_text()


def test_the_validation_page_follows_from_the_frozen_outputs():
    assert validation.PAGE.read_text() == validation.written(), "run python tests/benchmarks/validation.py"


def test_the_search_still_finds_what_is_published(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import search

    cases = [("surface", 1000), ("table", "tiny"), ("grid", "zeus|v100|imagenet/resnet50")]
    rows = [search.search(("autofit", "a group", *case, 0))[-1] for case in cases]
    assert [row[5] < 0.05 for row in rows] == [True] * 3, rows
