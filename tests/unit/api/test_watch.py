"""The hooks of `Watch`, driven by hand: what a line says of the rate, of other work and of the
memory.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofit.api import watch
from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.storage import result_files

GIB = 2**30
RESULT = Path(__file__).parents[2] / "data" / "pinned" / "result.json"


@pytest.fixture
def result():
    """A tune's result that promises batches of 10 at 1,000 samples/s and 4 GiB.

    An epoch has 2,000 samples.
    """
    result = result_files.load(RESULT)
    result = replace(result, description=replace(result.description, sample_count=2000))
    fastest = replace(
        result.fastest,
        config=FitConfig(10),
        samples_per_second=1000.0,
        host_peak_bytes=4 * GIB,
    )
    return replace(result, fastest=fastest)


@pytest.fixture
def trained(result, monkeypatch, capsys):
    """Train an epoch of equally long steps on a clock and a memory of the test's own: the line
    printed.

    The first call of all takes a second longer, that of each epoch `start` seconds, and validation
    99 seconds.
    """
    at = SimpleNamespace(now=0.0, bytes=2 * GIB, other=(0.0, 2.0), epoch=-1)
    monkeypatch.setattr(watch.time, "perf_counter", lambda: at.now)
    monkeypatch.setattr(
        watch.psutil.Process, "children", lambda process, recursive: []
    )  # other tests' may live
    monkeypatch.setattr(
        watch.host.ProcessMemory, "of", lambda process: SimpleNamespace(held=at.bytes)
    )
    monkeypatch.setattr(
        watch.host, "other_and_idle_cores", lambda before, after: at.other
    )
    monkeypatch.setattr(watch.host, "visible_cores", lambda: 2)
    callback = watch.EpochWatch(result, result.fastest)
    callback.model = SimpleNamespace(steps_per_execution=1)
    callback.params = {"steps": 200}

    def train(
        rate=1000.0,
        batches=range(200),
        params=None,
        validates=True,
        start=0.0,
        **changes,
    ):
        vars(at).update(epoch=at.epoch + 1, **changes)
        callback.params = callback.params if params is None else params
        callback.model.steps_per_execution = batches.step
        callback.on_epoch_begin(at.epoch)
        for number, batch in enumerate(batches):
            callback.on_train_batch_begin(batch)
            at.now += 10 * batches.step / rate + (number == 0) * (
                start + (at.epoch == 0)
            )
        if validates:
            callback.on_test_begin()
            at.now += 99
        callback.on_epoch_end(at.epoch)
        return capsys.readouterr().out

    return train


def test_an_epoch_as_promised(trained):
    line = (
        "autofit: epoch 1: 980 samples/s, 0.98 of the tune's 1,000; host memory 2.00 GiB, 0.50 of "
        "the tune's 4.00 GiB\n"
    )
    assert trained(rate=980) == line
    assert ": 500 samples/s" in trained(
        start=2.0
    )  # what a later epoch takes to begin is in its rate


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"params": {"steps": None}}, ": 1,000 samples/s, 1.00 of"),
        ({"validates": False, "start": 2.0}, ": 1,000 samples/s, 1.00 of"),
        (
            {"batches": range(1), "params": {"steps": 1}},
            ": 9.9 samples/s, 0.01 of the tune's 1,000: slower;",
        ),
        ({"params": {"verbose": 1, "steps": 200}}, "\nautofit: epoch 1: "),
        (
            {"rate": 700, "other": (1.4, 0.0)},
            " 0.70 of the tune's 1,000: slower, other processes used 1.4 of 2 cores;",
        ),
    ],
)
def test_the_first_epoch_leaves_out_the_first_call_and_validation(trained, how, text):
    assert text in trained(**how)


def test_the_answer_at_the_own_batch_size_is_compared_if_it_is_the_one_that_is_trained(
    result,
):
    own = replace(result.fastest, config=FitConfig(4))
    assert (
        result_files.answer_of(replace(result, same_batch=own), same_batch=True) is own
    )
    with pytest.raises(UsageError, match="no answer at your own batch size"):
        result_files.answer_of(replace(result, same_batch=None), same_batch=True)
    with pytest.raises(
        UsageError, match="needs the result of fit; this one is for predict"
    ):
        watch.Watch(
            replace(result, call_source=replace(result.call_source, call="predict"))
        )
