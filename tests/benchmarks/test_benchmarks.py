"""The benchmarks print their frozen output, from which the published figures follow."""

import pathlib
import re

import pytest

from tests.commands import python

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        "backend_rates",
        "beside",
        "confirmation",
        "inputs",
        "memory",
        "memory-onednn",
        "public_tunes",
        "search",
    ],
)
def test_the_output_is_the_frozen_one(name):
    program, _, option = name.partition("-")
    assert (
        python(HERE / f"{program}.py", *([f"--{option}"] if option else []))
        == (HERE / f"{name}.txt").read_text()
    )


def test_each_figure_on_the_page_stands_in_the_output_that_its_part_names():
    _, *parts = (HERE / "README.md").read_text().split("\n## ")
    for part in parts:
        title, said = part.splitlines()[0], part.partition("no GPU.")[2]
        output = (HERE / re.search(r"\]\(([\w-]+\.txt)\)", part)[1]).read_text()
        figures = re.findall(r"\d+(?:[.,]\d+)+|\d+(?= %)", said)
        assert figures, title
        unknown = [
            figure
            for figure in figures
            if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d|[.,]\d)", output)
        ]
        assert unknown == [], title


def test_the_search_still_finds_what_is_published(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import search

    cases = [("surface", 1000), ("table", "tiny"), ("grid", "zeus|v100|imagenet/resnet50")]
    rows = [search.search(("autofit", "a group", *case, 0))[-1] for case in cases]
    assert [row[5] < 0.05 for row in rows] == [True] * 3, rows
