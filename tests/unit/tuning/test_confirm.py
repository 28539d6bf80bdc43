"""The confirmation: rounds of runs, what fails in them, and what a killed tune keeps."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autofit.records.events import TrialEnded
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Evidence, FitConfig, Measurement
from autofit.report.console.tables import summarise, trial_table
from autofit.report.html import page
from tests.fakes import BASELINE, MIB, FakeLauncher, collect, make_request, tune


def test_confirming_runs_are_interleaved_and_change_order(tmp_path):
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path), launcher)
    order = [spec.config for spec in launcher.specs if spec.role == "confirm"]
    first, second = order[:3], order[3:6]
    assert {*first} == {record.config, record.same_batch.config, BASELINE}
    assert second == first[::-1]
    assert len(order) == 9


@pytest.mark.parametrize("outcome", [Outcome.DEVICE_OOM, Outcome.ERROR])
def test_a_winner_that_fails_is_demoted_and_the_next_confirmed(tmp_path, outcome):
    _, first = collect(tune, make_request(tmp_path / "a"), FakeLauncher())
    launcher = FakeLauncher({("confirm", first.config): outcome})
    _, second = collect(tune, make_request(tmp_path / "b"), launcher)
    assert second.config != first.config
    assert [t.measurement.outcome for t in second.trials if t.config == first.config] == [Outcome.OK, outcome]
    if outcome.is_oom:
        assert second.config.batch_size < first.config.batch_size


class Clocked(FakeLauncher):
    """Says when each trial began."""

    def measure(self, spec):
        return replace(super().measure(spec), started_at=1e9 + 10 * len(self.specs))


def test_a_run_that_fails_is_counted_once_and_not_as_one_of_the_search(tmp_path):
    class Failing(Clocked):
        def run(self, spec):
            measurement = yield from super().run(spec)
            if spec.role == "confirm" and sum(s.role == "confirm" for s in self.specs) == 1:
                full = Measurement(Outcome.DEVICE_OOM, Evidence("device full"), 5.0, phase_seconds={Phase.TRAINING: 5.0})
                return replace(full, started_at=measurement.started_at)
            return measurement

    _, record = collect(tune, make_request(tmp_path), Failing())
    (failed,) = [run for run in record.runs if run.measurement.outcome is Outcome.DEVICE_OOM]
    assert failed in record.trials
    assert failed not in record.searched
    assert len(record.searched) == len(record.trials) - 1 == 8
    assert failed.stage == "chosen"
    assert page.compact(record).count("device OOM") == page.compact(record).count("8 trials of the search") == 1
    console = Console(width=80, file=io.StringIO())
    console.print(trial_table(record.trials, record.limits))
    assert console.file.getvalue().count("device OOM") == 1
    summarise(record, console)
    assert f"{record.stop_reason}; 8 trials" in console.file.getvalue()


def test_a_baseline_that_fails_leaves_no_ratio_but_is_named(tmp_path):
    _, record = collect(tune, make_request(tmp_path, baseline={"batch_size": 1024}, device_bytes=500 * MIB), FakeLauncher())
    assert record.speedup.ratio is None
    assert record.speedup.baseline_outcome is Outcome.DEVICE_OOM
    assert record.speedup.baseline.batch_size == 1024


class Deceptive(FakeLauncher):
    """Configs other than the baseline read well in the search, and confirm at these multiples of the baseline's rate."""

    def __init__(self, *multiples):
        super().__init__()
        self._multiples, self._confirmed = multiples, 0

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role != "confirm":
            return measured
        rate = 1000.0
        if spec.config != BASELINE:
            rate *= self._multiples[self._confirmed % len(self._multiples)]
            self._confirmed += 1
        return replace(measured, samples_per_second=rate)


@pytest.mark.parametrize("multiples", [(0.58, 0.58), (1.5, 0.7), (1.2, 0.9, 1.0), (1.01,)])
def test_the_baseline_keeps_its_place_unless_the_choice_is_shown_to_be_faster(tmp_path, multiples):
    _, record = collect(tune, make_request(tmp_path), Deceptive(*multiples))
    assert record.config == BASELINE
    assert record.data_kwargs["batch_size"] == 32
    assert (record.speedup.ratio, record.speedup.is_shown) == (1.0, False)
    challenger = record.fastest.challenger
    assert challenger.config != BASELINE
    assert 3 <= challenger.speedup.pairs <= 8


