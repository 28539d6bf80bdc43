"""Drawing generators to their ends."""


def result_of(running):
    """What a generator returns."""
    try:
        while True:
            next(running)
    except StopIteration as end:
        return end.value
