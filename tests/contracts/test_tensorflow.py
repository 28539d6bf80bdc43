from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests.contracts import rows
from tests.contracts.cases import BATCH, PLAIN, Contract


class TestTensorFlow(Contract):
    backend = "tensorflow"
    device_bytes = 2**29

    def test_a_dataset_of_tf_data_is_described(self, run):
        _, described = run(FitConfig(BATCH), "describe", data=rows.tfdata)
        names = {
            "batch_size": "batch_size",
            "workers": "num_parallel_calls",
            "max_queue_size": "prefetch",
        }
        assert (described.input_kind, described.knobs) == ("tf.data", names)
        assert described.sample_count == rows.BATCHES * BATCH

    def test_a_batch_that_is_over_the_limit_is_out_of_device_memory(self, run):
        config = FitConfig(2**16, *PLAIN)
        _, measured = run(
            config, device_bytes=self.device_bytes, model_kwargs={"units": 4096}
        )
        assert measured.outcome is Outcome.DEVICE_OOM, measured.evidence
