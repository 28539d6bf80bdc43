"""TensorFlow's own GPU code on a stub of CUDA, where memory, limits and errors are real."""

import json
from types import SimpleNamespace

import pytest

from tests.commands import AUTOFIT, ROOT, python, run

MIB = 2**20
LIMIT_BYTES = 256 * MIB
CONTEXT_BYTES = 300 * MIB  # of a process on a card of the stub
JOBS = ROOT / "tests" / "stub" / "jobs.py"
TUNE = """
build_model: {jobs}:build
model_kwargs: {{xla: {xla}, witness: {witness}}}
data: {jobs}:batches
device: gpu:1
device_memory: 256MiB
space: {{batch_size: [256, 1024], steps_per_execution: [1]}}
baseline: {{batch_size: 1024}}
max_trials: 2
storage: trials.db
"""
# the first batch is too large for the second card only
MEASURE = """
import dataclasses, json
import autofit
from tests.stub import jobs

trials = autofit.measure(
    jobs.build,
    jobs.batches,
    [autofit.FitConfig(8192), autofit.FitConfig(64)],
    device="2x gpu",
    device_memory="256MiB",
    distribution="data_parallel",
    progress=False,
)
for trial in trials:
    print(json.dumps(dataclasses.asdict(trial.measurement)))
"""


@pytest.fixture(scope="module")
def tune(on_cards, cuda_compiler, tmp_path_factory):
    """A tune on the second of two cards, and what its trials found.

    XLA is used if it can compile.
    """
    folder = tmp_path_factory.mktemp("tune")
    witness = folder / "witness"
    xla = str(cuda_compiler is not None).lower()
    (folder / "tune.yaml").write_text(TUNE.format(jobs=JOBS, xla=xla, witness=witness))
    command = (AUTOFIT, "tune", "tune.yaml", "--output", "result.json")
    done = run(*command, folder=folder, **on_cards(2))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    result = json.loads((folder / "result.json").read_text())
    found = [json.loads(line) for line in witness.read_text().splitlines()]
    measured = {
        trial["config"]["batch_size"]: trial["measurement"]
        for trial in (*result["runs"], *result["trials"])
    }
    return SimpleNamespace(result=result, found=found, measured=measured)


def test_a_tune_on_a_gpu_runs_to_its_end(tune):
    assert tune.result["device"] == "a stub"
    assert [gpu["uuid"] for gpu in tune.result["placement"]["gpus"]] == ["GPU-1"]
    assert {size: each["outcome"] for size, each in tune.measured.items()} == {
        256: "ok",
        1024: "ok",
    }
    assert tune.result["fastest"]["confirmed"]


def test_the_limit_holds_and_memory_growth_that_the_program_turns_on_does_nothing(tune):
    assert tune.result["limits"]["device_bytes"] == LIMIT_BYTES
    for trial in tune.found:  # all of it is taken at once
        assert list(trial["held"][1].values()) == [LIMIT_BYTES + CONTEXT_BYTES]
    for measured in tune.measured.values():
        assert 0 < measured["device_peak_bytes"] < LIMIT_BYTES
        assert (
            LIMIT_BYTES
            < measured["driver_peak_bytes"]
            < LIMIT_BYTES + CONTEXT_BYTES + 64 * MIB
        )


def test_a_trial_sees_no_other_gpu(tune):
    assert [(trial["seen"], trial["held"][0]) for trial in tune.found] == [
        (1, {})
    ] * len(tune.found)


def test_a_fork_of_a_process_that_has_imported_keras_uses_the_gpu(tune):
    for trial in tune.found:
        assert "fork" in trial["parent"]
        assert str(trial["pid"]) in trial["held"][1]


def test_a_trial_finds_the_memory_free_that_the_one_before_it_held(tune):
    assert len({trial["pid"] for trial in tune.found}) == len(tune.found) > 3
    for trial in tune.found:
        assert len(trial["held"][1]) == 1


def test_the_peak_of_each_phase_is_read(tune):
    for measured in tune.measured.values():
        peaks = measured["device_peak_bytes_by_phase"]
        assert {"building", "first_step", "compute_alone", "training"} <= set(peaks)
        assert (
            0 < peaks["building"] < peaks["training"] <= measured["device_peak_bytes"]
        )


def test_what_xla_estimates_is_what_the_allocator_counts(tune, cuda_compiler):
    if cuda_compiler is None:
        pytest.skip("nvidia-cuda-nvcc-cu12 is missing, with which XLA compiles")
    footprint = tune.result["description"]["footprints"][0]
    estimated = sum(footprint["device_bytes_by_part"].values())
    assert (footprint["method"], footprint["batch_size"]) == (
        "XLA buffer assignment",
        1024,
    )
    # the allocator also counts what is left of a chunk that is too small to be split
    assert estimated == pytest.approx(tune.measured[1024]["device_peak_bytes"], rel=0.2)


def test_a_batch_that_the_second_of_two_gpus_cannot_hold_is_out_of_memory_and_the_next_one_trains(
    on_cards,
):
    printed = python("-c", MEASURE, folder=ROOT, **on_cards(2))
    large, small = map(json.loads, printed.splitlines())
    assert large["outcome"] == "device_oom", large
    assert (
        "OOM when allocating tensor with shape[4096,16384]"
        in large["evidence"]["reason"]
    )
    assert "by allocator GPU_1_bfc" in large["evidence"]["reason"]
    assert not large["evidence"]["outside_pool"]
    assert small["outcome"] == "ok", small
    for measured in (large, small):
        assert 0 < measured["device_peak_bytes"] < LIMIT_BYTES
        assert (
            LIMIT_BYTES
            < measured["driver_peak_bytes"]
            < LIMIT_BYTES + CONTEXT_BYTES + 64 * MIB
        )


def doctor(environment):
    """What doctor finds, by subject."""
    done = run(AUTOFIT, "doctor", "--json", **environment)
    return {
        finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]
    }


def test_doctor_trains_a_model_on_the_gpu(on_cards, cuda_compiler):
    if cuda_compiler is None:
        pytest.skip("nvidia-cuda-nvcc-cu12 is missing, with which XLA compiles")
    found = doctor(on_cards(name="NVIDIA H200"))
    assert found["gpu:0"]["status"] == "ok", found
    assert "trained a tiny model on the NVIDIA H200" in found["trial"]["detail"]


def test_a_gpu_for_which_tensorflow_was_not_built_is_named(on_cards):
    card = {"name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}
    found = doctor(on_cards(**card))["trial"]
    assert found["status"] == "problem"
    assert (
        "was not built for NVIDIA GeForce RTX 5090 (compute capability 12.0)"
        in found["detail"]
    )


def test_a_gpu_that_shares_the_memory_of_the_host_is_named(on_cards):
    found = doctor(on_cards(name="NVIDIA GB10", unified="1"))
    assert found["gpu"]["status"] == "problem"
    assert "does not report the memory of NVIDIA GB10" in found["gpu"]["detail"]
    assert "trial" not in found
