"""What else in a program depends on the batch size is said beside the answer, in every output."""

from dataclasses import replace

import pytest

from autofit.api.result import Result
from autofit.records.description import BatchDependence
from autofit.records.knobs import FitConfig
from autofit.records.machine import Placement
from autofit.report import choice
from autofit.report.adjustments import adjustments_of
from autofit.report.html import page
from tests.fakes import with_fields
from tests.unit.report.conftest import summary_of

SCHEDULE = BatchDependence("schedule", "CosineDecay", ("decay_steps", "warmup_steps"))
NORMALIZATION = BatchDependence("normalization", "BatchNormalization")


def record_with(record, *parts, now=1024, own=32, described=(), given=None, **changes):
    """A tune of 20,000 samples whose answer has batch size `now`, of a program with these parts."""
    changes = {
        "description": replace(
            record.description,
            **{"sample_count": 20_000, "batch_dependences": parts, **dict(described)},
        ),
        "config": FitConfig(now),
        "speedup": replace(record.speedup, baseline=FitConfig(own)),
        "call_source": replace(record.call_source, fit_kwargs=given or {}),
        **changes,
    }
    return with_fields(record, **changes)


@pytest.mark.parametrize(
    ("parts", "changes", "facts"),
    [
        ([SCHEDULE], {}, ["20 instead of 625; divide decay_steps, warmup_steps by 32"]),
        ([SCHEDULE], {"now": 16}, ["1,250 instead of 625; multiply decay_steps"]),
        (
            [SCHEDULE],
            {"described": {"model_takes_batch": True}},
            ["unless build_model computes"],
        ),
        (
            [BatchDependence("schedule", "Mine")],
            {},
            ["Mine counts train steps: an epoch has 20"],
        ),
        ([NORMALIZATION], {}, []),  # of a larger batch it is as good
        ([NORMALIZATION], {"now": 16}, []),
        ([NORMALIZATION], {"now": 8}, ["averages 8 samples instead of 32"]),
        (
            [NORMALIZATION],
            {"now": 16, "placement": Placement("gpu", 2)},
            ["averages 8 samples instead of 16"],
        ),
        (
            [NORMALIZATION],
            {"now": 64, "own": 256, "effective_batch_size": 256},
            ["averages 64"],
        ),
        (
            [NORMALIZATION],
            {
                "own": 64,
                "now": 64,
                "batch_is_default": True,
                "effective_batch_size": 256,
            },
            ["still averages 64 samples"],
        ),
        (
            [BatchDependence("loss", "nt_xent")],
            {},
            ["nt_xent", "1,024 samples instead of 32"],
        ),
        (
            [BatchDependence("sum", "mse")],
            {},
            ["mse adds up its samples", "32 times as large"],
        ),
        (
            [BatchDependence("method", "M.train_step")],
            {},
            ["M.train_step gets 1,024 samples"],
        ),
        (
            [],
            {"described": {"accumulation_steps": 4}},
            ["4,096 samples instead of 128"],
        ),
        (
            [],
            {"described": {"batch_callbacks": ("Every100",)}},
            ["Every100: an epoch has 20"],
        ),
        (
            [],
            {"described": {"sample_count": None, "batch_callbacks": ("A",)}},
            ["0.031 times"],
        ),
    ],
)
def test_each_part_that_depends_on_the_batch_size_is_said_in_every_output(
    record, parts, changes, facts
):
    shown = record_with(record, *parts, **changes)
    result = Result.of(shown)
    texts = {
        "result.json": " ".join(result.fastest.adjustments),
        "lines": result.snippet().replace("#   ", ""),
        "summary": summary_of(shown),
        "page": page.render(shown).partition("<script")[0],
        "notebook": page.compact(shown),
    }
    sentences = adjustments_of(shown, shown.fastest)
    assert len(sentences) == bool(facts)
    for output, text in texts.items():
        words = " ".join(text.split())
        assert [fact for fact in facts if fact not in words] == [], output
        assert ("to adjust" in words.lower()) == (
            bool(facts) and output != "result.json"
        )


def test_literal_steps_of_an_epoch_are_listed_with_what_to_pass(record):
    given = {"steps_per_epoch": 625, "epochs": 3}
    scaled = {"steps_per_epoch": 20, "epochs": 3}
    unscaled = record_with(record, given=given | {"validation_steps": 5})
    assert adjustments_of(unscaled, unscaled.fastest) == ()
    shown = with_fields(record_with(record, given=given), fit_kwargs=scaled)
    assert adjustments_of(shown, shown.fastest) == (
        "steps_per_epoch counts batches: pass 20 instead of 625",
    )


ALL = (SCHEDULE, NORMALIZATION, BatchDependence("method", "M.train_step"))


@pytest.mark.parametrize(
    "changes",
    [
        {"now": 32},
        {"now": 256, "own": 256, "effective_batch_size": 256},
        {"call": "predict"},
    ],
)
def test_at_the_own_batch_size_nothing_is_said(record, changes):
    call = changes.pop("call", "fit")
    described = {"accumulation_steps": 4, "batch_callbacks": ("Every100",)}
    shown = record_with(record, *ALL, described=described, **changes)
    shown = replace(shown, call_source=replace(shown.call_source, call=call))
    assert adjustments_of(shown, shown.fastest) == ()
    assert "to adjust" not in summary_of(shown)


def test_a_factor_for_the_learning_rate_is_named_where_nothing_contradicts_it(record):
    for parts, changes, has_factor in (
        ([SCHEDULE], {}, False),
        ([NORMALIZATION], {"now": 8}, False),
        ([NORMALIZATION], {}, True),
        ([], {"described": {"accumulation_steps": 4, "batch_callbacks": ("A",)}}, True),
    ):
        note = choice.headlines(record_with(record, *parts, **changes))[-1].note
        assert ("times the learning rate" in note) == has_factor
        assert "compare the validation loss" in note
    accumulated = record_with(
        record, *ALL, now=16, own=32, batch_is_default=True, effective_batch_size=256
    )
    note = choice.headlines(accumulated)[-1].note
    assert "the gradients of 16 batches of 16" in note
    assert "as requested" not in note
