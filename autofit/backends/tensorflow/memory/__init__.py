"""What a train step will hold in memory, worked out without running it.

    model, one batch ─> trace ─> Program ─> liveness walk on a model of the allocator ─┐
                    └─> XLA compiles ─> its buffer assignment ─────────────────────────┴─> Peak by part

`program`, `allocator`, `walk`, `workspace` and `host` are pure; `device` and what it draws on load TensorFlow, in a
trial's process only.
"""
