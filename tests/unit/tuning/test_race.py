"""The race, on curves whose ratio is known, and in a tune whose trainings follow the law of the critical batch size."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.events import Notice
from autofit.records.noise import NoiseScale
from autofit.records.race import Contestant, Heat, Race
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, LossPoint, Measurement
from autofit.report import choice
from autofit.report.html import page
from autofit.report.html.race import race as drawn_race
from autofit.storage import result_files
from autofit.tuning import race
from autofit.tuning.pairs import MOST_PAIRS
from tests.fakes import FakeLauncher, collect, make_request, tune

SMALL, LARGE = FitConfig(32), FitConfig(256)
SCALE = 200.0


def curve(progress, seconds=10.0, noise=0.0, draw=None, batch=32, rate=1000.0):
    """Losses that fall as a power of the progress; `noise` is the deviation of each loss's logarithm."""
    at = np.linspace(0, seconds, 9)
    losses = 0.1 + (1 + progress * at) ** -0.5 * np.exp(noise * (draw.normal(size=9) if draw is not None else 0))
    return tuple(LossPoint(float(t), int(t * rate / batch), float(loss)) for t, loss in zip(at, losses, strict=True))


@pytest.mark.parametrize("ratio", [0.4, 0.9, 1.0, 1.5, 3.0])
def test_a_lead_is_the_ratio_of_the_seconds_to_the_same_loss(ratio):
    assert math.exp(race.lead(curve(1.0), curve(ratio))) == pytest.approx(ratio, rel=0.05)
    assert race.lead(curve(ratio), curve(1.0)) == pytest.approx(-race.lead(curve(1.0), curve(ratio)))


def decided(ratio, seed):
    """The contestant of a race that goes on until it is decided, with the stopping rule of a race."""
    draw, pairs = np.random.default_rng(seed), []
    while len(pairs) < MOST_PAIRS:
        before, now = (curve(p * math.exp(draw.normal(0, 0.1)), noise=0.01, draw=draw) for p in (1.0, ratio))
        pairs.append((Heat(SMALL, len(pairs) + 1, before), Heat(LARGE, len(pairs) + 1, now)))
        contestant = race.compared(Contestant(LARGE), pairs)
        if len(pairs) > 1 and (contestant.is_sooner or contestant.is_later):
            break
    return contestant


def test_the_same_config_twice_is_hardly_ever_called_sooner_and_a_lead_of_half_mostly_is():
    same = [decided(1.0, seed) for seed in range(400)]
    assert sum(each.is_sooner for each in same) <= 0.05 * len(same)
    assert sum(each.is_sooner or each.is_later for each in same) <= 0.08 * len(same)
    ahead = [decided(1.5, seed) for seed in range(100)]
    assert sum(each.is_sooner for each in ahead) >= 80
    assert not any(each.is_later for each in ahead)


def test_a_training_that_fails_or_learns_nothing_is_no_ratio():
    flat = tuple(LossPoint(t, 9, 1.0) for t in (0.0, 1.0))
    nan = (LossPoint(0.0, 0, 1.0), LossPoint(1.0, 9, None))
    good, failed = Heat(SMALL, 1, curve(1.0)), Heat(LARGE, 1, problem="out of memory")
    pairs = (good, failed), (good, Heat(LARGE, 1, flat)), (good, Heat(LARGE, 1, nan)), (Heat(SMALL, 1, flat), good)
    found = [race.compared(Contestant(LARGE), [pair]).problem for pair in pairs]
    assert found == [
        "out of memory",
        "its loss did not fall below that of the checkpoint",
        "its loss is not a finite number",
        "the baseline: its loss did not fall below that of the checkpoint",
    ]
    assert race.compared(Contestant(LARGE), [(good, Heat(LARGE, 1, curve(2.0)))]).low is None  # one pair shows nothing


def test_losses_of_one_checkpoint_that_differ_in_their_last_digits_are_no_lead():
    stalled = (LossPoint(0.0, 0, 1.1000002), LossPoint(1.0, 9, 1.1000001))
    pair = Heat(SMALL, 1, curve(1.0)), Heat(LARGE, 1, stalled)
    assert pair[0].points[0].loss == 1.1
    for before, now in (pair, pair[::-1]):
        assert race.compared(Contestant(LARGE), [(before, now)]).problem.endswith(
            "did not fall below that of the checkpoint"
        )


