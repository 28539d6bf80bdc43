"""Estimate the device memory of a train step without running it.

    model, one batch ─> trace ─> Program ─> liveness walk on a model of the allocator ─┐
                    └─> XLA compiles ─> its buffer assignment ─────────────────────────┴─> Peak by part

`allocator`, `liveness` and `kernels` are pure; the other modules load TensorFlow, in a trial's process only.

Steps on small batches, as on torch, do not replace the walk. TensorFlow reports only the highest peak of a step, and as the
batch grows, the peak moves from one operation to another. At 4 and 8 times the larger batch, a line through the peaks of
two real trials was 16 % / 79 % off, the walk 5 % / 16 % (measured: error, median / 90 % within; 36 runs on a CPU without
oneDNN, tests/benchmarks/memory-parts.txt).

What each part of the estimate was worth when it was chosen (measured: likewise; nine models, 72 runs on 2 threads and
24 on 8):

    complete                                            4.8 % / 12 %      on 8 threads   9 % / 23 %
    rounded sizes for the allocator's chunks           11   % / 20 %
    operations one after another                       15   % / 36 %
    fixed durations, one step                           3.6 % / 14 %      on 8 threads  13 % / 30 %
    without the workspaces of kernels                  17   % / 72 %
    without overwriting in place                        4.5 % / 17 %
    loops not entered                                   4.1 % / 71 %
    a walk instead of XLA's buffer assignment          41   % / 80 %      (with it: 0.9 % / 11 %)
"""
