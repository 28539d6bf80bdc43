"""A workload of which only the memory matters, for benchmarks that simulate GPUs."""

GIB = 2**30


def description(footprints=(), *, jit_compile=True):
    """A description with these footprints; imports autofit late, because `--tree` chooses which."""
    from autofit.records.description import Description

    return Description(
        input_kind="PyDataset",
        knobs={"batch_size": "batch_size"},
        sample_count=None,
        sample_bytes=1000,
        parameter_count=1,
        parameter_bytes=4,
        optimizer_bytes=8,
        jit_compile=jit_compile,
        fingerprint="simulated",
        process_bytes=GIB,
        footprints=tuple(footprints),
    )