def test_two_batches_give_the_critical_batch_size():
    ratio = 2.0 * (SCALE + 32) / (SCALE + 256)  # twice the samples a second
    contestant = Contestant(LARGE, ratio=ratio, rate_ratio=2.0)
    assert contestant.critical_batch_size(32) == pytest.approx(SCALE)
    assert replace(contestant, ratio=2.1).critical_batch_size(32) == math.inf  # a larger batch needed fewer samples
    assert replace(contestant, ratio=None).critical_batch_size(32) is None


class Trained(FakeLauncher):
    """A workload whose larger batch has more samples a second, and whose losses follow the noise scale `SCALE`."""

    def __init__(self, dies_at=None, fails=None):
        super().__init__()
        self.dies_at, self.fails = dies_at, fails  # a number of trainings; a batch size

    def measure(self, spec):
        if spec.role == "gradients":
            return Measurement(Outcome.OK, Evidence("finished"), 3.0)
        if spec.role != "heat":
            return super().measure(spec)
        if self.dies_at is not None and sum(each.role == "heat" for each in self.specs) > self.dies_at:
            raise KeyboardInterrupt
        batch = spec.config.batch_size
        if batch == self.fails:
            return Measurement(Outcome.DEVICE_OOM, Evidence("the device is full"), 3.0)
        rate = 4000 * batch / (batch + 64)
        draw = np.random.default_rng([spec.heat.seed, batch])
        progress = rate / (SCALE + batch) * math.exp(draw.normal(0, 0.02))
        losses = curve(progress, spec.measure_seconds, batch=batch, rate=rate)
        return Measurement(Outcome.OK, Evidence("finished"), 3.0, losses=losses)


@pytest.fixture
def known_scale(monkeypatch):
    monkeypatch.setattr(
        "autofit.tuning.noise.of_tune", lambda runner, record: NoiseScale(SCALE, 150.0, 260.0, at_step=400, optimizer="SGD")
    )


ASKED = {"space": {"batch_size": [32, 256], "workers": [4]}, "race_seconds": 600}


def test_a_tune_races_its_choice_against_the_baseline(tmp_path, known_scale):
    launcher = Trained()
    _, record = collect(tune, make_request(tmp_path, **ASKED), launcher)
    heats = [spec for spec in launcher.specs if spec.role == "heat"]
    first, *raced = heats
    assert (first.config, first.heat.keeps, first.heat.start) == (record.speedup.baseline, "race.npz", "")
    assert [(spec.heat.seed, spec.config.batch_size) for spec in raced[:4]] == [(1, 32), (1, 256), (2, 256), (2, 32)]
    assert {spec.heat.start for spec in raced} == {"race.npz"}
    assert len({spec.measure_seconds for spec in heats}) == 1
    assert {spec.heat.learning_rate_factor for spec in raced if spec.config.batch_size == 32} == {1.0}
    (contestant,) = record.race.contestants
    factor = (1 + SCALE / 32) / (1 + SCALE / 256)
    assert contestant.learning_rate_factor == pytest.approx(factor)
    expected = (256 / (256 + 64)) / (32 / (32 + 64)) * (SCALE + 32) / (SCALE + 256)
    assert contestant.ratio == pytest.approx(expected, rel=0.1)
    assert contestant.low < expected < contestant.high
    assert contestant.is_sooner == (contestant.low > 1)
    assert contestant.critical_batch_size(32) == pytest.approx(SCALE, rel=0.4)
    assert result_files.decode(result_files.encode(record)) == record
    text = choice.advice(record)["race"]
    reached = f"reached the baseline's loss {contestant.ratio:.2f}x sooner"
    assert text.startswith(f"batch 256, learning rate x{factor:.2g} {reached}")
    assert "Which batch size reaches the same loss first" in page.render(record)
    lines = [trace["name"] for trace in drawn_race(record).figure["data"]]
    assert lines.count("batch 256") == lines.count("batch 32 (baseline)") == contestant.pairs


