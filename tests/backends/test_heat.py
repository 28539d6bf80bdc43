"""The trainings of a race, on each backend: a regression without noise, whose loss falls by learning rate and updates."""

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, HeatSpec
from tests.installed import needs

pytestmark = pytest.mark.slow

WIDTH, SAMPLES, RATE = 8, 4096, 1e-4
TRUTH = np.linspace(1, 2, WIDTH)


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


def rows(samples=SAMPLES):
    x = np.random.default_rng(samples).normal(size=(samples, WIDTH)).astype("float32")
    return x, (x @ TRUTH).astype("float32")[:, None]


def regression(optimizer="sgd", stops_after=None):
    """A model whose learning rate falls to 0 after some updates, if given."""
    import keras

    rate = RATE
    if stops_after is not None:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([stops_after], [50 * RATE, 0.0])
    made = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    made.compile({"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer](rate), "mse")
    return made


@pytest.fixture
def trained(launched, play):
    """Trains one heat after the other in the same launcher, and returns the points of each."""

    def trained(*heats, batch=32, **model_kwargs):
        launcher = launched(
            build_model=regression,
            data=rows,
            validation=rows,
            validation_kwargs={"samples": 512},
            model_kwargs=model_kwargs,
        )
        config = FitConfig(batch)
        asked = {"role": "heat", "measure_seconds": 2.0}
        run = [play(launcher, config, heat=HeatSpec(held_out_samples=512, **heat), **asked) for heat in heats]
        assert {measured.outcome for measured in run} == {Outcome.OK}, [measured.evidence for measured in run]
        return [measured.losses for measured in run]

    return trained


def updates_to(points, loss):
    """The number of updates after which a falling loss is reached."""
    losses = [point.loss for point in points]
    assert losses == sorted(losses, reverse=True), losses
    return np.interp(-loss, [-each for each in losses], [point.updates - points[0].updates for point in points])


def test_a_training_starts_from_the_checkpoint_with_its_own_learning_rate(trained):
    start = {"start": "kept.npz", "seed": 1, "baseline": 32}
    kept, still, plain, faster = trained(
        {"keeps": "kept.npz"},
        {**start, "learning_rate_factor": 0.0},
        start,
        {**start, "learning_rate_factor": 4.0},
    )
    assert len(kept) == 9
    assert [point.seconds for point in kept] == sorted(point.seconds for point in kept)
    assert {points[0].updates for points in (still, plain, faster)} == {kept[-1].updates}
    (loss,) = {point.loss for point in still}  # nothing is learned, so each average is the checkpoint itself
    assert loss == plain[0].loss == faster[0].loss < (TRUTH**2).sum()
    reached = max(plain[-1].loss, faster[-1].loss)
    assert updates_to(plain, reached) == pytest.approx(4 * updates_to(faster, reached), rel=0.4)


def test_a_schedule_advances_by_samples(trained):
    curves = [trained({"baseline": baseline}, batch=128, stops_after=40)[0] for baseline in (128, 32)]
    assert min(points[-2].updates for points in curves) >= 40
    expected = [(TRUTH**2).sum() * (1 - 2 * 50 * RATE) ** (2 * updates) for updates in (40, 10)]
    assert [points[-1].loss for points in curves] == [pytest.approx(each, rel=0.2) for each in expected]


def test_the_state_of_adam_goes_with_the_checkpoint(trained):
    start = {"start": "kept.npz", "seed": 1, "baseline": 32, "beta_2": 0.99}
    kept, points = trained({"keeps": "kept.npz"}, start, optimizer="adam")
    assert points[0].updates == kept[-1].updates
    assert points[-1].loss < points[0].loss
