"""Estimate the device memory of a train step without running it.

    model, one batch ─> trace ─> Program ─> liveness walk on a model of the allocator ─┐
                    └─> XLA compiles ─> its buffer assignment ─────────────────────────┴─> Peak by part

`program`, `allocator`, `liveness` and `kernels` are pure; the other modules load TensorFlow, in a trial's process only.

What each part was worth when they were chosen (measured: error of the estimate, median / 90 % within; nine models on a CPU
without oneDNN, 72 runs on 2 threads and 24 on 8; tests/benchmarks/memory-parts.txt has the details):

    complete                                            4.8 % / 12 %      on 8 threads   9 % / 23 %
    rounded sizes for the allocator's chunks           11   % / 20 %
    operations one after another                       15   % / 36 %
    fixed durations, one step                           3.6 % / 14 %      on 8 threads  13 % / 30 %
    without the workspaces of kernels                  17   % / 72 %
    without overwriting in place                        4.5 % / 17 %
    loops not entered                                   4.1 % / 71 %
    a walk instead of XLA's buffer assignment          41   % / 80 %      (with it: 0.9 % / 11 %)
    TensorFlow's own schedule (work stealing)           4.5 % / 14 %      on 8 threads   8 % / 22 %  (removed: no better)
"""