def test_a_killed_race_goes_on_with_the_next_training(tmp_path, known_scale, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        collect(tune, make_request(tmp_path, **ASKED), Trained(dies_at=3))  # the checkpoint and one pair
    monkeypatch.setattr("autofit.tuning.noise.of_tune", lambda runner, record: pytest.fail("it was measured"))
    launcher = Trained()
    _, record = collect(tune, make_request(tmp_path, **ASKED), launcher)
    assert record.noise_scale.value == SCALE
    assert {spec.role for spec in launcher.specs} == {"describe", "heat"}
    assert min(spec.heat.seed for spec in launcher.specs if spec.role == "heat" and spec.heat.start) == 2
    assert min(heat.pair for heat in record.race.heats) == 1
    again = Trained()
    assert collect(tune, make_request(tmp_path, **ASKED), again)[1] == record
    assert not again.specs


def test_what_cannot_be_raced_has_a_reason(tmp_path, known_scale):
    def raced(launcher=None, **changes):
        return collect(tune, make_request(tmp_path, **{**ASKED, **changes}), launcher or Trained())

    assert re.fullmatch(
        r"7 trainings of 2\.6 s or more take about \d+ s; raise race_seconds", raced(race_seconds=20)[1].race.reason
    )
    assert raced(space={"batch_size": [32]})[1].race == Race(reason="the chosen batch size is the baseline's")
    failing = Trained(fails=256)
    events, record = raced(failing)
    assert record.race.contestants[0].problem == "the device is full"
    assert [spec.config.batch_size for spec in failing.specs if spec.role == "heat"] == [32, 32, 256]  # no second try
    assert any("a training of the race failed: the device is full" in e.text for e in events if isinstance(e, Notice))
    assert "batch 256" in choice.advice(record)["race"]


def test_the_search_leaves_the_seconds_of_the_race(tmp_path, known_scale):
    request = make_request(tmp_path, **ASKED | {"max_seconds": 640.0})
    launcher = Trained()
    collect(tune, request, launcher)
    searched = [spec.deadline_seconds for spec in launcher.specs if spec.role in ("measure", "confirm")]
    assert max(searched) <= 40
    assert max(spec.deadline_seconds for spec in launcher.specs if spec.role == "heat") > 40


def test_a_race_needs_validation_data_and_seconds_for_the_search():
    from autofit.api.requests import _refuse_race
    from autofit.tuning.settings import TuneSettings
    from autofit.workload.workload import Workload

    arrays = np.zeros((64, 2), "float32"), np.zeros((64, 1), "float32")
    alone = Workload(build_model=lambda: None, data=arrays)
    settings = TuneSettings(race_seconds=60)
    with pytest.raises(UsageError, match="pass validation, or fit_kwargs with a validation_split"):
        _refuse_race(alone, settings)
    validated = Workload(build_model=lambda: None, data=arrays, validation=arrays)
    _refuse_race(validated, settings)
    with pytest.raises(UsageError, match=r"60 seconds of racing leave none of max_seconds \(50\) for the search"):
        _refuse_race(validated, TuneSettings(race_seconds=60, max_seconds=50))
    with pytest.raises(UsageError, match="every batch size makes the same updates, so there is nothing to race"):
        _refuse_race(validated, TuneSettings(race_seconds=60, effective_batch_size=64))


@pytest.mark.parametrize(("slower", "chosen"), [(1.0, 256), (4.0, 32)])
def test_a_choice_by_goodput_stays_only_if_the_race_shows_it(tmp_path, monkeypatch, slower, chosen):
    class Slower(Trained):
        """Learns more slowly with the larger batch than the noise scale says."""

        def measure(self, spec):
            measured = super().measure(spec)
            if spec.role != "heat" or spec.config.batch_size == 32:
                return measured
            return replace(
                measured, losses=tuple(replace(point, seconds=slower * point.seconds) for point in measured.losses)
            )

    scale = NoiseScale(2000.0, 1500.0, 2600.0, at_step=400, optimizer="SGD")
    monkeypatch.setattr("autofit.tuning.noise.before_search", lambda runner, description: scale)
    monkeypatch.setattr("tests.unit.tuning.test_race.SCALE", 2000.0)
    present = {"batch_size": 32, "workers": 4}  # in the space, so it may stay
    _, record = collect(tune, make_request(tmp_path, **ASKED, objective="goodput", baseline=present), Slower())
    assert record.config.batch_size == chosen
    (contestant,) = record.race.contestants
    assert contestant.config.batch_size == 256
    assert contestant.is_sooner == (chosen == 256)
    assert result_files.decode(result_files.encode(record)) == record
    assert (record.choice.challenger is None) == (chosen == 256)
    assert record.fit_kwargs or record.data_kwargs
