"""A workload: what of it crosses to another process, and the knobs of its data.

Also the functions that a file names.
"""

import functools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from autofit.errors import UsageError
from autofit.records.knobs import AUTOTUNE, FitConfig
from autofit.workload import workload
from autofit.workload.inputs import knobs
from autofit.workload.inputs.kinds import open_input, refuse_unsupported
from autofit.workload.inputs.knobs import (
    arguments_of,
    as_written,
    defaults_of,
    knobs_of,
    required_of,
)
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.tfdata import TfData
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, explained_pickling_errors
from tests.unit.workload.functions import build, make


def round_trip(folder, **parts):
    Workload(**{"build_model": build, "data": None, **parts}).save(folder)
    return workload.load(folder)


LOCK = threading.Lock()


class Trainer:
    """As in many projects: data, model and what they need are one object."""

    def __init__(self):
        self.files = [1, {"a": LOCK}]

    def dataset(self, batch_size=32): ...

    @classmethod
    def of_class(cls): ...


class LeavesOut:
    def __init__(self):
        self.cache = iter([LOCK])
        self.lock = LOCK

    def __getstate__(self):
        return {"lock": self.lock}


class Slotted:
    __slots__ = ("lock",)


class Flags:
    """Stands for absl's."""

    rate, batch_size = 0.1, 64

    def __reduce__(self):
        raise TypeError("can't pickle Flags")


def uses(variable):
    """Return functions of the user's.

    One uses a variable as a whole, and one reads its attributes.
    """

    def read(batch_size=0):
        return [variable.rate for _ in range(batch_size or variable.batch_size)]

    return lambda: variable, read


def cases_that_cannot_be_sent():
    slotted = Slotted()
    flags = Flags()
    slotted.lock = LOCK
    locked = type(
        "Locked", (), {"lock": LOCK}
    )  # sent as a whole, for it has no name to import
    yield uses(LOCK)[0], "variable of data (lock)"
    yield functools.partial(make, files=LOCK), "files of data (lock)"
    yield (lambda files=LOCK: None), "files of data (lock)"
    yield functools.partial(make, LOCK), "args[0] of data (lock)"
    yield Trainer().dataset, "self.files[1]['a'] of data (lock)"
    yield uses(LeavesOut())[0], "variable.lock of data (lock)"
    yield uses(slotted)[0], "variable.lock of data (lock)"
    yield uses(locked())[0], "Locked.lock of variable of data (lock)"
    yield uses(flags)[0], "variable of data (Flags)"


@pytest.mark.parametrize(("data", "name"), [*cases_that_cannot_be_sent()])
def test_what_cannot_be_sent_is_named(tmp_path, data, name):
    with pytest.raises(UsageError) as caught:
        round_trip(tmp_path, data=data)
    assert caught.value.problem.startswith(f"{name} cannot be sent")
    assert "data_kwargs={...}" in caught.value.problem


def test_values_that_a_function_reads_of_what_cannot_be_sent_can_be_passed(tmp_path):
    with pytest.raises(UsageError, match="Pass the values that data reads") as caught:
        round_trip(tmp_path, data=uses(Flags())[1])
    assert "data_kwargs={'rate': variable.rate}" in caught.value.problem


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"validation": make}, "validation"),
        ({"fit_kwargs": {"class_weight": {0: 1.0}}}, "fit_kwargs.class_weight"),
        (
            {"validation": make, "fit_kwargs": {"validation_split": 0.2}},
            "fit_kwargs.validation_split",
        ),
    ],
)
def test_what_inference_or_another_argument_excludes_is_refused(parts, key):
    with pytest.raises(UsageError) as caught:
        Workload(build, make, call="predict", **parts)
    assert caught.value.key == key


