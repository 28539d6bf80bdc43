"""Run generators to their ends."""


def result_of(running):
    """The value that a generator returns."""
    try:
        while True:
            next(running)
    except StopIteration as end:
        return end.value
