"""What a parametric model leaves over: how large it is assumed to be follows the readings."""

import numpy as np
import pytest

from autofit.search.surrogate.residual import Amplitude, Residual

PRIOR = Amplitude(0.04, 0.8)


def predicted(residuals, at, noise=0.01):
    points = np.arange(len(residuals), dtype=float)[:, None]
    residual = Residual((PRIOR,), (points,), np.array(residuals, float), np.full(len(residuals), noise))
    return residual.predict((np.array(at, float)[:, None],))


def test_amplitudes_are_tried_on_both_sides_of_the_median():
    assert PRIOR.tried() == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert PRIOR.log_prior(0.04) == 0 > PRIOR.log_prior(0.08) == pytest.approx(PRIOR.log_prior(0.02))


def test_large_residuals_widen_what_is_expected_elsewhere():
    (_,), (calm,) = predicted([0.0, 0.01, 0.0, -0.01], [9.0])
    (_,), (wild,) = predicted([0.0, 0.3, 0.1, -0.2], [9.0])
    assert 0.01 < calm < 0.04 < 4 * calm < wild


def test_the_mean_follows_the_readings_and_returns_to_zero_far_away():
    means, deviations = predicted([0.1, 0.2, 0.1], [1.0, 50.0])
    assert means == pytest.approx([0.2, 0.0], abs=0.02)
    assert deviations[0] < 0.02 < deviations[1]


def test_one_amplitude_gives_the_plain_process():
    points, readings, noise = np.array([[0.0], [1.0]]), np.array([0.1, -0.1]), np.array([0.01, 0.01])
    covariance = 0.04**2 * np.exp([[0.0, -0.5], [-0.5, 0.0]])
    gain = covariance @ np.linalg.inv(covariance + np.diag(noise**2))
    mean, deviation = Residual((Amplitude(0.04, 0.1),), (points,), readings, noise).predict((points,))
    assert mean == pytest.approx(gain @ readings)
    assert deviation == pytest.approx(np.sqrt(np.diag(covariance - gain @ covariance)))


def test_without_readings_the_prior_is_predicted():
    mean, deviation = predicted([], [0.0, 1.0])
    assert list(mean) == [0.0, 0.0]
    assert 0.04 < deviation[0] == deviation[1] < 0.1
