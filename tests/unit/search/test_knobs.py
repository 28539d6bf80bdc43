"""A knob is a row and a field.

Whatever lists knobs asks the rows, and the fields agree with them.
"""

from dataclasses import dataclass, fields, replace

import pytest
from pydantic import ValidationError

from autofit.records.knobs import (
    AUTOTUNE,
    DATA_KNOBS,
    KNOBS,
    Coordinate,
    FitConfig,
    KnobRow,
)
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement, Trial
from autofit.report.columns import trial_rows
from autofit.search import space
from autofit.search.context import ConfigArrays
from autofit.search.space import Baseline, SearchSpace, Space, cost, distance
from autofit.workload.inputs import knobs as inputs_knobs
from autofit.workload.inputs.knobs import knobs_of

SHUFFLE = KnobRow(
    label="shuffle",
    less="less",
    more="more",
    lowest=1,
    default=None,
    rank=7,
    coordinate=Coordinate(
        lambda config, cores: config.shuffle_buffer or 1, weight=0.3, length=6.0
    ),
    text=lambda config: f"shuffle {config.shuffle_buffer}",
    column=lambda config: str(config.shuffle_buffer),
    values=(1000, 8000),
    parameters=("shuffle_buffer",),
)


@dataclass(frozen=True)
class ShuffledConfig(FitConfig):
    shuffle_buffer: int | None = None


@dataclass(frozen=True)
class ShuffledSpace(SearchSpace):
    shuffle_buffer: tuple[int, ...] | None = None


@pytest.fixture
def shuffles(monkeypatch):
    """A seventh knob, as a row of KNOBS and a field of each class."""
    monkeypatch.setitem(KNOBS, "shuffle_buffer", SHUFFLE)
    monkeypatch.setattr(inputs_knobs, "DATA_KNOBS", (*DATA_KNOBS, "shuffle_buffer"))
    monkeypatch.setattr(space, "FitConfig", ShuffledConfig)


def assert_told_apart(config, other):
    """Assert that the search, its order and its messages tell a config from a dearer one."""
    assert cost(config) < cost(other)
    assert any(distance(config, other))
    coordinates = ConfigArrays([config, other], 4).coordinates
    assert (coordinates[0] != coordinates[1]).any()
    assert str(config) != str(other)


@pytest.mark.parametrize("knob", KNOBS)
def test_two_configs_that_differ_in_a_knob_differ_wherever_configs_are_compared(knob):
    small, large = (KNOBS[knob].values or (2, 4))[:2]
    assert_told_apart(
        FitConfig(**{"workers": 4, knob: small}),
        FitConfig(**{"workers": 4, knob: large}),
    )


def test_the_ranks_of_the_knobs_differ():
    assert len({row.rank for row in KNOBS.values()}) == len(KNOBS)


@pytest.mark.parametrize("kind", [FitConfig, SearchSpace, Baseline, Space])
def test_each_row_has_a_field_and_each_field_of_a_value_a_row(kind):
    names = (
        kind.model_fields
        if issubclass(kind, Baseline | Space)
        else [f.name for f in fields(kind)]
    )
    assert list(names)[: len(KNOBS)] == list(KNOBS)


def accepts(kind, knob, value):
    try:
        kind(**{knob: value})
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("knob", KNOBS)
def test_the_types_of_what_users_write_are_those_of_the_row(knob):
    row = KNOBS[knob]
    for kind in (Baseline, Space):
        assert accepts(kind, knob, row.lowest) is not row.is_switch
        assert accepts(kind, knob, True) is row.is_switch
        assert (
            accepts(kind, knob, AUTOTUNE)
            is accepts(kind, knob, "auto")
            is row.autotunes
        )
        assert not accepts(kind, knob, min(row.lowest - 1, AUTOTUNE - 1))
    assert accepts(Space, knob, {"min": row.lowest, "max": 4}) is not row.is_switch
    assert not accepts(Space, knob, {"min": row.lowest - 1, "max": 4})


def test_a_new_row_and_its_fields_are_enough_for_the_search_and_the_messages(shuffles):
    config = ShuffledConfig(8, 4, shuffle_buffer=1000)
    assert_told_apart(config, replace(config, shuffle_buffer=8000))
    listed = ShuffledSpace((8,), (1, 4), shuffle_buffer=(1000, 8000)).configs()
    assert [c.shuffle_buffer for c in listed] == [1000, 8000, 1000, 8000]
    (row,) = trial_rows([Trial(config, Measurement(Outcome.OK, Evidence("")))], None)
    assert row["shuffle"] == "1000"


def test_a_factory_with_any_keywords_is_not_given_a_knob_whose_row_does_not_say_so(
    shuffles,
):
    assert "shuffle_buffer" not in knobs_of(lambda **kwargs: None, {})
    assert "shuffle_buffer" in knobs_of(lambda shuffle_buffer, **kwargs: None, {})
    by_kwargs = [knob for knob, row in KNOBS.items() if row.by_kwargs]
    assert list(knobs_of(lambda **kwargs: None, {})) == by_kwargs
