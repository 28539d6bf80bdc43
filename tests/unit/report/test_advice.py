import re
from dataclasses import replace

import pytest

from autofit.records.result import Answer, TuneLog
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Evidence, FitConfig, Measurement, Trial
from autofit.report import choice
from autofit.search.space import SearchSpace
from autofit.tuning.problem import Problem
from autofit.tuning.record import ceilings_of, record_of
from tests.fakes import make_request, with_fields


def numbers(text):
    """The numbers of a sentence, citations aside."""
    return [number.replace(",", "") for number in re.findall(r"(?<![\d:.])\d[\d,]*(?:\.\d+)?", re.sub(r"\(.*", "", text))]


def input_trial(record, config, rate):
    return Trial(config, replace(record.trials[0].measurement, input_samples_per_second=rate))


def test_the_bottleneck_is_explained_by_the_three_rates(record):
    rates = {FitConfig(32, 1, 10, False): 310.0, FitConfig(32, 4, 10, False): 320.0, FitConfig(32, 4, 10, True): 500.0}
    limited = with_fields(
        record,
        config=FitConfig(32, 4, 10, True),
        bottleneck="input",
        compute_samples_per_second=2400.0,
        input_samples_per_second=500.0,
        trials=tuple(input_trial(record, config, rate) for config, rate in rates.items()),
    )
    for changes, name, rates in (
        ({}, "input-bound", ["310", "2400", "4", "500"]),
        ({"bottleneck": "compute", "input_samples_per_second": 9000.0}, "compute-bound", ["2400", "9000"]),
        ({"bottleneck": "contention", "samples_per_second": 300.0}, "contention", ["2400", "500", "300"]),
        ({"bottleneck": "unknown"}, "unknown", []),
        # an input slower than the model is named even when compute-bound
        ({"bottleneck": "compute", "samples_per_second": 490.0}, "compute-bound", ["490", "2400", "500"]),
    ):
        text = choice.bottleneck_sentence(with_fields(limited, **changes))
        assert (text.partition(":")[0], numbers(text)) == (name, rates)


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
    problem = Problem(make_request(tmp_path), record.description, SearchSpace((32,)), config)
    return record_of(problem, log, (chosen, chosen), "all is tried")


@pytest.mark.parametrize(
    ("compute", "inputs", "bottleneck", "shown"),
    [
        (3000.0, 19.9, "input", None),  # by the confirmed rate, not by that of the search
        (3000.0, 30.0, "contention", None),
        (7.7, 100.0, "compute", ["100"]),  # the rate is 20 and far below the input's: the model is the limit
        (7.7, 21.0, "input", ["21"]),
        (60.0, 8.0, "input", ["60"]),
        (20.5, 8.0, "compute", ["20"]),
        (7.7, 8.0, "unknown", []),
        (19.5, 100.0, "compute", ["20", "100"]),  # within the noise of a ceiling
    ],
)
def test_a_ceiling_below_the_rate_is_left_out_and_the_reason_given(record, tmp_path, compute, inputs, bottleneck, shown):
    for searched in (7.5, 20.0):
        slow = confirmed(record, tmp_path, searched=searched, confirmed=20.0, compute=compute, inputs=inputs)
        text = choice.bottleneck_sentence(slow)
        assert slow.bottleneck == bottleneck
        if shown is not None:
            assert (numbers(text), "rate of fit" in text) == (shown, len(shown) < 2)


def test_the_rates_of_a_statement_are_of_one_run_of_the_choice(record):
    config = FitConfig(64, 4, 10, False)

    def run(rate, compute, inputs):
        measured = {"compute_samples_per_second": compute, "input_samples_per_second": inputs}
        return replace(record.trials[0].measurement, samples_per_second=rate, **measured)

    choice = Answer(config, 1000.0, 0.01, None, None, record.speedup)
    ceilings = ceilings_of(choice, [run(500.0, 520.0, 5000.0), run(980.0, 2000.0, 1001.0), run(990.0, None, None)])
    assert ceilings == ("input", 2000.0, 1001.0, 980.0)
    assert ceilings_of(choice, []) == ("unknown", None, None, None)
    steady = replace(run(1000.0, 5000.0, 3050.0), steady_samples_per_second=3000.0)  # the rest is between epochs
    assert ceilings_of(choice, [steady]) == ("input", 5000.0, 3050.0, 3000.0)


