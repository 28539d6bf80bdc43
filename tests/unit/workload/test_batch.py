"""Batches as nests of arrays."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.workload.inputs import batch
from autofit.workload.inputs.iterators import Generator


@pytest.mark.parametrize(
    "wrong", [["text"], (1, 2), (np.ones(()),), (np.ones((0, 3)),)]
)
def test_what_holds_no_samples_is_refused(wrong):
    with pytest.raises(UsageError, match="the generator returned a batch of"):
        Generator((batch for batch in [wrong]), FitConfig(), print, None)


@pytest.mark.parametrize(
    ("lengths", "asked", "samples"),
    [((8, 8), 8, 8), ((24, 8), 8, 8), ((24, 7), 8, 24), ((5,), None, 5)],
)
def test_samples_are_those_of_the_batch_size_where_an_axis_has_them(
    lengths, asked, samples
):
    nest = {"a": (None, *(np.ones((length, 2), "int8") for length in lengths))}
    assert batch.samples_of(nest, asked) == samples
    assert batch.bytes_of(nest) == 2 * sum(lengths)


def test_a_validation_repeats_full_batches_where_the_data_has_fewer():
    def make():
        yield from (np.ones((8, 2)), np.ones((3, 2)))

    arguments = Generator(make(), FitConfig(8), print, make).validation_arguments(5)
    assert [len(batch) for batch in arguments["validation_data"]] == [8] * 5
    assert arguments["validation_steps"] is None
