import functools
import io
import json
import re
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from autofit.errors import UsageError
from autofit.records.events import Activity, Described, TrialEnded
from autofit.records.result import ConfirmingRun, Recommendation, TuneLog, Usage
from autofit.records.trial import Evidence, FitConfig, Measurement, Outcome, Trial
from autofit.report import advice, snippet
from autofit.report.console.progress import Progress
from autofit.report.console.summary import print_trials, summarise
from autofit.report.html import content
from autofit.storage import result_files
from autofit.tuning import record as records
from autofit.tuning.tuner import tune
from autofit.workload import usage as usages
from autofit.workload.workload import Workload
from tests.fakes import MIB, FakeLauncher, drain, make_request
from tests.unit.workload.functions import make, shape

USAGE = Usage(
    imports=("from photos import Photos, build_model",),
    model="build_model(width=8)",
    data="Photos",
    data_kwargs={"folder": "photos"},
    validation="Photos",
    validation_kwargs={"part": "validation"},
)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    asked = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB, usage=USAGE)
    return drain(tune(asked, FakeLauncher(cliff=64)))


def at_80_columns(draw, *, terminal=False):
    console = Console(width=80, file=io.StringIO(), force_terminal=terminal, highlight=False)
    draw(console)
    return console.file.getvalue()


def test_a_saved_result_comes_back_whole(tuned, tmp_path):
    _, record = tuned
    result_files.save(record, tmp_path / "result.json")
    assert result_files.load(tmp_path / "result.json") == record


def test_the_file_has_the_documented_keys(tuned, tmp_path):
    _, record = tuned
    result_files.save(record, tmp_path / "result.json")
    told = json.loads((tmp_path / "result.json").read_text())
    assert set(told) >= {
        "version", "config", "fit_kwargs", "data_kwargs", "samples_per_second", "speedup", "confirmed", "device_peak_bytes",
        "host_peak_bytes", "limits", "bottleneck", "machine", "trials",
    }  # fmt: skip
    assert set(told["config"]) == {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
    assert set(told["speedup"]) >= {"ratio", "low", "high", "baseline"}
    assert set(told["limits"]) == {"device_bytes", "host_bytes"}
    for trial in told["trials"]:
        assert set(trial) >= {
            "config", "outcome", "samples_per_second", "device_peak_bytes", "host_peak_bytes", "seconds", "evidence",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "is no result of autofit"),
        ('{"version": 99}', "a result of version 99; this autofit reads 2"),
        ('{"version": 2}', "the file is damaged"),
    ],
)
def test_a_file_that_is_no_result_is_said(tmp_path, text, told):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UsageError, match=re.escape(told)):
        result_files.load(tmp_path / "result.json")


def test_a_folder_that_is_not_there_is_said(tuned, tmp_path):
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        result_files.save(tuned[1], tmp_path / "nowhere" / "result.json")


def test_kwargs_are_the_same_in_all_formats(tuned):
    _, record = tuned
    expected = {"data_kwargs": dict(record.data_kwargs), "fit_kwargs": dict(record.fit_kwargs)}
    assert json.loads(snippet.kwargs_as_json(record)) == expected
    assert yaml.safe_load(snippet.kwargs_as_yaml(record)) == expected
    assigned = {}
    exec(snippet.kwargs_as_python(record), assigned)
    assert {key: assigned[key] for key in expected} == expected


def test_the_snippet_calls_what_the_user_wrote_with_what_was_chosen(tuned):
    _, record = tuned
    calls = {}

    class Model:
        def fit(self, x, validation_data):
            calls.update(x=x, validation=validation_data)

    names = {"build_model": lambda width: Model(), "Photos": lambda **kwargs: kwargs}
    exec(snippet.render(record).replace(USAGE.imports[0], ""), names)
    assert calls["x"] == {"folder": "photos", **record.data_kwargs}
    assert calls["validation"] == {"part": "validation", **record.data_kwargs}
    assert record.data_kwargs["batch_size"] == record.config.batch_size


