"""The arguments of `tune` are the same wherever they are shown."""

import inspect

import pytest

import autofit
from autofit.api.config import load
from autofit.api.config.load import TuneFile
from tests import arguments

NOT_IN_FILES = {"progress"}


def test_signatures_docstrings_and_readme_are_written_from_the_model():
    stale = [path.name for path, text in arguments.files().items() if path.read_text() != text]
    assert stale == [], "run: python -m tests.arguments"


def test_the_everyday_arguments_come_first():
    names = list(inspect.signature(autofit.tune).parameters)
    assert tuple(names[2:12]) == arguments.EVERYDAY


def test_a_file_takes_the_arguments_of_the_call():
    names = set(inspect.signature(autofit.tune).parameters) - NOT_IN_FILES
    assert set(TuneFile.model_fields) == names | {"host_labels"}


@pytest.mark.parametrize("function", arguments.FUNCTIONS)
def test_a_function_has_the_defaults_of_the_model(function):
    parameters = inspect.signature(getattr(autofit, function)).parameters
    for name in arguments.FUNCTIONS[function]:
        default = arguments.FIELDS[name].get_default(call_default_factory=True)
        shown = {} if arguments.is_mapping(arguments.FIELDS[name].annotation) else default
        assert parameters[name].default == shown, name


def test_every_key_of_the_schema_has_a_text():
    properties = load.schema()["properties"]
    assert [key for key, fields in properties.items() if not fields.get("description")] == []
