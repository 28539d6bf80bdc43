"""Plain words: names say what a value is, and prose is technical English."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = {"told", "said", "here"}
PHRASES = re.compile(r"\b(told|came to|comes to|for want of|stands here|say so|said so)\b")


@pytest.mark.parametrize("package", sorted(path.name for path in (ROOT / "autofit").iterdir() if path.suffix != ".typed"))
def test_no_name_says_less_than_what_a_value_is(package):
    path = ROOT / "autofit" / package
    for file in [path] if path.is_file() else path.rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        assert NAMES.isdisjoint(token.string for token in tokens if token.type == tokenize.NAME), file


def test_prose_has_no_words_of_its_own():
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/README.md"),
        *(ROOT / "autofit").rglob("*.py"),
        *(ROOT / "examples").glob("*.py"),
    ]
    assert [f"{file}: {match[0]}" for file in files for match in PHRASES.finditer(file.read_text())] == []