@settings(max_examples=6)
@given(
    array=st_numpy.arrays(
        st.sampled_from(["float32", "int64", "uint8"]),
        st.just((200, 100)) | st.just((3, 5)),
    )
)
def test_arrays_cross_wherever_they_hang_and_large_ones_as_one_mapped_file(
    tmp_path_factory, array
):
    folder = tmp_path_factory.mktemp("workload")
    width = 3
    parts = {
        "data": ({"image": array, "again": array}, 1),
        "validation": functools.partial(make, array),
    }
    loaded = round_trip(folder, **parts, build_model=lambda: width + 1)
    for image in (
        loaded.data[0]["image"],
        loaded.data[0]["again"],
        loaded.validation(batch_size=3)[0],
    ):
        assert (image.dtype, image.shape, image.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
    assert len(list(folder.glob("*.npy"))) == (
        array.nbytes >= workload._SMALL_ARRAY_BYTES
    )
    assert loaded.build_model() == 4


def test_an_array_that_is_mapped_from_a_file_crosses_as_the_files_name(tmp_path):
    x = np.arange(400_000, dtype="float32").reshape(4000, 100)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    loaded = round_trip(tmp_path, data=(mapped, mapped[1000:3000]))
    assert np.array_equal(loaded.data[0], x)
    assert np.array_equal(loaded.data[1], x[1000:3000])
    assert not list(tmp_path.glob("array-*.npy"))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Python files of the user's; two have the same name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "two").mkdir()
    for name in ("same_name.py", "two/same_name.py"):
        (tmp_path / name).write_text("from math import sqrt as f\ng = f\n")
    yield str(tmp_path)
    sys.modules.pop("same_name", None)


def test_a_working_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with (
        pytest.raises(UsageError, match="the working folder was deleted"),
        explained_pickling_errors(),
    ):
        Path("arrays.npy").absolute()


def test_a_reference_is_a_path_or_a_module(files):
    for text in ("same_name.py:f", "same_name.py:g", "math:sqrt"):
        Reference(text, files).validate()
        assert Reference(text, files).resolve()(4) == 2
    for text in ("math:squareroot", "math:pi", "two/same_name.py:f"):
        with pytest.raises(UsageError):
            Reference(text, files).resolve()
    (Path(files) / "deep.py").write_text("-" * 100_000 + "1")
    (Path(files) / "null.py").write_bytes(b"def f():\0")
    wrong = (
        "same_name.py:h",
        "no.py:f",
        "math:",
        ":f",
        "../..:f",
        "a..b:f",
        "deep.py:f",
        "null.py:f",
    )
    for text in wrong:
        with pytest.raises(UsageError):
            Reference(text, files).validate()


class Takes:
    def __init__(self, folder, batch_size=16, workers=4, max_queue_size=None, **kwargs):
        pass


def tfdata(batch_size=64, num_parallel_calls=None, prefetch=AUTOTUNE):
    pass


PROCESSES = {
    "batch_size": 8,
    "num_workers": 2,
    "persistent_workers": True,
    "prefetch_factor": 4,
}
LOADER = "batch_size num_workers persistent_workers prefetch_factor"
NO_PROCESSES = {
    "batch_size": 8,
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
}


def loader(batch_size, num_workers=0, prefetch_factor=None, persistent_workers=False):
    pass


def to_tf_dataset(
    batch_size=None, shuffle=False, prefetch: bool = True, num_workers: int = 0
):
    """Stands for the method of HuggingFace's datasets."""


@pytest.mark.parametrize(
    ("data", "fixed", "knobs", "own"),
    [
        (make, {"files": 1}, "batch_size workers", {"workers": 1}),
        (functools.partial(make, ["a"], workers=2), {}, "batch_size", {}),
        (
            Takes,
            {},
            "batch_size workers max_queue_size use_multiprocessing",
            {"batch_size": 16, "workers": 4},
        ),
        (
            tfdata,
            {},
            "batch_size num_parallel_calls prefetch",
            {"batch_size": 64, "max_queue_size": AUTOTUNE},
        ),
        (tfdata, {"prefetch": 2}, "batch_size num_parallel_calls", {"batch_size": 64}),
        (
            lambda batch_size=0, workers=True, prefetch="many": None,
            {},
            "batch_size prefetch",
            {},
        ),
        (to_tf_dataset, {}, "batch_size num_workers", {"workers": 0}),
        (
            lambda workers=True, prefetch=False, **kwargs: None,
            {},
            "batch_size max_queue_size use_multiprocessing",
            {},
        ),
        (loader, {}, LOADER, {"workers": 0, "use_multiprocessing": False}),
        (build, {}, "", {}),
    ],
)
def test_the_knobs_of_data_and_its_own_values_are_found(data, fixed, knobs, own):
    names = knobs_of(data, fixed)
    assert [*names.values()] == knobs.split()
    assert defaults_of(data, names, autotunes=True) == own
    numbers = {knob: value for knob, value in own.items() if value != AUTOTUNE}
    assert defaults_of(data, names, autotunes=False) == numbers


@pytest.mark.parametrize(
    ("data", "config", "arguments"),
    [
        (
            tfdata,
            FitConfig(8, 4, 10),
            {"batch_size": 8, "num_parallel_calls": 4, "prefetch": 10},
        ),
        (
            tfdata,
            FitConfig(8, 1, 10),
            {"batch_size": 8, "num_parallel_calls": 1, "prefetch": 1},
        ),
        (loader, FitConfig(8, 2, None, True, 4), PROCESSES),
        (loader, FitConfig(8, 0, None, True, 4), NO_PROCESSES),
    ],
)
def test_a_config_is_written_as_the_arguments_of_a_factory(data, config, arguments):
    assert arguments_of(knobs_of(data, {}), config) == arguments
    assert required_of(lambda batch_size, num_workers=2: None, arguments) == (
        "batch_size",
    )


def test_data_is_described_as_it_is_written():
    names = knobs_of(tfdata, {})
    assert as_written(FitConfig(), tfdata, names) == FitConfig(64)
    assert as_written(FitConfig(8, 2), tfdata, names) == FitConfig(8, 2)
    assert as_written(
        FitConfig(), lambda batch_size, workers: None, {"workers": "workers"}
    ) == FitConfig(32, 1)


class DataLoader:
    """Stands for torch's, by its name and module."""


DataLoader.__module__ = "torch.utils.data.dataloader"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((n for n in range(3)), r"def make_data\(batch_size\):"),
        (
            DataLoader(),
            r"def make_data\(batch_size, num_workers, prefetch_factor, persistent_workers\):",
        ),
        (
            iter([1]),
            "the data has a builtins.list_iterator",
        ),  # `fit` takes generators only
    ],
)
def test_data_that_trials_cannot_use_is_refused_with_what_to_write(data, message):
    with pytest.raises(UsageError, match=message):
        refuse_unsupported(data)


