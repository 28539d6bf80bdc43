"""What workers pass on once the run of the pipeline alone is over."""

import multiprocessing

from autofit.workload.inputs.fit_input import ONE_SAMPLE, BatchMaker
from autofit.workload.inputs.proxy import DatasetProxy
from tests import workloads as w


def test_once_the_pipeline_is_over_each_worker_passes_on_a_single_sample():
    made = multiprocessing.Value("q")
    is_over = multiprocessing.Value("b", 0)
    window = DatasetProxy(
        w.Cases(8, length=1000), 1000, 40, BatchMaker(print, made, is_over)
    )
    x, y = window[0]
    is_over.value = 1
    assert window[2][0].shape == x.shape
    is_over.value = ONE_SAMPLE
    again, labels = window[1]
    assert (again.shape, labels.shape) == ((1, *x.shape[1:]), (1, *y.shape[1:]))
    assert made.value == 1
