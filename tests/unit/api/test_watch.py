"""`Watch`, driven by hand: what it says of rates and memory, and what it leaves in the model."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autofit.api import watch
from autofit.api.watch import Watch
from autofit.errors import UsageError
from autofit.storage import result_files, trainings
from tests.fakes import FakeLauncher, collect, make_request, tune

GIB = 2**30


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A watch of a tune's result, with a clock and a memory that the test sets; `said` is what it has said."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    _, result = collect(tune, make_request(tmp_path, space={"batch_size": [32, 256], "workers": [4]}), FakeLauncher())
    here = SimpleNamespace(now=0.0, bytes=4 * GIB, other=0.0, idle=0.0, said=[])
    monkeypatch.setattr(watch.time, "perf_counter", lambda: here.now)
    monkeypatch.setattr(watch.time, "monotonic", lambda: here.now)
    monkeypatch.setattr(watch.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(watch.threading.Thread, "join", lambda thread, timeout: None)
    monkeypatch.setattr(watch.psutil.Process, "children", lambda process, recursive: [])  # other tests' may live
    monkeypatch.setattr(watch.host.ProcessMemory, "of", lambda process: SimpleNamespace(proportional=here.bytes))
    monkeypatch.setattr(watch.host, "other_and_idle_cores", lambda before, after: (here.other, here.idle))
    monkeypatch.setattr(watch.host, "usable_cores", lambda: 2)
    choice = replace(result.choice, samples_per_second=1000.0, spread=0.02, host_peak_bytes=4 * GIB)
    here.result = replace(result, choice=choice)
    here.watch = Watch(here.result, say=here.said.append)
    here.model = SimpleNamespace(steps_per_execution=1, train_function=lambda iterator: "logs")
    here.watch.set_model(here.model)
    here.watch.set_params({"steps": 1000})
    return here


def epoch(watched, calls, seconds, batches=None):
    """Train an epoch of equally long steps; `batches` makes what the train function gets."""
    watched.watch.on_epoch_begin(0)
    for _ in range(calls):
        assert watched.model.train_function(batches and batches()) == "logs"
        watched.now += seconds / (calls - 1)
    watched.now -= seconds / (calls - 1)
    watched.watch.on_test_begin()
    watched.now += 99  # of validation, which does not count
    watched.watch.on_epoch_end(0)


def test_the_rate_leaves_out_the_first_step_and_validation(watched):
    own = watched.model.train_function
    watched.watch.on_train_begin()
    batch = watched.result.config.batch_size
    epoch(watched, 101, 100 * batch / 980)
    epoch(watched, 101, 100 * batch / 980)
    watched.watch.on_train_end()
    assert watched.model.train_function is own
    (kept,) = trainings.of(watched.result.study)
    assert (kept.ended, kept.config) == (True, watched.result.config)
    assert kept.rate_ratio == pytest.approx(0.98)
    line = "autofit: the training ran at 0.98 of the promised 1,000 samples/s, host memory at 1.00 of the promised peak"
    assert watched.said == [line]


def test_a_slow_training_is_mentioned_once_with_its_cause(watched):
    watched.other = 1.4
    watched.watch.on_train_begin()
    for _ in range(2):
        epoch(watched, 101, 100 * watched.result.config.batch_size / 700)
    first = "autofit: this training runs at 700 samples/s, 0.70 of the promised 1,000: other processes use 1.4 of 2 cores"
    assert watched.said == [first]


def test_short_epochs_are_compared_together(watched):
    watched.other = 1.4
    watched.watch.on_train_begin()
    seconds = 10 * watched.result.config.batch_size / 700
    epochs = 0
    while not watched.said:
        epochs += 1
        epoch(watched, 11, seconds)
    assert seconds < 20 <= epochs * seconds < 20 + seconds
    assert "this training runs at 700 samples/s" in watched.said[0]


OF_TENSORFLOW = type("Batches", (), {"__module__": "tensorflow.data", "__next__": lambda batches: "batch"})


@pytest.mark.parametrize(
    ("backend", "waiting", "idle", "why"),
    [
        ("jax", 0.5, 0.0, "the steps wait 50% of the time for their batches"),
        ("jax", 0.1, 0.0, "the step itself is slower than in the trials"),
        ("torch", 0.5, 0.0, "the steps wait 50% of the time for their batches"),
        ("tensorflow", 0.5, 1.5, "1.5 of 2 cores are idle, so the steps wait for their batches"),
        ("tensorflow", 0.5, 0.2, "the step or the input is slower than in the trials"),
    ],
)
def test_a_slow_training_is_told_apart_from_a_slow_input(watched, backend, waiting, idle, why):
    watched.idle, step = idle, watched.result.config.batch_size / 700

    def step_of(batches):
        watched.now += (1 - waiting) * step
        return (next(batches), "logs")[1] if backend == "jax" else "logs"

    def batches_of_jax():
        watched.now += waiting * step
        yield "batch"

    watched.model.train_function = step_of
    watched.watch.on_train_begin()
    batches = {"jax": batches_of_jax, "torch": lambda: ["batch"], "tensorflow": OF_TENSORFLOW}[backend]
    for _ in range(3):
        epoch(watched, 101, 0 if backend == "jax" else 100 * waiting * step, batches)
    watched.watch.on_train_end()
    assert watched.said[0] == f"autofit: this training runs at 700 samples/s, 0.70 of the promised 1,000: {why}"


def test_a_training_that_recovers_is_not_called_slow(watched):
    watched.watch.on_train_begin()
    batch = watched.result.config.batch_size
    epoch(watched, 101, 100 * batch / 100)  # asks what the steps wait for
    while watched.watch._slow_rate:
        epoch(watched, 101, 100 * batch / 1000)
    watched.watch.on_train_end()
    (line,) = watched.said
    assert "the training ran at" in line


def test_memory_that_rises_is_mentioned_once_with_the_time_left(watched):
    watched.watch.on_train_begin()
    watched.watch._training = replace(watched.watch._training, host_limit_bytes=16 * GIB)
    for _ in range(8):
        watched.watch._look_at_memory()
        watched.now += 60
        watched.bytes += GIB // 2
    (line,) = watched.said
    assert line == (
        "autofit: memory grows: 5.00 GiB now, 1.00 GiB more than 2 min 00 s ago (promised peak 4.00 GiB). At this pace, "
        "the machine's 16.0 GiB are full in 22 min 00 s"
    )


def test_a_fit_that_raised_leaves_nothing_for_the_next(watched):
    own = watched.model.train_function
    watched.watch.on_train_begin()
    second = Watch(watched.result, say=watched.said.append)
    second.set_model(watched.model)
    second.on_train_begin()
    second.on_train_end()
    assert watched.model.train_function is own
    assert watched.watch._stopped.is_set()
    assert watched.said == ["autofit: the training was too short for a rate, host memory at 1.00 of the promised peak"]


def test_a_result_may_be_a_file_and_must_be_that_of_a_fit(watched, tmp_path):
    result_files.save(watched.result, tmp_path / "result.json")
    assert Watch(tmp_path / "result.json")._result.config == watched.result.config
    source = replace(watched.result.call_source, call="predict")
    with pytest.raises(UsageError, match="this result is of another call"):
        Watch(replace(watched.result, call_source=source))
    with pytest.raises(UsageError, match="cannot be read"):
        Watch(tmp_path / "none.json")
