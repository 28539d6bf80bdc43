"""Values from environment variables: functions get them, and nothing shows them."""

import json
import os
import pickle

import cloudpickle
import pytest

from autofit.api.config import load
from autofit.api.config.document import expand
from autofit.report import snippet
from autofit.workload import environment, fingerprint
from autofit.workload.call_source import call_source_of
from autofit.workload.workload import Workload

VARIABLES = {"TOKEN": "s3cret-value", "PIN": "1234567", "RATE": "0.25", "EMPTY": ""}


@pytest.mark.parametrize(
    "written",
    ["${TOKEN}", "https://me:${TOKEN}@host/${PIN}", "${EMPTY:-none} and $${plain}", '${UNSET:-it\'s "it"}', "a${EMPTY}"],
)
def test_the_code_of_a_text_gives_its_value(monkeypatch, written):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    text, source = expand(written, os.environ)
    assert eval(source.code, {"os": os}) == text
    assert VARIABLES["TOKEN"] not in source.code


def value(written, kind=str):
    text, source = expand(written, VARIABLES)
    return environment.marked(kind(text), source)


@pytest.mark.parametrize(("written", "kind"), [("${TOKEN}", str), ("${PIN}", int), ("${RATE}", float)])
def test_a_value_is_itself_for_functions_and_its_variable_for_people(monkeypatch, written, kind):
    for name, text in VARIABLES.items():
        monkeypatch.setenv(name, text)
    marked = value(written, kind)
    expected = kind(expand(written, VARIABLES)[0])
    assert marked == expected
    for restored in (
        pickle.loads(pickle.dumps([marked]))[0],
        pickle.loads(cloudpickle.dumps(marked)),
        environment.plain(marked),
    ):
        assert (type(restored), restored) == (kind, expected)
    assert eval(repr([marked]), {"os": os}) == [expected]
    assert str(expected) not in repr([marked])
    assert environment.shown({"a": [marked, 1]}) == {"a": [written, 1]}
    assert environment.plain({"a": [marked, 1]}) == {"a": [expected, 1]}


def test_what_neither_text_nor_number_is_stays():
    source = environment.Source("${X}", "os.environ['X']", (("X", "true"),))
    assert environment.marked(True, source) is True
    assert environment.marked(None, source) is None


def test_values_are_replaced_in_other_text_by_their_names_the_longest_first():
    hide = environment.hiding({"a": [value("x ${TOKEN}")], "b": value("${PIN}", int)})
    assert hide("s3cret-value, 1234567") == "${TOKEN}, ${PIN}"
    assert environment.hiding({"a": 1})("1") == "1"
    short = environment.marked("abc", environment.Source("${X}", "", (("X", "abc"),)))
    assert environment.hiding(short)("abc") == "abc"


def test_a_workload_shows_code_and_keeps_its_fingerprint():
    marked = {"token": value("${TOKEN}"), "nested": {"pin": [value("${PIN}", int)]}, "plain": 3}
    workload = Workload(dict, dict, model_kwargs=marked, data_kwargs=marked)
    call_source = call_source_of(workload)
    assert call_source.imports[0] == "import os"
    assert call_source.model == "dict(token=os.environ['TOKEN'], nested={'pin': [int(os.environ['PIN'])]}, plain=3)"
    assert call_source.data_kwargs == {"plain": 3}
    assert call_source.data_expressions == {"token": "os.environ['TOKEN']", "nested": "{'pin': [int(os.environ['PIN'])]}"}
    plain = Workload(dict, dict, model_kwargs=environment.plain(marked), data_kwargs=environment.plain(marked))
    assert fingerprint.identify(workload) == fingerprint.identify(plain)
    assert "import os" not in call_source_of(plain).imports


def test_code_comes_before_what_autofit_chose():
    call = snippet._call("data", {"batch_size": 8, "seed": 1}, {"token": "os.environ['T']", "seed": "os.environ['S']"})
    assert call == "data(token=os.environ['T'], batch_size=8, seed=1)"


def test_a_sweep_shows_its_values_as_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", VARIABLES["TOKEN"])
    (tmp_path / "sweep.yaml").write_text(
        "build_model: keras:Sequential\ndata: keras:Sequential\nstorage: ${TOKEN}.db\n"
        "matrix:\n  model_kwargs.token: ['${TOKEN}', other]\n  device_memory: [1GiB, '${MEMORY:-2GiB}']\n"
    )
    cells = load.load_sweep(tmp_path / "sweep.yaml")
    assert [values["model_kwargs.token"] for values, _ in cells] == ["${TOKEN}", "${TOKEN}", "other", "other"]
    assert [arguments["device_memory"] for _, arguments in cells][:2] == ["1GiB", "2GiB"]
    assert cells[0][1]["storage"] == f"{VARIABLES['TOKEN']}.db"
    assert type(cells[0][1]["storage"]) is str
    assert VARIABLES["TOKEN"] not in json.dumps([values for values, _ in cells])
