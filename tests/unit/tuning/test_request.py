"""The fingerprint of a request."""

from dataclasses import replace

import pytest

from autofit.records.machine import ON_CPU, Device, Placement
from tests.fakes import MACHINE, MIB, make_request

GPU = Device(0, "a GPU", "GPU-0", 8192 * MIB, 8000 * MIB, driver="550.54")


@pytest.mark.parametrize(
    "changes",
    [
        {"workload_fingerprint": "another"},
        {"device_memory": "80%"},
        {"host_memory": "6GiB"},
        {"space": {"workers": [1, 2]}},
        {"space": {"workers": {"min": 1, "max": 2}}},
        {"baseline": {"batch_size": 16}},
        {"effective_batch_size": 256},
        {"environment": {"tensorflow": "2.22", "keras": "3.15"}},
        {"environment": {"tensorflow": "2.21", "keras": "3.16"}},
        {"environment": {"tensorflow": "2.21", "keras": "3.15", "XLA_FLAGS": "--xla_cpu"}},
        {"machine": replace(MACHINE, cores=8)},
        {"placement": ON_CPU},
        {"placement": Placement.on(replace(GPU, name="another GPU"))},
        {"placement": Placement.on(replace(GPU, total_bytes=2**40))},
        {"placement": Placement.on(replace(GPU, driver="560.1"))},
    ],
)
def test_what_changes_the_answer_changes_the_fingerprint(tmp_path, changes):
    asked = {
        "placement": Placement.on(GPU),
        "device_memory": "90%",
        "host_memory": "80%",
        "environment": {"tensorflow": "2.21", "keras": "3.15"},
    }
    assert make_request(tmp_path, **asked | changes).fingerprint() != make_request(tmp_path, **asked).fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": replace(MACHINE, available_bytes=2**30, memory_bytes=2**40, host="another")},
        {"placement": Placement.on(replace(GPU, free_bytes=2**30, index=1, uuid="GPU-1", held_by=("python holds 1 GiB",)))},
        {"fresh": True},
        {"storage": "elsewhere.db"},
        {"device_bytes": 100 * MIB},
        {"max_trials": 30},
    ],
)
def test_nothing_else_changes_the_fingerprint(tmp_path, changes):
    asked = {"placement": Placement.on(GPU), "device_memory": "90%", "host_memory": "80%"}
    assert make_request(tmp_path, **asked | changes).fingerprint() == make_request(tmp_path, **asked).fingerprint()
