import functools
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from autofit.errors import UsageError
from autofit.records.trial import AUTOTUNE, FitConfig
from autofit.workload import workload
from autofit.workload.inputs.kinds import refuse_unsupported
from autofit.workload.inputs.knobs import arguments_of, as_written, defaults_of, knobs_of, required_of
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def build():
    return "a model"


def make(files, batch_size, workers=1):
    return files, batch_size, workers


def round_trip(folder, **parts):
    Workload(**{"build_model": build, "data": None, **parts}).save(folder)
    return workload.load(folder)


def test_what_cannot_be_sent_is_named(tmp_path):
    inner = threading.Lock()

    def locked():
        return inner, ping

    def ping():
        return locked()

    for data, name in (
        (ping, "the variable inner of locked, of type lock,"),
        (lambda: inner, "the variable inner of <lambda>"),
        (functools.partial(make, files=inner), "the argument files, of type lock,"),
        (inner, "the lock"),
    ):
        with pytest.raises(UsageError, match=f"^{name}.* cannot be sent to another process: cannot pickle"):
            round_trip(tmp_path, data=data)


@pytest.mark.parametrize(
    ("parts", "key", "problem"),
    [
        ({"validation": make}, "validation", "predict does not validate; remove validation"),
        ({"fit_kwargs": {"class_weight": {0: 1.0}}}, "fit_kwargs.class_weight", "and verbose to predict, but not"),
    ],
)
def test_what_inference_does_not_take_is_refused(parts, key, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        Workload(build, make, call="predict", **parts)
    assert caught.value.key == key


def test_large_arrays_cross_as_mapped_files_wherever_they_hang(tmp_path):
    x = np.arange(1_000_000, dtype="float32").reshape(1000, 1000)
    small = np.arange(10)
    loaded = round_trip(tmp_path, data=({"image": x, "again": x}, small), validation=functools.partial(make, x))
    image = loaded.data[0]["image"]
    assert np.array_equal(image, x)
    assert not image.flags.writeable
    assert loaded.data[0]["again"] is not None
    assert np.array_equal(loaded.validation(batch_size=3)[0], x)
    assert (tmp_path / "workload.pickle").stat().st_size < 10_000
    assert [path.name for path in tmp_path.glob("*.npy")] == ["array-0.npy"]


@settings(max_examples=30)
@given(array=st_numpy.arrays(st.sampled_from(["float32", "int64", "uint8"]), st.just((200, 100)) | st.just((3, 5))))
def test_an_array_comes_back_as_it_went(tmp_path_factory, array):
    loaded = round_trip(tmp_path_factory.mktemp("workload"), data=(array, array))
    assert loaded.data[0].dtype == array.dtype
    assert loaded.data[0].tobytes() == array.tobytes()


def test_functions_of_main_and_lambdas_cross(tmp_path):
    width = 3
    loaded = round_trip(tmp_path, build_model=lambda: width + 1)
    assert loaded.build_model() == 4


def test_an_array_that_is_mapped_from_a_file_crosses_as_the_files_name(tmp_path):
    x = np.arange(400_000, dtype="float32").reshape(4000, 100)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    loaded = round_trip(tmp_path, data=(mapped, mapped[1000:3000]))
    assert np.array_equal(loaded.data[0], x)
    assert np.array_equal(loaded.data[1], x[1000:3000])
    assert not list(tmp_path.glob("array-*.npy"))


def test_a_reference_is_a_path_or_a_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "some_module.py").write_text("def f():\n    return 7\n")
    assert Reference("some_module.py:f", str(tmp_path)).resolve()() == 7
    assert Reference("math:sqrt").resolve()(4) == 2
    with pytest.raises(UsageError, match="no_such_module_at_all"):
        Reference("no_such_module_at_all:f").resolve()
    with pytest.raises(UsageError, match=r"math .*squareroot"):
        Reference("math:squareroot").resolve()
    with pytest.raises(UsageError, match=r"pi .*float"):
        Reference("math:pi").resolve()


def test_a_name_that_only_importing_can_tell_is_let_through(tmp_path):
    (tmp_path / "m.py").write_text("from math import sqrt as f\ng = f\n")
    Reference("m.py:f", str(tmp_path)).validate()
    Reference("m.py:g", str(tmp_path)).validate()
    with pytest.raises(UsageError, match=r"m\.py .*\bh$"):
        Reference("m.py:h", str(tmp_path)).validate()


class Takes:
    def __init__(self, folder, batch_size, **kwargs):
        pass


@pytest.mark.parametrize(
    ("data", "fixed", "knobs"),
    [
        (make, {"files": 1}, ("batch_size", "workers")),
        (make, {"files": 1, "workers": 2}, ("batch_size",)),
        (functools.partial(make, ["a"]), {}, ("batch_size", "workers")),
        (functools.partial(make, ["a"], workers=2), {}, ("batch_size",)),
        (Takes, {}, ("batch_size", "workers", "max_queue_size", "use_multiprocessing")),
        (functools.partial(Takes, "folder", use_multiprocessing=False), {}, ("batch_size", "workers", "max_queue_size")),
        (build, {}, ()),
        ((np.zeros(3), np.zeros(3)), {}, ()),
    ],
)
def test_the_knobs_that_a_factory_takes_are_the_knobs_that_are_tuned(data, fixed, knobs):
    assert tuple(knobs_of(data, fixed)) == knobs


