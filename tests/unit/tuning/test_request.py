"""What identifies a request: its study, and its result."""

from dataclasses import replace

import pytest

from autofit.records.machine import ON_CPU, Device, Placement
from autofit.tuning.request import compiled_folder
from tests.fakes import MACHINE, MIB, make_request

GPU = Device(0, "a GPU", "GPU-0", 8192 * MIB, 8000 * MIB, driver="550.54")
ASKED = {
    "placement": Placement.on(GPU),
    "device_memory": "90%",
    "host_memory": "80%",
    "environment": {"tensorflow": "2.21", "keras": "3.15"},
}
OTHER_STUDY = [
    {"workload_fingerprint": "another"},
    {"host_memory": "6GiB"},
    {"space": {"workers": [1, 2]}},
    {"baseline": {"batch_size": 16}},
    {"effective_batch_size": 256},
    {"environment": {**ASKED["environment"], "keras": "3.16"}},
    {"environment": {**ASKED["environment"], "XLA_FLAGS": "--xla_cpu"}},
    {"machine": replace(MACHINE, cores=8)},
    {"machine": replace(MACHINE, processor="another CPU")},
    {"placement": ON_CPU},
    {"placement": Placement.on(replace(GPU, name="another GPU"))},
    {"placement": Placement.on(replace(GPU, driver="560.1"))},
]
OTHER_RESULT = [
    {"max_trials": 30},
    {"max_seconds": 60.0},
    {"batch_size": "keep"},
    {"tolerance": 0.1},
    {"sampler_key": "TPE"},
]
SAME = [
    {
        "machine": replace(
            MACHINE, available_bytes=2**30, memory_bytes=2**40, host="another"
        )
    },
    {
        "placement": Placement.on(
            replace(
                GPU,
                free_bytes=2**30,
                index=1,
                uuid="GPU-1",
                held_by=("python holds 1 GiB",),
            )
        )
    },
    {"fresh": True},
    {"storage": "elsewhere.db"},
    {"device_bytes": 100 * MIB},
]


@pytest.mark.parametrize(
    ("storage", "beside"),
    [
        ("{}/trials.db", "trials.db.compiled"),
        ("journal:{}/trials.log", "trials.log.compiled"),
        ("postgresql://me@host/trials", None),
    ],
)
def test_what_is_compiled_stays_beside_the_file_of_the_study(tmp_path, storage, beside):
    few, more = (
        compiled_folder(
            make_request(
                tmp_path, storage=storage.format(tmp_path), max_seconds=seconds
            )
        )
        for seconds in (60.0, 600.0)
    )
    name = make_request(tmp_path).fingerprint()
    assert few == more == (beside and tmp_path / beside / name)


@pytest.mark.parametrize(
    ("changes", "is_same_study", "is_same_result"),
    [
        (changes, of in (SAME, OTHER_RESULT), of != OTHER_RESULT)
        for of in (OTHER_STUDY, OTHER_RESULT, SAME)
        for changes in of
    ],
)
def test_what_changes_the_answer_changes_a_key_and_nothing_else_does(
    tmp_path, changes, is_same_study, is_same_result
):
    one = make_request(tmp_path, **ASKED)
    other = make_request(tmp_path, **ASKED | changes)
    assert (one.fingerprint() == other.fingerprint()) is is_same_study
    assert (one.result_key() == other.result_key()) is is_same_result
