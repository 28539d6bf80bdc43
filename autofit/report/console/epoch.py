"""Where the time of an epoch goes, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autofit.records.epoch import EpochRecord, Remedy
from autofit.records.units import counted, format_bytes
from autofit.report.choice import brief, part_in_words

# of an epoch: smaller parts are shown together
_LEAST_SHARE = 0.01


def epoch_table(record: EpochRecord, next_command: str = "") -> Group:
    """Show the parts of an epoch with the remedies, the memory, and what to do next."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for label, seconds, texts in _rows(record):
        style = "bold" if label == part_in_words(record.cause) else ""
        table.add_row(Text(f"  {label}", style), seconds, Text("\n".join(texts)))
    lines = [_best(record), f"memory: {_memory(record)}"]
    lines += [f"note: {note}" for note in record.notes]
    if next_command:
        lines.append(f"next: {next_command}")
    return Group(Text(_title(record), "bold"), table, *map(Text, lines))


def _title(record: EpochRecord) -> str:
    steps = counted(record.steps, "step")
    if record.config.batch_size:
        steps += f" of {counted(record.config.batch_size, 'sample')}"
    seconds = brief(record.seconds)
    title = f"an epoch of {record.program} takes {seconds}: {steps}"
    if not record.is_length_known:
        title = f"{steps} of {record.program} take {seconds}"
    return f"{title}\nfirst cause: {part_in_words(record.cause)}"


def _rows(record: EpochRecord) -> Iterator[tuple[str, str, list[str]]]:
    small = 0.0
    for name, seconds in record.parts.items():
        texts = [
            _remedy(each, record.seconds)
            for each in record.remedies
            if each.part == name
        ]
        is_small = seconds < _LEAST_SHARE * record.seconds
        if name == "first_step":
            if seconds:
                yield part_in_words(name), brief(seconds), texts
        elif is_small and not texts:
            small += seconds
        else:
            yield part_in_words(name), brief(seconds), texts
    if small:
        yield "all else", brief(small), []


def _remedy(remedy: Remedy, now: float) -> str:
    """Return a remedy in words, for an epoch that takes `now`."""
    if remedy.seconds is None:
        return f"{remedy.change}: {remedy.note}"
    text = f"{remedy.change}: "
    if remedy.low is None or remedy.high is None:
        text += f"an epoch in about {brief(remedy.seconds)}"
        return f"{text}, {remedy.note}" if remedy.note else text
    if remedy.low > now:
        text += "slower, "
    elif remedy.high > now:
        text += "no clear gain, "
    interval = f"{brief(remedy.low).removesuffix(' s')} to {brief(remedy.high)}"
    return f"{text}an epoch in {brief(remedy.seconds)} ({interval})"


def _best(record: EpochRecord) -> str:
    """Return the change that was measured to help most."""
    helping = [
        (remedy.seconds, remedy.change)
        for remedy in record.remedies
        if remedy.seconds and remedy.high and remedy.high < record.seconds
    ]
    if not helping:
        return "nothing that was tried makes an epoch clearly faster"
    seconds, change = min(helping)
    return f"{change} helps most: {brief(record.seconds)} becomes {brief(seconds)}"


def _memory(record: EpochRecord) -> str:
    used = []
    for memory in ("device", "host"):
        peak = getattr(record.run, f"{memory}_peak_bytes")
        limit = getattr(record.limits, f"{memory}_bytes")
        if peak is not None and limit is not None:
            used.append(
                f"{format_bytes(peak)} of {format_bytes(limit)} of the {memory}"
            )
    text = ", ".join(used) or "not read"
    if record.largest_batch_size:
        text += f"; it is expected to allow batch {record.largest_batch_size:,}"
    return text