class WithoutBatchSize:
    """Like a PyDataset object whose batches have a fixed size."""

    workers, max_queue_size, use_multiprocessing = 1, 10, False


@pytest.mark.parametrize(
    ("data", "fixed", "missing"),
    [
        (
            make,
            {"workers": 2},
            ["max_queue_size, use_multiprocessing"],
        ),  # the user has fixed them
        (
            functools.partial(make, "files", workers=2),
            {},
            ["max_queue_size, use_multiprocessing"],
        ),
        (lambda batch_size: None, {}, ["workers, max_queue_size, use_multiprocessing"]),
        (lambda batch_size, **knobs: None, {}, []),
        (WithoutBatchSize(), {}, ["batch_size"]),
    ],
)
def test_knobs_that_a_dataset_does_not_take_have_a_reason(
    monkeypatch, data, fixed, missing
):
    monkeypatch.setattr(
        knobs, "is_pydataset", lambda value: isinstance(value, WithoutBatchSize)
    )
    of_user = object.__new__(PyDatasetInput)
    of_user._data = data
    reasons = of_user.not_taken(data, fixed)
    assert list(reasons) == missing
    assert ("super().__init__(**kwargs)" in "".join(reasons.values())) == (
        "batch_size" not in missing and bool(missing)
    )


def test_keywords_that_are_passed_on_to_what_takes_no_batch_size_are_refused():
    with pytest.raises(
        UsageError,
        match=r"passes batch_size on to build, .* add a parameter batch_size",
    ):
        open_input(lambda **knobs: [build(**knobs)], {}, FitConfig(32), None)


def test_the_reason_is_of_the_kind_of_data():
    assert [*object.__new__(TfData).not_taken(lambda: None, {})] == [
        "batch_size, prefetch"
    ]
    of_keras = object.__new__(PyDatasetInput)
    of_keras._data = type(
        "DirectoryIterator", (), {"__module__": "keras.src.legacy.preprocessing.image"}
    )()
    assert "images.workers = workers" in "".join(
        of_keras.not_taken(lambda batch_size: None, {}).values()
    )
