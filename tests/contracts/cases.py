"""What every backend promises about the trials of a workload, through `ProcessLauncher.run` alone.

Times and sizes are compared with what no machine can beat or undercut, such as a
pipeline that sleeps, or with each other where the difference is large by construction:
the contracts hold on a machine that is busy, slow or small.
"""

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase
from tests.commands import PACKAGE
from tests.contracts import rows

GIB = 2**30
BATCH = 16
PLAIN, THREADS, PROCESSES = (1, 10, False), (3, 4, False), (2, 4, True)
OF_PYDATASET = {"batch_size", "workers", "max_queue_size", "use_multiprocessing"}
OF_LOADER = {"batch_size", "workers", "prefetch_factor"}

# a form of data, and a config for it
INPUTS = {
    "PyDataset": (rows.pydataset, FitConfig(BATCH, *PLAIN)),
    "threads": (rows.pydataset, FitConfig(BATCH, *THREADS)),
    "processes": (rows.pydataset, FitConfig(BATCH, *PROCESSES)),
    "DataLoader": (rows.loader, FitConfig(BATCH, 2, None, True, 2)),
    "tf.data": (rows.tfdata, FitConfig(BATCH, 2, 4)),
    "generator": (rows.generator, FitConfig(BATCH)),
}
# a form of data: its kind, its knobs, the samples of an epoch
DESCRIBED = {
    "DataLoader": (rows.loader, "torch DataLoader", OF_LOADER, rows.BATCHES * BATCH),
    "generator": (rows.generator, "generator", {"batch_size"}, None),
    "arrays": (rows.arrays, "arrays", {"batch_size"}, rows.ARRAY_ROWS),
}


def check_rates(measured, samples=BATCH):
    """The laws of the rates of a trial that is OK.

    `samples` are those of a call of the train function.
    """
    assert measured.outcome is Outcome.OK, measured.evidence
    seconds, calls = measured.blocks[-1]
    assert calls == pytest.approx(measured.steps, abs=0.5)
    assert calls > 0
    assert measured.steady_samples_per_second == pytest.approx(
        calls * samples / seconds
    )
    assert measured.step_seconds * measured.steady_samples_per_second == pytest.approx(
        samples
    )
    assert seconds < measured.seconds


