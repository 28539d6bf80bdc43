"""Estimate the device memory of a train step without running it.

    model, one batch ─> trace ─> Program ─> liveness walk on a model of the allocator ─┐
                    └─> XLA compiles ─> its buffer assignment ─────────────────────────┴─> Peak by part

`allocator`, `liveness` and `kernels` are pure; the other modules load TensorFlow, in a trial's process only.

Steps on small batches, as on torch, do not replace the walk: TensorFlow reports only the highest peak of a step, and as the
batch grows, the peak moves from one operation to another. The walk is off by 5 % / 16 %, a line through the peaks of two
real trials by 16 % / 79 % (median / 90 % within). Every part of the walk lowers the error (both measured:
tests/benchmarks/memory-parts.txt).
"""
