"""Estimate the device memory of a train step without running it.

    model, one batch ─> trace ─> Program ─> liveness walk on a model of the allocator ─┐
                    └─> XLA compiles ─> its buffer assignment ─────────────────────────┴─> Peak by part

`allocator`, `liveness` and `kernels` do not need TensorFlow; the other modules load it, only in a trial's process.

Running steps on small batches, as on torch, cannot replace the walk: TensorFlow reports only the highest peak of a step,
and as the batch grows, the peak moves from one operation to another. The error of the walk is 5% in the median and 16% at
the 90th percentile; the error of a line through the peaks of two real trials is 16% and 79%. Every part of the walk lowers
its error (all errors measured: tests/benchmarks/memory-parts.txt).
"""