def test_plain_progress_is_one_line_a_trial_with_reasons(tuned):
    events, _ = tuned

    def draw(console):
        with Progress(console) as progress:
            for event in events:
                progress.show(event)

    text = at_80_columns(draw)
    assert len(re.findall(r"^batch \d+, .*: (?:ok|device_oom|host_oom)", text, re.MULTILINE)) == 6
    assert len(re.findall(r"^(?:chosen|baseline): ", text, re.MULTILINE)) == 6
    assert "    device full" in text
    assert "\x1b" not in text


def test_quiet_progress_says_nothing(tuned):
    def draw(console):
        with Progress(console, quiet=True) as progress:
            for event in tuned[0]:
                progress.show(event)

    assert at_80_columns(draw) == ""


def test_the_live_table_fits_80_columns_and_says_what_is_done_now(tuned):
    events, _ = tuned
    progress = Progress(Console(width=80, file=io.StringIO()))
    for event in events:
        progress.show(event)
    progress.show(Activity("trial 7 of at most 9", events[-1].trial.config, "filling the queue"))
    lines = at_80_columns(lambda console: console.print(progress._draw())).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["#", "batch", "workers", "queue", "outcome", "samples/s", "device", "host", "s"]
    assert any("█" in line for line in lines)
    assert "trial 7 of at most 9" in lines[-2]
    assert "filling the queue" in lines[-1]


def show_trials(progress, tuned, *, trials, max_trials=12, max_seconds=None):
    """So many trials of 5 s."""
    record = tuned[1]
    about = (record.description, record.limits, record.machine, "CPU", (), max_trials, max_seconds)
    progress.show(Described(*about))
    for number in range(1, trials + 1):
        took = replace(record.trials[0].measurement, seconds=5.0)
        progress.show(TrialEnded(Trial(FitConfig(number, 1, 10, False), took), "search"))


@pytest.mark.parametrize(
    ("trials", "max_seconds", "left"),
    [
        (11, None, "(about 35 s left)"),
        (11, 3600.0, "(about 35 s left)"),
        (1, 25.0, "(about 2"),
        (0, 3630.0, "(about 1 h 00 min left)"),
        (0, None, ""),
    ],
)
def test_what_is_left_ends_with_the_seconds_or_the_trials_whichever_is_sooner(tuned, trials, max_seconds, left):
    progress = Progress(Console(width=80, file=io.StringIO()))
    show_trials(progress, tuned, trials=trials, max_seconds=max_seconds)
    shown = progress._time_left()
    assert left in shown
    assert bool(left) == bool(shown)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("trials", [1, 19, 20, 21, 60])
