"""The table of an epoch: which remedies help, by how much, and how sure that is."""

from autofit.records.epoch import EpochRecord, Remedy
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.report.console.epoch import epoch_table
from autofit.report.console.tables import plain_text

MIB = 2**20
REMEDIES = (
    Remedy("data", "4 processes", 4.0, 3.6, 4.4, FitConfig(32, 4)),
    Remedy("data", "data kept in memory (9 MiB)", 2.0, note="if it does not change"),
    Remedy("keras", "32 steps a call", 9.8, 9.0, 11.7, FitConfig(32, 1)),
    Remedy("step", "jit_compile=True", 20.0, 18.0, 22.0),
    Remedy("validation", "half as often", note="not tried"),
)


def record(*remedies, **changes):
    fields = {
        "config": FitConfig(32, 1),
        "samples": 3200,
        "steps": 100,
        "is_length_known": True,
        "parts": {
            "data": 8.0,
            "contention": 0.0,
            "compiling": 0.0,
            "step": 2.0,
            "keras": 0.01,
            "start": 0.04,
            "validation": 0.95,
            "first_step": 3.0,
        },
        "run": Measurement(Outcome.OK, Evidence("made up"), host_peak_bytes=64 * MIB),
        "program": "train.py",
        "cause": "data",
        "remedies": remedies,
        "notes": ("a note",),
        "largest_batch_size": 256,
        "limits": Limits(None, 128 * MIB),
        "trials": 3,
        "took_seconds": 20.0,
    }
    return EpochRecord(**fields | changes)


def test_each_remedy_stands_at_its_part_and_says_how_sure_it_is():
    text = plain_text(epoch_table(record(*REMEDIES), "autofit tune train.py"))
    lines = text.splitlines()
    assert lines[0] == "an epoch of train.py takes 11 s: 100 steps of 32 samples"
    assert lines[1] == "first cause: waiting for data"
    assert all(len(line) <= 80 for line in lines)
    flat = " ".join(text.split())
    for said in (
        "waiting for data 8.0 s 4 processes: an epoch in 4.0 s (3.6 to 4.4 s)",
        "(9 MiB): an epoch in about 2.0 s, if it does not change",
        "32 steps a call: no clear gain, an epoch in 9.8 s (9.0 to 12 s)",
        "jit_compile=True: slower, an epoch in 20 s (18 to 22 s)",
        "half as often: not tried",
        "the first step, once 3.0 s",
        # what is smaller than a hundredth
        "all else 0.04 s",
        "4 processes helps most: 11 s becomes 4.0 s",
        "memory: 64.0 MiB of 128 MiB of the host; it is expected to allow batch 256",
        "note: a note",
        "next: autofit tune train.py",
    ):
        assert said in flat, said


def test_without_a_gain_or_a_length_it_says_so():
    text = plain_text(epoch_table(record(*REMEDIES[2:4], is_length_known=False)))
    assert text.startswith("100 steps of 32 samples of train.py take 11 s")
    assert "nothing that was tried makes an epoch clearly faster" in text
    assert "next:" not in text
