import re
from dataclasses import replace

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, TuneLog
from autofit.records.trial import Trial
from autofit.report import choice
from autofit.search.space import SearchSpace
from autofit.tuning.ceilings import ceilings_of
from autofit.tuning.problem import Problem
from autofit.tuning.record import record_of
from tests.fakes import make_request, with_fields


def numbers(text):
    """The numbers of a sentence, citations aside."""
    return [
        number.replace(",", "")
        for number in re.findall(
            r"(?<![\d:.])\d[\d,]*(?:\.\d+)?", re.sub(r"\(.*", "", text)
        )
    ]


def confirmed(record, tmp_path, *, searched, confirmed, compute, inputs):
    """The record of a choice that read one rate in the search and was confirmed at another."""
    config = FitConfig(64, 4, 10, False)
    reading = replace(
        record.trials[0].measurement,
        samples_per_second=searched,
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
    )
    fields = {name: getattr(record, name) for name in TuneLog.__dataclass_fields__}
    log = TuneLog(**fields | {"trials": (Trial(config, reading),)})
    chosen = Answer(config, confirmed, 0.01, None, None, record.speedup)
    problem = Problem(
        make_request(tmp_path), record.description, SearchSpace((32,)), config
    )
    return record_of(problem, log, (chosen, chosen), "all is tried")


@pytest.mark.parametrize(
    ("compute", "inputs", "bottleneck", "shown"),
    [
        (
            3000.0,
            19.9,
            "input",
            None,
        ),  # by the confirmed rate, not by that of the search
        (3000.0, 30.0, "contention", None),
        (
            7.7,
            100.0,
            "compute",
            ["100", "20"],
        ),  # the rate is 20 and far below the input's: the model is the limit
        (60.0, 8.0, "input", ["60", "20"]),
        (7.7, 8.0, "unknown", []),
        (19.5, 100.0, "compute", ["20", "100"]),  # within the noise of a ceiling
    ],
)
def test_a_ceiling_below_the_rate_is_left_out_and_the_reason_given(
    record, tmp_path, compute, inputs, bottleneck, shown
):
    for searched in (7.5, 20.0):
        slow = confirmed(
            record,
            tmp_path,
            searched=searched,
            confirmed=20.0,
            compute=compute,
            inputs=inputs,
        )
        text = choice.bottleneck_sentence(slow)
        assert slow.bottleneck == bottleneck
        if shown is not None:
            assert numbers(text) == shown
            assert "not measured" not in text


def test_both_together_are_not_said_to_be_slower_than_the_answer(record):
    slow_run = {"ceilings_run_samples_per_second": record.samples_per_second / 2}
    text = choice.bottleneck_sentence(
        replace(record, bottleneck="contention", **slow_run)
    )
    assert f"together {record.samples_per_second:,.0f}:" in text


def test_more_workers_are_spoken_of_only_where_the_data_has_some(record):
    for knobs, is_said in (
        ({"workers": "workers"}, True),
        ({"batch_size": "batch_size"}, False),
    ):
        described = replace(record.description, knobs=knobs)
        text = choice.bottleneck_sentence(replace(record, description=described))
        assert ("more workers would not help" in text) == is_said


def test_the_rates_of_a_statement_are_of_one_run_of_the_choice(record):
    config = FitConfig(64, 4, 10, False)

    def run(rate, compute, inputs):
        measured = {
            "compute_samples_per_second": compute,
            "input_samples_per_second": inputs,
        }
        return replace(
            record.trials[0].measurement, samples_per_second=rate, **measured
        )

    choice = Answer(config, 1000.0, 0.01, None, None, record.speedup)
    ceilings = ceilings_of(
        choice,
        [run(500.0, 520.0, 5000.0), run(980.0, 2000.0, 1001.0), run(990.0, None, None)],
    )
    assert ceilings == ("input", 2000.0, 1001.0, 980.0)
    assert ceilings_of(choice, []) == ("unknown", None, None, None)
    steady = replace(
        run(1000.0, 5000.0, 3050.0), steady_samples_per_second=3000.0
    )  # the rest is between epochs
    assert ceilings_of(choice, [steady]) == ("input", 5000.0, 3050.0, 3000.0)
    raised = replace(
        steady,
        input_samples_per_second=3000.0,
        input_is_read=False,
        compute_is_read=False,
    )  # one taken over
    assert ceilings_of(choice, [raised]) == ("input", 5000.0, None, 3000.0)


def test_a_larger_batch_names_a_learning_rate(record):
    larger = with_fields(
        record,
        config=FitConfig(128),
        speedup=replace(record.speedup, baseline=FitConfig(32)),
    )
    for optimizer, factor in (("SGD", "4"), ("Adam", "2"), ("", "2")):
        described = with_fields(
            larger, description=replace(larger.description, optimizer=optimizer)
        )
        assert numbers(choice.headlines(described)[-1].note) == ["128", "32", factor]
    assert numbers(
        choice.headlines(with_fields(larger, effective_batch_size=64))[-1].note
    ) == ["64"]
    assert (
        "learning rate"
        not in choice.headlines(with_fields(larger, config=FitConfig(32)))[-1].note
    )
