"""The estimator of the noise scale, on gradients that are drawn from known distributions."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from autofit.records import gradient_statistics
from autofit.records.events import Notice
from autofit.records.noise import GradientProducts, Gradients, Metric, NoiseScale
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Measurement
from autofit.report import choice
from autofit.report import noise as words
from autofit.report.html import page
from autofit.report.html.goodput import goodput, noise_scale
from autofit.storage import result_files
from autofit.tuning import noise
from autofit.tuning.noise import of_measurement
from autofit.tuning.record import alternative
from autofit.tuning.tuner import tune
from tests.fakes import FakeLauncher, collect, make_request

WIDTH, BATCH, GROUP = 30, 32, 4


def drawn(scale, microbatches=64, seed=0, order=None, batch=BATCH, sample_noise=1.0, far=0.0):
    """Gradients of microbatches whose noise scale is `scale`.

    `order` is a direction in which they drift; the first `GROUP` are `far` from the others.
    """
    draw = np.random.default_rng(seed)
    gradient = draw.normal(size=WIDTH)
    gradient /= np.linalg.norm(gradient)
    variances = 1 / np.arange(1, WIDTH + 1)
    variances *= scale * sample_noise / variances.sum() / batch
    each = gradient + draw.normal(size=(microbatches, WIDTH)) * np.sqrt(variances)
    if order is not None:
        each = each + np.linspace(-order, order, microbatches)[:, None]
    each[:GROUP] += far
    sums = each.reshape(-1, GROUP, WIDTH).sum(1)
    squares = np.square(each).sum(1).reshape(-1, GROUP).sum(1)
    products = GradientProducts(tuple(map(float, squares)), tuple(tuple(map(float, row)) for row in sums @ sums.T))
    return Gradients(batch, GROUP, {Metric.EUCLIDEAN: products}, at_step=100, optimizer="SGD")


@pytest.mark.parametrize("scale", [16, 512, 4096])
def test_the_interval_has_the_true_scale_in_nineteen_of_twenty_cases(scale):
    read = [gradient_statistics.scale_of(drawn(scale, seed=seed), Metric.EUCLIDEAN) for seed in range(400)]
    inside = [each.low <= scale <= (math.inf if each.high is None else each.high) for each in read]
    assert np.mean(inside) >= 0.92
    assert scale > 1000 or np.mean(inside) <= 0.98  # bounds alone are wide
    known = [each.value for each in read if each.value is not None]
    assert not known or scale > 1000 or np.median(known) == pytest.approx(scale, rel=0.1)


def test_a_scale_far_above_the_samples_read_is_only_bounded():
    read = gradient_statistics.scale_of(drawn(1e6), Metric.EUCLIDEAN)
    assert (read.value, read.high) == (None, None)
    assert 1000 < read.low < 1e6


def test_all_samples_of_the_data_have_no_noise_left():
    gradients = drawn(512)
    few, all_of_them = (
        gradient_statistics.scale_of(replace(gradients, samples=count), Metric.EUCLIDEAN) for count in (None, 64 * BATCH)
    )
    assert all_of_them.value < few.value


def test_an_order_of_the_data_is_noticed_and_independent_draws_are_not():
    assert gradient_statistics.is_ordered(drawn(64, order=1.0), Metric.EUCLIDEAN)
    assert not any(gradient_statistics.is_ordered(drawn(64, seed=seed), Metric.EUCLIDEAN) for seed in range(100))
    assert not gradient_statistics.is_ordered(drawn(64, far=30.0), Metric.EUCLIDEAN)  # a single event is no order


def test_batches_of_two_sizes_disagree_if_their_samples_have_another_noise():
    halves = [drawn(256, 128, seed, batch=BATCH // 2) for seed in range(1, 101)]
    wrong = sum(gradient_statistics.disagree(drawn(256, 128, 200 + i), half) for i, half in enumerate(halves))
    assert wrong <= 5
    twice = [drawn(256, 128, seed, batch=BATCH // 2, sample_noise=0.5) for seed in range(1, 101)]
    assert sum(gradient_statistics.disagree(drawn(256, 128, 200 + i), half) for i, half in enumerate(twice)) >= 95


def test_a_trial_that_breaks_down_later_leaves_the_earlier_scale():
    broken = Gradients(BATCH, at_step=400, problem=gradient_statistics.NOT_FINITE, optimizer="SGD")
    measured = Measurement(Outcome.OK, Evidence("finished"), gradients=(drawn(64), broken))
    scale = of_measurement(measured)
    assert (scale.at_step, scale.trend) == (100, ())
    assert scale.value == pytest.approx(64, rel=0.4)
    ordered = replace(broken, problem=gradient_statistics.ORDERED)
    assert of_measurement(replace(measured, gradients=(drawn(64), ordered))).reason == gradient_statistics.ORDERED
    only = of_measurement(Measurement(Outcome.DEVICE_OOM, Evidence("no room for the meter")))
    assert (only.value, only.reason) == (None, "no room for the meter")


def test_a_tune_whose_share_is_too_short_says_so(tmp_path):
    _, record = collect(tune, make_request(tmp_path, noise_scale=True, space={"batch_size": [32, 256]}), Metered())
    assert record.noise_scale.reason.startswith("100 updates take longer than the ")


def test_it_is_told_in_words():
    scale = NoiseScale(1234.0, 900.0, 1700.0, metric=Metric.PRECONDITIONED, other_value=80.0, optimizer="Adam")
    trend = (NoiseScale(low=50.0, at_step=100),)
    scale = replace(scale, at_step=400, batch_size=32, microbatches=64, seconds=9.0, trend=trend)
    facts = words.facts(scale)
    assert facts["noise scale"] == "1,200 samples, after 400 updates: 95% interval 900 to 1,700"
    assert facts["metric"] == "gradients divided as Adam divides them; of plain gradients: 80 samples"
    assert facts["trend"] == "at least 50 after 100 updates"
    assert words.sizes(scale) == [64, 256, 1024, 4096, 16384]
    assert scale.progress(1234) == 0.5
    assert words.facts(NoiseScale(reason="the loss is NaN")) == {"noise scale": "none: the loss is NaN"}
    with pytest.raises(ValueError, match="the loss is NaN"):
        NoiseScale(reason="the loss is NaN").progress(8)


class Metered(FakeLauncher):
    """A workload whose gradients are known, at the baseline's batch size."""

    def measure(self, spec):
        if spec.role != "gradients":
            return super().measure(spec)
        return Measurement(Outcome.OK, Evidence("finished"), 3.0, gradients=(drawn(64), drawn(400, 512)))


