from autofit.records.knobs import FitConfig
from tests.contracts.cases import BATCH, PLAIN, Contract


class TestTorch(Contract):
    backend = "torch"

    def test_several_steps_in_a_call_count_with_all_their_samples(self, run):
        _, described = run(FitConfig(BATCH, *PLAIN), "describe")
        assert (
            "steps_per_execution" not in described.defaults
        )  # Keras's torch backend has none