class Contract:
    """The contract of a backend; a class for each backend says which."""

    backend: str
    device_bytes: int | None = (
        None  # a limit that it counts and keeps to on a CPU, if it does
    )

    @pytest.mark.parametrize("case", INPUTS)
    def test_an_input_is_read_by_its_workers_and_timed(self, run, tmp_path, case):
        data, config = INPUTS[case]
        witness = tmp_path / "witness"
        _, measured = run(config, data=data, data_kwargs={"witness": str(witness)})
        check_rates(measured)
        made = [[int(number) for number in line.split()] for line in rows.read(witness)]
        samples, processes, at_once = (
            set(column) for column in zip(*made, strict=True)
        )
        workers = config.workers or 1
        assert samples == {BATCH}
        assert len(made) > measured.steps
        assert (
            len(processes) >= workers
            if config.use_multiprocessing
            else len(processes) == 1
        )
        assert max(at_once) >= min(2, workers) or config.use_multiprocessing
        fastest = (
            workers * BATCH / rows.SECONDS
        )  # a queue that was full may add some batches
        assert (
            measured.samples_per_second
            <= measured.input_samples_per_second
            < 2 * fastest
        )
        assert measured.samples_per_second <= measured.compute_samples_per_second

    def test_a_workload_is_described(self, run):
        spec = {"batch_sizes": (BATCH, 8 * BATCH), "compile_all": True}
        _, described = run(FitConfig(BATCH, *PLAIN), "describe", spec=spec)
        weights = (rows.WIDTH + 1) * 8 + 9
        assert described.versions["backend"] == self.backend
        assert (described.input_kind, set(described.knobs)) == (
            "PyDataset",
            OF_PYDATASET,
        )
        assert (described.sample_count, described.sample_bytes) == (
            rows.BATCHES * BATCH,
            4 * (rows.WIDTH + 1),
        )
        assert (described.parameter_count, described.parameter_bytes) == (
            weights,
            4 * weights,
        )
        assert (
            8 * weights <= described.optimizer_bytes <= 8 * weights + 64
        )  # two slots of Adam, and numbers
        small, large = described.footprints
        assert (small.batch_size, large.batch_size) == (BATCH, 8 * BATCH)
        assert 12 * weights < small.device_bytes < large.device_bytes

    @pytest.mark.parametrize("case", DESCRIBED)
    def test_an_input_is_described(self, run, case):
        data, kind, knobs, samples = DESCRIBED[case]
        _, described = run(FitConfig(BATCH), "describe", data=data)
        assert (described.input_kind, set(described.knobs)) == (kind, knobs)
        assert (described.sample_count, described.fixed_batch_size) == (samples, None)

    @pytest.mark.parametrize("given", ["sample_weight", "class_weight"])
    def test_weights_reach_the_step(self, run, tmp_path, given):
        witness = tmp_path / "witness"
        parts = (
            {"data_kwargs": {"parts": 3}}
            if given == "sample_weight"
            else {"fit_kwargs": {given: {1: 5.0}}}
        )
        parts |= {"data": rows.arrays, "model_kwargs": {"witness": str(witness)}}
        check_rates(run(FitConfig(BATCH), **parts)[1])
        assert set(rows.read(witness)) == {"weighted"}

    @pytest.mark.parametrize(
        ("case", "start_seconds"),
        [("threads", 0.0), ("DataLoader", rows.START_SECONDS)],
    )
    def test_a_confirming_run_validates_and_reads_what_an_epoch_takes(
        self, run, case, start_seconds
    ):
        known = {
            "compute_samples_per_second": 1e4,
            "input_samples_per_second": 1e3,
            "longest_epoch_seconds": 60.0,
        }
        data, config = INPUTS[case]
        validation = {"validation": rows.arrays, "validation_kwargs": {"count": 300}}
        phases, measured = run(config, "confirm", spec=known, data=data, **validation)
        check_rates(measured)
        assert {Phase.VALIDATION, Phase.EPOCHS} <= set(phases)
        assert measured.validation_seconds > 0
        assert (measured.epoch_samples, measured.epoch_gap_unread) == (
            rows.BATCHES * BATCH,
            "",
        )
        assert measured.epoch_seconds >= start_seconds + rows.BATCHES * rows.SECONDS / (
            2 * config.workers
        )

    def test_several_steps_in_a_call_count_with_all_their_samples(self, run):
        _, measured = run(FitConfig(BATCH, *THREADS, steps_per_execution=4))
        check_rates(measured, 4 * BATCH)

    @pytest.mark.parametrize("call", ["predict", "evaluate"])
    def test_inference_is_timed_without_training(self, run, call):
        phases, measured = run(
            FitConfig(BATCH, *PLAIN),
            call=call,
            model_kwargs={"compiled": call == "evaluate"},
        )
        check_rates(measured)
        assert Phase.INFERENCE in phases
        assert not {Phase.TRAINING, Phase.VALIDATION} & {*phases}

    def test_an_error_of_the_users_is_shown_without_frames_of_ours(self, run):
        _, measured = run(FitConfig(rows.RAISES, *PROCESSES))
        assert measured.outcome is Outcome.ERROR, measured.evidence
        assert "ValueError: the fifth batch is broken" in measured.traceback
        assert PACKAGE not in measured.traceback
        assert measured.samples_per_second is None

    def test_a_crash_is_told_by_its_signal(self, run):
        _, measured = run(FitConfig(rows.SEGFAULTS, *THREADS))
        assert (measured.outcome, measured.evidence.signal) == (
            Outcome.CRASHED,
            "SIGSEGV",
        ), measured.evidence

    def test_a_trial_that_hangs_is_ended(self, run):
        check_rates(
            run(FitConfig(BATCH, *PLAIN))[1]
        )  # from which the pauses of a sound trial are known
        _, measured = run(FitConfig(rows.HANGS, *PLAIN), seconds=45)
        assert measured.outcome is Outcome.TIMEOUT, measured.evidence
        assert measured.evidence.hung

    def test_the_host_memory_of_all_processes_is_limited(self, run):
        _, measured = run(
            FitConfig(rows.FILLS_HOST, *PROCESSES), host_bytes=3 * GIB // 2
        )
        assert measured.outcome is Outcome.HOST_OOM, measured.evidence
        assert (
            measured.host_peak_bytes >= measured.evidence.last_host_bytes > 3 * GIB // 2
        )

    @pytest.mark.parametrize(
        ("device_bytes", "outcome"),
        [(GIB, Outcome.DEVICE_OOM), (None, Outcome.HOST_OOM)],
    )
    def test_an_error_of_exhausted_memory_in_a_step_is_the_devices_or_without_its_limit_the_hosts(
        self, run, device_bytes, outcome
    ):
        _, measured = run(
            FitConfig(BATCH, *PLAIN),
            device_bytes=device_bytes,
            model_kwargs={"exhausts": True},
        )
        assert measured.outcome is outcome, measured.evidence

    def test_what_no_machine_can_allocate_is_out_of_memory(self, run):
        units = 2**40  # 256 TiB of weights: more than a process can address
        _, measured = run(FitConfig(BATCH, *PLAIN), model_kwargs={"units": units})
        assert measured.outcome is Outcome.HOST_OOM, measured.evidence

    def test_a_larger_batch_needs_more_memory(self, run):
        units, batch = 4096, 4096
        small, large = (
            run(
                FitConfig(size, *PLAIN),
                device_bytes=self.device_bytes,
                model_kwargs={"units": units},
            )[1]
            for size in (BATCH, batch)
        )
        assert (small.outcome, large.outcome) == (Outcome.OK, Outcome.OK), (
            small,
            large,
        )
        assert 0 < small.host_peak_bytes < large.host_peak_bytes
        if self.device_bytes:
            assert (
                0
                < small.device_peak_bytes
                < 4 * batch * units
                <= large.device_peak_bytes
                <= self.device_bytes
            )

    @pytest.mark.parametrize("role", ["measure", "confirm"])
    def test_the_longest_batch_is_found_and_trained_on(self, run, role):
        parts = {"build_model": rows.build_for_sequences, "data": rows.sequences}
        _, described = run(
            FitConfig(BATCH), "describe", spec={"batch_sizes": (BATCH,)}, **parts
        )
        assert described.shapes
        assert described.sample_bytes == 4 * (rows.LONG * rows.WIDTH + 1)
        of_the_longest = 4 * BATCH * rows.LONG * rows.UNITS
        assert described.footprints[0].device_bytes >= of_the_longest
        phases, measured = run(
            FitConfig(BATCH), role, device_bytes=self.device_bytes, **parts
        )
        check_rates(measured)
        assert phases.index(Phase.LONGEST_BATCH) < phases.index(Phase.TRAINING)
        if self.device_bytes:
            assert (
                measured.device_peak_bytes_by_phase[Phase.LONGEST_BATCH]
                >= of_the_longest
            )
            _, large = run(
                FitConfig(96 * BATCH), role, device_bytes=self.device_bytes, **parts
            )
            assert (large.outcome, large.evidence.phase) == (
                Outcome.DEVICE_OOM,
                "first_longest",
            )