def test_a_tune_measures_it_if_asked_and_the_batch_size_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "_TUNE_SHARE", 1e6)  # made-up trials take no time
    launcher = Metered()
    _, record = collect(tune, make_request(tmp_path, noise_scale=True, space={"batch_size": [32, 256]}), launcher)
    (spec,) = (spec for spec in launcher.specs if spec.role == "gradients")
    assert (spec.config, spec.gradient_steps) == (record.speedup.baseline, (100, 400, 1600))
    assert record.config.batch_size == 256
    assert record.noise_scale.value == pytest.approx(400, rel=0.3)
    assert [each.value for each in record.noise_scale.trend] == [pytest.approx(64, rel=0.4)]
    assert result_files.decode(result_files.encode(record)).noise_scale == record.noise_scale
    for asked, sizes in ((False, [32, 256]), (True, [32])):
        launcher, settings = Metered(), {"noise_scale": asked, "space": {"batch_size": sizes}}
        _, record = collect(tune, make_request(tmp_path, **settings), launcher)
        assert "gradients" not in {spec.role for spec in launcher.specs}
        assert record.noise_scale is None


class Scaled(FakeLauncher):
    """A workload of a known noise scale, whose best batch size for the same loss is the root of 64 times that scale."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def measure(self, spec):
        if spec.role != "gradients":
            return super().measure(spec)
        gradients = () if self.scale is None else (drawn(self.scale, 1024),)
        return Measurement(Outcome.OK, Evidence("the loss is NaN"), 3.0, gradients=gradients)


@pytest.mark.parametrize("scale", [4, 64, 1000])
def test_goodput_chooses_the_batch_that_reaches_the_same_loss_first(scale, tmp_path):
    launcher, space = Scaled(scale), {"batch_size": {"min": 8, "max": 1024}, "workers": [4]}
    asked = {"objective": "goodput", "space": space, "max_trials": 10}
    _, record = collect(tune, make_request(tmp_path, **asked), launcher)
    assert [spec.role for spec in launcher.specs[:2]] == ["describe", "gradients"]
    told = [(spec.rate_to_beat, spec.config.batch_size) for spec in launcher.specs if spec.rate_to_beat]
    least = [rate * record.objective.progress(batch) for rate, batch in told]
    assert max(least) <= 0.9 * max(trial.value(record.objective) for trial in record.trials)  # not ended for its rate alone
    phi = record.objective.noise_scale
    assert phi == record.noise_scale.value == pytest.approx(scale, rel=0.2)

    def seconds(batch):  # to the same loss
        return (64 + batch) / batch * (phi + batch)

    least = min(map(seconds, range(8, 1025)))
    assert seconds(record.config.batch_size) <= 1.05 * least
    _, fastest = collect(tune, make_request(tmp_path, **asked | {"objective": "throughput"}), Scaled(scale))
    assert fastest.config.batch_size > record.config.batch_size
    assert fastest.noise_scale is None
    assert result_files.decode(result_files.encode(record)) == record


def test_the_other_objective_is_named_in_the_summary(tmp_path):
    space = {"batch_size": {"min": 8, "max": 1024}, "workers": [4]}
    _, record = collect(tune, make_request(tmp_path, objective="goodput", space=space), Scaled(64))
    figures = {figure.label: str(figure) for figure in choice.figures(record)}
    pattern = r"1\.\d\dx to the same loss: [01]\.\d\d to \d\.\d\d, \d\.\d\dx the samples/s; baseline: batch 32"
    assert re.match(pattern, figures["gain"])
    assert record.alternative.batch_size > record.config.batch_size
    text = f"of the trials, {record.alternative} would be the choice by samples per second alone"
    assert choice.advice(record)["objective"] == text
    _, fastest = collect(tune, make_request(tmp_path, space=space), Scaled(64))
    fastest = replace(fastest, noise_scale=record.noise_scale)
    asked = make_request(tmp_path, space=space)
    fastest = replace(fastest, alternative=alternative(asked, fastest))
    assert fastest.alternative.batch_size < fastest.config.batch_size
    assert "by the time to the same loss (goodput)" in choice.advice(fastest)["objective"]


def test_without_a_noise_scale_goodput_is_the_rate(tmp_path):
    space = {"batch_size": [32, 256], "workers": [4]}
    events, record = collect(tune, make_request(tmp_path, objective="goodput", space=space), Scaled(None))
    assert record.config.batch_size == 256
    assert record.alternative is None
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert "samples per second are maximized, because the noise scale could not be measured: the loss is NaN" in notices


def test_the_page_draws_what_each_batch_size_is_worth(tmp_path):
    space = {"batch_size": {"min": 8, "max": 1024}, "workers": [4]}
    _, record = collect(tune, make_request(tmp_path, objective="goodput", space=space), Scaled(64))
    drawn = {trace["name"]: trace for trace in goodput(record).figure["data"]}
    at = list(drawn["to the same loss"]["x"]).index(record.config.batch_size)
    rate, worth = (drawn[name]["y"][at] for name in ("samples a second", "to the same loss"))
    assert worth == pytest.approx(rate * record.efficiency(record.config.batch_size))
    assert list(drawn["chosen"]["y"]) == [worth]
    assert max(drawn["to the same loss"]["y"]) == pytest.approx(worth, rel=0.1)
    assert "The first to reach the same loss" in page.render(record)
    assert goodput(replace(record, noise_scale=NoiseScale(reason="the loss is NaN"))) is None


def test_the_page_draws_the_noise_scale_over_the_updates(tmp_path):
    _, record = collect(tune, make_request(tmp_path, objective="goodput"), Scaled(64))
    early = NoiseScale(40.0, 30.0, 50.0, at_step=100), NoiseScale(low=60.0, at_step=400)
    scale = NoiseScale(128.0, 100.0, 160.0, at_step=1600, trend=early)
    (drawn, *lines) = noise_scale(replace(record, noise_scale=scale)).figure["data"]
    assert (list(drawn["x"]), list(drawn["y"])) == ([100, 400, 1600], [40.0, 60.0, 128.0])
    assert (list(drawn["error_y"]["array"]), list(drawn["error_y"]["arrayminus"])) == ([10, 0, 32], [10, 0, 28])
    assert "at least 60" in drawn["hovertext"][1]
    assert [line["y"][0] for line in lines] == [32, record.config.batch_size]
    assert noise_scale(replace(record, noise_scale=replace(scale, trend=()))) is None