def test_what_is_shown_live_fits_the_terminal_and_all_of_it_is_left_there(tuned, trials, width):
    terminal = Console(width=width, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    drawn = Console(width=width, file=io.StringIO())
    with Progress(terminal) as progress:
        show_trials(progress, tuned, trials=trials, max_trials=99)
        progress.show(Activity("trial 61 of at most 99", FitConfig(64), "training", "the largest that may fit " * 4))
        drawn.print(progress._draw())
    lines = [line.rstrip() for line in drawn.file.getvalue().splitlines()]
    assert len(lines) <= 24
    assert any(line.startswith("now: trial 61") for line in lines)
    assert any("why: the largest" in line for line in lines)
    rows = [line.split()[0] for line in lines if " ok " in line]
    assert rows[-1] == str(trials)
    earlier = trials - len(rows)
    assert not earlier or (lines[0].startswith(f"… {earlier} earlier trial") and len(lines) == 24)
    assert earlier or len(rows) == trials
    assert terminal.file.getvalue().rpartition("samples/s")[2].count(" ok ") == trials


def test_the_summary_says_choice_margins_bottleneck_gain_and_lines_to_paste(tuned):
    _, record = tuned
    text = at_80_columns(lambda console: summarise(record, console))
    for told in (str(record.config), f"{record.speedup.ratio:.2f}x", "% free", "95 % interval", "-bound: ", "model.fit("):
        assert told in text
    print_text = at_80_columns(lambda console: print_trials(record, console))
    assert print_text.count(" ok ") + print_text.count("_oom ") == len(record.trials)


@pytest.mark.parametrize(
    ("usage", "knobs", "told"),
    [
        ({"validation": "validation", "validation_form": "arrays"}, {}, "validation_data=validation,"),
        ({"validation": "load_val", "validation_kwargs": {}}, {}, "validation_data=load_val(),"),
        ({"validation_kwargs": {"batch_size": 8}}, {"workers": "workers"}, "batch_size=8"),
        ({"validation_kwargs": {}}, {"workers": "num_parallel_calls"}, "num_parallel_calls="),
        ({"validation": "val", "validation_form": "object"}, {"workers": "workers"}, "val.workers = "),
    ],
)
def test_the_validation_is_called_with_what_it_takes(tuned, usage, knobs, told):
    _, record = tuned
    asked = replace(record, usage=replace(USAGE, **usage), description=replace(record.description, validation_knobs=knobs))
    assert told in snippet.render(asked)
    compile(snippet.render(asked), "snippet", "exec")


def test_a_queue_that_does_nothing_is_not_written_for_the_validation_either(tuned):
    record = replace(tuned[1], config=FitConfig(64, 1, 10, False), data_kwargs={"batch_size": 64, "workers": 1})
    assert "max_queue_size" not in snippet.render(record)
    needed = replace(record.description, validation_required=("max_queue_size",))
    assert "max_queue_size=1" in snippet.render(replace(record, description=needed))
    assert "max_queue_size=10" in snippet.render(replace(record, config=FitConfig(64, 2, 10, False)))


def test_the_bottleneck_is_told_from_the_three_rates(tuned):
    def trial(workers, processes, inputs):
        ok = replace(tuned[1].trials[0].measurement, input_samples_per_second=inputs)
        return Trial(FitConfig(32, workers, 10, processes), ok)

    trials = (trial(1, False, 310.0), trial(4, False, 320.0), trial(4, True, 500.0))
    heavy = replace(tuned[1].description, sample_bytes=200_000)
    record = replace(
        tuned[1],
        config=FitConfig(32, 4, 10, True),
        bottleneck="input",
        compute_samples_per_second=2400.0,
        input_samples_per_second=500.0,
        trials=trials,
    )
    told = advice.bottleneck(replace(record, description=heavy))
    assert told == (
        "input-bound: one worker makes 310 samples/s, the model could take 2,400; 4 processes reach 500; "
        "handing batches over from process to process (pickling) limits beyond"
    )
    assert "pickling" not in advice.bottleneck(replace(record, description=replace(heavy, sample_bytes=10)))
    ample = replace(record, bottleneck="compute", input_samples_per_second=9000.0)
    assert advice.bottleneck(ample).startswith("compute-bound: the model takes 2,400")
    assert advice.bottleneck(replace(record, bottleneck="contention")).startswith("contention: alone the model")


def confirmed(tuned, tmp_path, *, searched, confirmed, compute, inputs):
    """The record of a choice that read one rate in the search and was confirmed at another."""
    old, config = tuned[1], FitConfig(64, 4, 10, False)
    reading = replace(
        old.trials[0].measurement,
        samples_per_second=searched,
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
    )
    seen = TuneLog(
        **{name: getattr(old, name) for name in TuneLog.__dataclass_fields__} | {"trials": (Trial(config, reading),)}
    )
    chosen = Recommendation(config, confirmed, 0.01, None, None, old.speedup, True)
    return records.record(make_request(tmp_path), seen, old.description, chosen, "all is tried")


def test_the_bottleneck_follows_from_the_rate_that_is_told(tuned, tmp_path):
    record = confirmed(tuned, tmp_path, searched=700.0, confirmed=1010.0, compute=3000.0, inputs=1000.0)
    assert record.bottleneck == "input"
    record = confirmed(tuned, tmp_path, searched=1010.0, confirmed=700.0, compute=3000.0, inputs=1000.0)
    assert record.bottleneck == "contention"


def test_an_input_that_makes_less_than_the_model_takes_is_not_said_to_be_beyond_help(tuned, tmp_path):
    record = confirmed(tuned, tmp_path, searched=955.0, confirmed=955.0, compute=1000.0, inputs=960.0)
    assert advice.bottleneck(record) == (
        "compute-bound: together they reach 955 of the 1,000 samples/s that the model takes alone; "
        "the input alone makes 960: a faster model would wait for it"
    )
    tile = content.tiles(record)[-1]
    assert (tile.value, tile.note) == (
        "the model", "alone the model takes 1,000 samples/s, the input makes 960; together they reach 955",
    )  # fmt: skip


def input_bound(record, chosen, rates, compute=3000.0):
    """The sentence for these rates of the input alone, by config."""
    ok = record.trials[0].measurement
    trials = tuple(Trial(c, replace(ok, input_samples_per_second=rate)) for c, rate in rates.items())
    changed = {"compute_samples_per_second": compute, "input_samples_per_second": rates[chosen], "bottleneck": "input"}
    return advice.bottleneck(replace(record, config=chosen, trials=trials, **changed))


def test_the_input_is_compared_with_the_model_at_the_chosen_batch_size_only(tuned):
    arrays = {FitConfig(64): 1000.0, FitConfig(1024): 8000.0}
    assert input_bound(tuned[1], FitConfig(64), arrays) == (
        "input-bound: the input makes 1,000 samples/s, the model could take 3,000"
    )
    one, four, more = FitConfig(32, 1, 10, False), FitConfig(64, 4, 10, False), FitConfig(1024, 8, 10, False)
    assert input_bound(tuned[1], four, {one: 400.0, four: 1000.0, more: 2000.0}) == (
        "input-bound: one worker makes 400 samples/s (batch 32), the model could take 3,000; "
        "4 threads reach 1,000 (batch 64)"
    )
    same = replace(one, batch_size=64)
    told = input_bound(tuned[1], four, {one: 700.0, same: 300.0, four: 1000.0})
    assert "one worker makes 300 samples/s, the model" in told


def test_a_rate_above_the_models_is_not_told_as_what_limits_it(tuned):
    one, four = FitConfig(64, 1, 10, False), FitConfig(64, 4, 10, False)
    told = input_bound(tuned[1], one, {one: 1000.0, four: 4000.0})
    assert told == "input-bound: one worker makes 1,000 samples/s, the model could take 3,000"


def test_workers_that_are_no_knob_are_not_spoken_of(tuned):
    told = input_bound(tuned[1], FitConfig(64, None, 10), {FitConfig(64, None, 10): 1000.0, FitConfig(64): 900.0})
    assert told == "input-bound: the input makes 1,000 samples/s, the model could take 3,000"


def test_runs_that_differ_by_much_are_not_to_be_relied_on(tuned):
    record = tuned[1]

    def told(*rates):
        runs = tuple(
            ConfirmingRun("chosen", Trial(record.config, Measurement(Outcome.OK, Evidence(""), samples_per_second=rate)))
            for rate in rates
        )
        return advice.advice(replace(record, runs=runs)).get("noise", "")

    assert told() == told(1000.0) == told(1000.0, 1100.0) == ""
    assert told(1000.0, 1400.0, 1200.0).startswith("runs of the chosen configuration reached 1,000 to 1,400 samples/s")


def test_the_rules_for_the_learning_rate_are_told_where_an_update_sees_more_samples(tuned):
    record = replace(tuned[1], config=FitConfig(128), speedup=replace(tuned[1].speedup, baseline=FitConfig(32)))
    told = advice.advice(record)["learning rate"]
    assert "averages 128 samples instead of 32" in told
    assert "times 4 by the linear rule" in told
    assert "times 2 by the square-root rule" in told
    kept = advice.advice(replace(record, optimizer_kwargs={"gradient_accumulation_steps": 4}))
    assert kept["learning rate"].startswith("unchanged")
    assert "learning rate" not in advice.advice(replace(record, config=FitConfig(32)))


def test_an_effective_batch_size_leaves_the_learning_rate_alone_accumulated_or_in_one_step(tmp_path):
    asked = make_request(tmp_path, effective_batch_size=64, space={"batch_size": [64]})
    record = drain(tune(asked, FakeLauncher()))[1]
    assert (record.config.batch_size, record.optimizer_kwargs) == (64, {})
    assert record.speedup.baseline.batch_size != 64
    assert advice.advice(record)["learning rate"] == "unchanged: an update averages 64 samples, as asked"


def test_a_result_that_was_written_before_effective_batch_sizes_were_kept_is_read(tuned, tmp_path):
    told = result_files.encode(tuned[1])
    del told["effective_batch_size"]
    (tmp_path / "result.json").write_text(json.dumps(told))
    assert result_files.load(tmp_path / "result.json") == tuned[1]


@pytest.mark.parametrize(
    ("count", "batch", "told"), [(1000, 64, "16 steps, the last of 40 samples"), (640, 64, "10 steps"), (8, 8, "1 step")]
)
def test_the_last_batch_of_an_epoch_is_told(tuned, count, batch, told):
    description = replace(tuned[1].description, input_kind="arrays", sample_count=count)
    record = replace(tuned[1], description=description, config=FitConfig(batch))
    assert advice.advice(record)["epoch"] == told


def test_trials_that_read_from_storage_do_not_compare_with_those_that_did_not(tuned):
    def record(*reads):
        ok = tuned[1].trials[0].measurement
        trials = [Trial(FitConfig(32), replace(ok, samples_per_second=10.0, storage_bytes_per_second=r)) for r in reads]
        return replace(tuned[1], trials=tuple(trials), description=replace(tuned[1].description, sample_bytes=1_000_000))

    assert advice.advice(record(5e6, 0.0, 0.0))["page cache"].startswith("1 of 3 trials read from storage")
    for alike in ((0.0, 0.0), (5e6, 5e6), (None, None), (0.8e6, 0.0)):
        assert "page cache" not in advice.advice(record(*alike))


def test_kwargs_that_json_does_not_know_do_not_lose_the_result(tuned, tmp_path):
    asked = replace(tuned[1], usage=replace(USAGE, data_kwargs={"augment": len, "scale": {1, 2}}))
    result_files.save(asked, tmp_path / "result.json")
    assert result_files.load(tmp_path / "result.json").usage.data_kwargs["augment"] == "<built-in function len>"


def test_a_partial_is_written_as_the_call_that_it_stands_for():
    data = functools.partial(make, files="x", workers=4)
    usage = usages.usage_of(Workload(functools.partial(shape, 16), data, data, {"xla": True}))
    assert usage.model == "shape(filters=16, xla=True)"
    assert (usage.data, usage.data_kwargs) == ("make", {"files": "x", "workers": 4})
    assert (usage.validation, usage.validation_kwargs) == ("make", {"files": "x", "workers": 4})
    assert usage.imports == ("from tests.unit.workload.functions import make, shape",)


def named_otherwise(width, **options):
    return width, options


def counted(first, *rest, depth=1):
    return first, rest, depth


def placed(width, /, depth=1):
    return width, depth


def test_a_partial_is_written_by_the_kinds_of_its_parameters_not_by_their_names():
    usage = usages.usage_of(
        Workload(functools.partial(named_otherwise, 8, depth=3), functools.partial(named_otherwise, 4, kwargs=2))
    )
    assert usage.model == "named_otherwise(width=8, depth=3)"
    assert (usage.data, usage.data_kwargs) == ("named_otherwise", {"width": 4, "kwargs": 2})
    usage = usages.usage_of(Workload(functools.partial(counted, 1, depth=3), functools.partial(counted, 1)))
    assert (usage.model, usage.data_kwargs) == ("counted(first=1, depth=3)", {"first": 1})


@pytest.mark.parametrize("part", [functools.partial(counted, 1, 2, 3, depth=2), functools.partial(placed, 8, depth=2)])
def test_a_partial_whose_arguments_have_no_names_stays_one(part):
    usage = usages.usage_of(Workload(part, part, None, {"extra": 1}, {"size": 2}))
    assert (usage.model, usage.imports) == ("build_model(extra=1)", ())
    assert (usage.data, usage.data_kwargs) == ("make_data", {"size": 2})