def test_tf_datas_names_stand_for_the_knobs():
    def make(batch_size, num_parallel_calls, prefetch=2):
        pass

    names = knobs_of(make, {})
    assert names == {"batch_size": "batch_size", "workers": "num_parallel_calls", "max_queue_size": "prefetch"}
    assert knobs_of(make, {"prefetch": 4}) == {"batch_size": "batch_size", "workers": "num_parallel_calls"}
    assert required_of(make, names.values()) == ("batch_size", "num_parallel_calls")
    assert arguments_of(names, FitConfig(8, 4, 10)) == {"batch_size": 8, "num_parallel_calls": 4, "prefetch": 10}
    assert arguments_of(names, FitConfig(8, 1, 10)) == {"batch_size": 8, "num_parallel_calls": 1, "prefetch": 1}


def as_everybody_writes(batch_size=64, num_parallel_calls=AUTOTUNE, prefetch=AUTOTUNE):
    pass


class WithDefaults:
    def __init__(self, files=(), batch_size=16, workers=4, max_queue_size=None, use_multiprocessing=True):
        self.batch_size = batch_size


@pytest.mark.parametrize(
    ("data", "fixed", "autotunes", "defaults"),
    [
        (as_everybody_writes, {}, True, {"batch_size": 64, "workers": AUTOTUNE, "max_queue_size": AUTOTUNE}),
        (as_everybody_writes, {}, False, {"batch_size": 64}),
        (as_everybody_writes, {"prefetch": 2}, True, {"batch_size": 64, "workers": AUTOTUNE}),
        (functools.partial(as_everybody_writes, batch_size=8), {}, False, {}),
        (WithDefaults, {}, False, {"batch_size": 16, "workers": 4, "use_multiprocessing": True}),
        (make, {"files": 1}, False, {"workers": 1}),
        (lambda batch_size=0, workers=True, prefetch="many": None, {}, True, {}),
    ],
)
def test_the_defaults_of_a_factory_are_what_it_uses_now(data, fixed, autotunes, defaults):
    assert defaults_of(data, knobs_of(data, fixed), autotunes=autotunes) == defaults


def test_the_attributes_of_an_object_are_what_it_uses_now():
    assert defaults_of(WithDefaults(batch_size=24), {"batch_size": "batch_size"}, autotunes=False) == {"batch_size": 24}


def test_data_is_described_as_it_is_written():
    names = knobs_of(as_everybody_writes, {})
    assert as_written(FitConfig(), as_everybody_writes, names) == FitConfig(64)
    assert as_written(FitConfig(8, 2), as_everybody_writes, names) == FitConfig(8, 2)
    assert as_written(FitConfig(), make, knobs_of(make, {})) == FitConfig(32)
    assert as_written(FitConfig(), lambda batch_size, workers: None, {"workers": "workers"}) == FitConfig(32, 1)


def test_a_generator_that_is_ready_made_is_refused_and_the_error_shows_the_factory():
    with pytest.raises(UsageError, match=r"def make_data\(batch_size\):"):
        refuse_unsupported(n for n in range(3))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ((["a"], [0]), "the data has a builtins.str; .* from a list"),
        (object(), "the data has a builtins.object; give arrays .* a torch DataLoader"),
        (iter([1]), "the data has a builtins.list_iterator"),  # `fit` takes generators only
    ],
)
def test_what_is_no_array_is_named(data, named):
    with pytest.raises(UsageError, match=named):
        refuse_unsupported(data)


def test_two_files_of_one_name_are_not_taken_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name.py").write_text("def f():\n    return 1\n")
    assert Reference("one/same_name.py:f", str(tmp_path)).resolve()() == 1
    with pytest.raises(UsageError, match="same_name"):
        Reference("two/same_name.py:f", str(tmp_path)).resolve()


class Rows:
    def __init__(self, rows, batch_size=8):
        pass


@pytest.mark.parametrize(
    ("data", "fixed", "missing"),
    [
        (Rows, {"rows": 3}, "workers, max_queue_size, use_multiprocessing"),
        (Rows, {"rows": 3, "workers": 2}, "max_queue_size, use_multiprocessing"),  # the user has fixed them
        (functools.partial(make, "files", workers=2), {}, "max_queue_size, use_multiprocessing"),
        (make, {}, "max_queue_size, use_multiprocessing"),
        (lambda batch_size, **knobs: None, {}, None),
    ],
)
def test_knobs_that_a_dataset_does_not_take_are_named_with_the_remedy(data, fixed, missing):
    reasons = object.__new__(PyDatasetInput).not_taken(data, fixed)
    assert list(reasons) == ([] if missing is None else [missing])
    assert all("super().__init__(**kwargs)" in reason for reason in reasons.values())