def test_at_equal_speed_the_batch_of_the_user_is_kept(tmp_path):
    class Level(FakeLauncher):
        """Every config is as fast as every other."""

        def measure(self, spec):
            m = super().measure(spec)
            level = {"compute_samples_per_second": 1000.0, "input_samples_per_second": 4000.0}
            return m if m.samples_per_second is None else replace(m, samples_per_second=1000.0, **level)

    _, record = collect(tune, make_request(tmp_path, baseline={"batch_size": 64}, max_trials=12), Level())
    assert record.config == FitConfig(64, 1, 10, False)


def test_a_baseline_that_is_best_is_compared_with_nothing(tmp_path):
    space = {"batch_size": [16], "workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
    launcher = FakeLauncher()
    _, record = collect(tune, make_request(tmp_path, space=space, baseline={"batch_size": 16}), launcher)
    assert record.config.batch_size == 16
    assert record.speedup.ratio == 1.0
    assert "tried" in record.stop_reason
    assert {spec.config for spec in launcher.specs if spec.role == "confirm"} == {record.config}


def test_a_baseline_outside_the_space_is_compared_with_but_never_the_answer(tmp_path):
    space = {"batch_size": [8, 16], "workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]}
    baseline = {"workers": 4}
    _, record = collect(tune, make_request(tmp_path, space=space, baseline=baseline), FakeLauncher())
    assert record.config.workers == 1
    assert record.speedup.baseline.workers == 4
    assert record.speedup.ratio < 1


def test_the_own_batch_size_is_tried_although_the_space_leaves_it_out(tmp_path):
    space = {"batch_size": [8, 16], "max_queue_size": [10], "use_multiprocessing": [False]}
    _, record = collect(tune, make_request(tmp_path, space=space), FakeLauncher())
    assert record.same_batch.config.batch_size == 32
    assert record.same_batch.speedup.is_shown
    assert record.fastest == record.same_batch  # smaller batches are slower here


def confirming(launcher):
    return [spec.config for spec in launcher.specs if spec.role == "confirm"]


def test_confirming_runs_of_a_tune_that_was_ended_are_not_run_again(tmp_path):
    first, second = FakeLauncher(), FakeLauncher()

    def interrupt(event):
        if isinstance(event, TrialEnded) and event.trial.stage == "baseline":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make_request(tmp_path), first, interrupt)
    _, record = collect(tune, make_request(tmp_path), second)
    assert len(confirming(first)) + len(confirming(second)) == 9
    assert [run.stage for run in record.runs].count("baseline") == 3
    third = FakeLauncher()
    collect(tune, make_request(tmp_path, tolerance=0.03), third)
    assert len(confirming(third)) == 9  # another answer is asked for: its proof is its own


class Disappointing(FakeLauncher):
    """What is chosen first runs at a third of its speed when it is confirmed, as after a reading that was noise."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role != "describe" and spec.config == self.config and self.seen(spec) > 1:
            return replace(measured, samples_per_second=measured.samples_per_second / 3)
        return measured

    def seen(self, spec):
        return sum(s.config == spec.config for s in self.specs if s.role != "describe")


def test_a_choice_that_disappoints_gives_way_to_the_next_best(tmp_path):
    _, first = collect(tune, make_request(tmp_path / "a", max_trials=12), FakeLauncher())
    _, second = collect(tune, make_request(tmp_path / "b", max_trials=12), Disappointing(first.config))
    assert second.config != first.config
    assert second.samples_per_second > 0.8 * first.samples_per_second
    confirmed = dict.fromkeys(run.config for run in second.runs if run.stage == "chosen")
    assert {first.config, second.config} <= set(confirmed)


class Slowing(FakeLauncher):
    """A machine on which everything that confirms runs at two thirds of its speed."""

    def run(self, spec):
        measured = yield from super().run(spec)
        if spec.role == "confirm":
            return replace(measured, samples_per_second=measured.samples_per_second / 1.5)
        return measured


def test_a_machine_that_slows_down_after_the_search_casts_no_doubt_on_the_choice(tmp_path):
    asked = {"baseline": {"batch_size": 8}, "max_trials": 12}
    _, steady = collect(tune, make_request(tmp_path / "a", **asked), FakeLauncher())
    _, record = collect(tune, make_request(tmp_path / "b", **asked), Slowing())
    assert record.speedup.is_shown
    assert 1.5 * record.samples_per_second > 0.95 * steady.samples_per_second