def input_bound(record, chosen, rates, compute=3000.0):
    """The sentence for these rates of the input alone, by config."""
    trials = tuple(input_trial(record, config, rate) for config, rate in rates.items())
    changed = {"compute_samples_per_second": compute, "input_samples_per_second": rates[chosen], "bottleneck": "input"}
    return choice.bottleneck_sentence(with_fields(record, config=chosen, trials=trials, **changed))


def test_the_input_is_compared_with_the_model_at_the_chosen_batch_size_only(record):
    arrays = {FitConfig(64): 1000.0, FitConfig(1024): 8000.0}
    assert numbers(input_bound(record, FitConfig(64), arrays)) == ["1000", "3000"]
    one, four, more = FitConfig(32, 1, 10, False), FitConfig(64, 4, 10, False), FitConfig(1024, 8, 10, False)
    text = input_bound(record, four, {one: 400.0, four: 1000.0, more: 2000.0})
    for fact in ("400 samples/s (batch 32)", "3,000", "4 threads reached 1,000 (batch 64)"):
        assert fact in text
    assert "2,000" not in text
    same = replace(one, batch_size=64)
    text = input_bound(record, four, {one: 700.0, same: 300.0, four: 1000.0})
    assert "300 samples/s" in text
    assert "(batch" not in text
    assert numbers(input_bound(record, same, {same: 1000.0, four: 4000.0})) == ["1000", "3000"]  # not above the model's
    text = input_bound(record, FitConfig(64, None, 10), {FitConfig(64, None, 10): 1000.0, FitConfig(64): 900.0})
    assert (numbers(text), "worker" in text) == (["1000", "3000"], False)


def test_runs_that_differ_by_much_are_reported(record):
    def noise(*rates):
        runs = tuple(
            replace(
                Trial(record.config, Measurement(Outcome.OK, Evidence(""), samples_per_second=rate)), stage=Stage.CHOSEN
            )
            for rate in rates
        )
        return choice.advice(with_fields(record, runs=runs)).get("noise", "")

    assert noise() == noise(1000.0) == noise(1000.0, 1100.0) == ""
    assert numbers(noise(1000.0, 1400.0, 1200.0)) == ["1000", "1400"]


def test_the_rules_for_the_learning_rate_are_given_where_an_update_averages_more_samples(record):
    larger = with_fields(record, config=FitConfig(128), speedup=replace(record.speedup, baseline=FitConfig(32)))
    text = choice.advice(larger)["learning rate"]
    assert numbers(text)[:2] == ["128", "32"]
    for optimizer, factor in (("SGD", "with SGD try 4 times"), ("Adam", "with Adam try 2 times"), ("", "try 2 times")):
        described = with_fields(larger, description=replace(larger.description, optimizer=optimizer))
        assert factor in choice.headline(described).note
    requested = choice.advice(with_fields(larger, effective_batch_size=64))["learning rate"]
    assert numbers(requested) == ["64"]
    assert "learning rate" not in choice.advice(with_fields(larger, config=FitConfig(32)))


@pytest.mark.parametrize(("count", "batch", "facts"), [(200, 64, ["64", "4", "7"]), (90, 30, ["30", "3"]), (640, 64, [])])
def test_few_updates_an_epoch_are_stated(record, count, batch, facts):
    description = replace(record.description, sample_count=count)
    text = choice.advice(with_fields(record, description=description, config=FitConfig(batch))).get("updates", "")
    assert numbers(text) == facts


def test_the_updates_of_endless_data_follow_from_its_steps_and_accumulation_makes_them_fewer(record):
    endless = replace(record.description, input_kind="generator", sample_count=None)
    changed = with_fields(record, description=endless, config=FitConfig(32), fit_kwargs={"steps_per_epoch": 16})
    assert "updates" not in choice.advice(changed)
    accumulated = with_fields(changed, effective_batch_size=128)
    assert numbers(choice.advice(accumulated)["updates"]) == ["32", "4"]
    assert "updates" not in choice.advice(with_fields(record, description=endless))
