"""How trials run: limits, deadlines, what is reused, and what is repeated."""

from dataclasses import replace

import pytest

from autofit.errors import NoTrialFinishedError
from autofit.records.events import Activity
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Stage
from autofit.records.trial import (
    Conditions,
    Evidence,
    Limits,
    Measurement,
    Trial,
    TrialSpec,
)
from autofit.report.choice import advice
from autofit.tuning.runner import TrialRunner
from tests.fakes import (
    DESCRIPTION,
    MIB,
    FakeLauncher,
    collect,
    make_request,
    tune,
    tuned,
)

FEW = {
    "batch_size": [8, 32, 128],
    "workers": [4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}


def said(events):
    return [event for event in events if isinstance(event, str)]


@pytest.mark.parametrize(
    ("backend", "jit", "most"),
    [("torch", True, 480.0), ("torch", False, 180.0), ("jax", True, 180.0)],
)
def test_limits_reach_every_trial_and_a_step_that_torch_compiles_has_more_time_within_max_seconds(
    tmp_path, backend, jit, most
):
    compiled = replace(DESCRIPTION, jit_compile=jit, versions={"backend": backend})
    launcher = FakeLauncher({"describe": compiled})
    short = FakeLauncher({"describe": compiled})
    tuned(tmp_path, launcher, device_bytes=300 * MIB, space=FEW)
    assert {spec.limits for spec in launcher.specs} == {Limits(300 * MIB, 8192 * MIB)}
    assert launcher.specs[0].deadline_seconds == 180.0
    assert {spec.deadline_seconds for spec in launcher.specs[1:]} == {most}
    tuned(tmp_path / "short", short, max_seconds=100.0, space=FEW)
    assert max(spec.deadline_seconds for spec in short.specs) <= 100.0


@pytest.mark.parametrize(("tolerance", "longest"), [(0.02, 500.0), (0.5, 20.0)])
def test_the_gap_between_epochs_is_read_where_it_may_exceed_half_of_the_tolerance(
    tmp_path, tolerance, longest
):
    launcher = FakeLauncher()
    tuned(tmp_path, launcher, tolerance=tolerance, space=FEW)
    read = {
        spec.role: (spec.longest_epoch_seconds, spec.epoch_samples)
        for spec in launcher.specs[1:]
    }
    assert read == {
        "measure": (15.0, DESCRIPTION.sample_count),
        "confirm": (longest, DESCRIPTION.sample_count),
    }


def test_a_rate_that_a_trial_takes_over_comes_from_the_trial_that_read_it(tmp_path):
    config = FitConfig(32, 2, 4, False)
    seen = []
    read = Measurement(
        Outcome.OK, Evidence(""), 2.0, 900.0, compute_samples_per_second=1000.0
    )
    raised = replace(read, compute_samples_per_second=1200.0, compute_is_read=False)
    launcher = FakeLauncher()
    runner = TrialRunner(make_request(tmp_path), launcher, seen.append)
    for measured in ([raised], [raised, read]):
        runner.measure(
            config, Activity("trial", config), [Trial(config, one) for one in measured]
        )
    runner.confirm(config, Activity("again", config), [Trial(config, read)])
    given_rates = [spec.compute_samples_per_second for spec in launcher.specs]
    assert given_rates == [None, 1000.0, 1000.0]


@pytest.mark.parametrize(
    ("epoch_samples", "is_read_again"), [(9_000, False), (2_000, True), (None, True)]
)
def test_the_gap_between_long_epochs_is_read_in_one_run_of_a_config(
    tmp_path, epoch_samples, is_read_again
):
    """At 900 samples a second, an epoch of 9,000 takes 10 s and its gap a second."""
    config = FitConfig(32, 1, 10, False)
    launcher = FakeLauncher()
    runner = TrialRunner(make_request(tmp_path), launcher, lambda event: None)
    gap = None if epoch_samples is None else 1.0
    first = replace(
        launcher.measure(TrialSpec("confirm", config, Limits(None, 8192 * MIB), 60.0)),
        steady_samples_per_second=900.0,
        epoch_samples=epoch_samples,
        epoch_gap_seconds=gap,
    )
    ran = Trial(config, first, stage=Stage.AGAIN)
    second = runner.confirm(config, Activity("again", config), [ran]).measurement
    assert (launcher.specs[-1].longest_epoch_seconds > 0) == is_read_again
    if not is_read_again:
        assert second.samples_per_second == pytest.approx(9_000 / 11)
        assert (second.epoch_samples, second.epoch_gap_seconds) == (9_000, 1.0)
        assert second.spread == pytest.approx(0.01 * 10 / 11)


@pytest.mark.parametrize("host_mib", [8192, 400])
def test_the_search_waits_for_a_full_queue_where_host_memory_matters_and_what_is_chosen_does(
    tmp_path, host_mib
):
    launcher = FakeLauncher()
    record = tuned(tmp_path, launcher, space=FEW, host_bytes=host_mib * MIB)
    measured = {
        spec.config: spec.reads_memory
        for spec in launcher.specs
        if spec.role == "measure"
    }
    assert (True in measured.values()) is (host_mib == 400)
    first = next(
        spec
        for spec in launcher.specs
        if spec.role == "confirm" and spec.config == record.config
    )
    assert first.reads_memory


QUIET, BUSY = Conditions(2, 0.0, 0.5), Conditions(2, 1.1, 0.0)


def beside_other_work(disturbed):
    """A launcher whose trials of these numbers other work slows down."""

    def changed(spec, measured):
        if len(launcher.specs) - 2 not in disturbed:
            return replace(measured, conditions=QUIET)
        return replace(
            measured,
            samples_per_second=0.6 * measured.samples_per_second,
            conditions=BUSY,
        )

    launcher = FakeLauncher(changed=changed)
    return launcher


def test_what_other_work_disturbed_is_measured_again(tmp_path):
    events, record = collect(
        tune, make_request(tmp_path, space=FEW), beside_other_work({1, 5})
    )
    assert len(said(events)) == 2
    assert record.config == tuned(tmp_path / "b", space=FEW).config
    assert all(
        trial.measurement.conditions == QUIET
        for trial in (*record.searched, *record.runs)
    )


def test_other_work_that_does_not_pass_is_said_once(tmp_path):
    launcher = beside_other_work(range(100))
    events, record = collect(tune, make_request(tmp_path, space=FEW), launcher)
    assert ["1.1 of 2 cores" in text for text in said(events)] == [
        True,
        True,
    ]  # once that a trial is repeated
    assert len(launcher.specs) == 1 + len(record.searched) + len(record.runs) + 1
    assert "1.1 of 2 cores" in advice(record)["other work"]


@pytest.mark.parametrize("role", ["describe", "confirm"])
@pytest.mark.parametrize("times", [1, 99])
def test_what_is_lost_with_its_server_runs_again_once(tmp_path, role, times):
    lost = []

    class Killed(FakeLauncher):
        """The server is killed from outside in the first trials of a role."""

        def run(self, spec, *others):
            result = super().run(spec, *others)
            if spec.role != role or len(lost) == times:
                return result
            lost.append(spec.config)
            return Measurement(
                Outcome.CRASHED,
                Evidence("lost together with the server", server_lost=True),
                1.0,
            )

    request = make_request(tmp_path, space=FEW)
    if times == 1:
        events, record = collect(tune, request, Killed())
        undisturbed = tuned(tmp_path / "b", space=FEW)
        assert record.config == undisturbed.config
        assert [run.config for run in record.runs] == [
            run.config for run in undisturbed.runs
        ]
        (notice,) = said(events)
        assert "lost together with the server" in notice
    else:
        with pytest.raises(NoTrialFinishedError, match="lost together with the server"):
            tune(request, Killed(), lambda event: None)
        assert len(lost) == 2 * len(set(lost))


def test_a_library_that_finds_no_memory_beside_the_limit_gets_some_before_the_batch_is_condemned(
    tmp_path,
):
    def changed(spec, measured):
        if spec.limits.device_bytes == 4096 * MIB and spec.config.batch_size > 32:
            return Measurement(
                Outcome.DEVICE_OOM, Evidence("no cublas handle", outside_pool=True), 5.0
            )
        return measured

    events, record = collect(
        tune,
        make_request(tmp_path, device_bytes=4096 * MIB, space=FEW),
        FakeLauncher(changed=changed),
    )
    assert record.config.batch_size > 32
    assert not any(trial.measurement.outcome.is_oom for trial in record.trials)
    assert any("4.00 GiB" in text and "3.50 GiB" in text for text in said(events))
