import re
from dataclasses import replace

from autofit.records.knobs import FitConfig
from autofit.report import choice
from tests.fakes import with_fields


def numbers(text):
    """The numbers of a sentence, citations aside."""
    return [
        number.replace(",", "")
        for number in re.findall(
            r"(?<![\d:.])\d[\d,]*(?:\.\d+)?", re.sub(r"\(.*", "", text)
        )
    ]


def test_more_workers_are_spoken_of_only_where_the_data_has_some(record):
    for knobs, is_said in (
        ({"workers": "workers"}, True),
        ({"batch_size": "batch_size"}, False),
    ):
        described = replace(record.description, knobs=knobs)
        text = choice.bottleneck_sentence(replace(record, description=described))
        assert ("more workers would not help" in text) == is_said


def test_the_parts_of_an_epoch_are_named_with_the_rates_of_one_run(record):
    def sentence(rate, compute, inputs, **fields):
        measured = replace(
            record.trials[-1].measurement,
            samples_per_second=rate,
            steady_samples_per_second=rate,
            compute_samples_per_second=compute,
            input_samples_per_second=inputs,
            **fields,
        )
        trial = replace(record.trials[-1], measurement=measured)
        slow = replace(record, trials=(trial,), runs=())
        return slow.bottleneck, choice.bottleneck_sentence(slow)

    part, text = sentence(500.0, 2000.0, 510.0)
    assert part == "data"
    assert text.startswith("waiting for data 75%, the step itself 25% of an epoch; ")
    assert numbers(text) == ["75", "25", "2000", "510"]
    # what was raised to the rate of both shows nothing
    part, text = sentence(500.0, 500.0, 900.0, compute_is_read=False)
    assert (part, text) == ("step", "the step itself 100% of an epoch")
    # 2,000 samples in 4 s, after 6 s without a step
    part, text = sentence(
        500.0, 505.0, 900.0, epoch_samples=2000, epoch_gap_seconds=6.0
    )
    assert part == "start"
    assert text.startswith("start of an epoch 60%, the step itself 40% of an epoch")


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
