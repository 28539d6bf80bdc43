"""Functions as a user's are, in a file that imports little."""


def build():
    return "a model"


def shape(filters=8, xla=False):
    return filters, xla


def make(files, batch_size, workers=1):
    return files, batch_size, workers


def over(held):
    """A factory with something in its closure."""
    return lambda batch_size: (held, batch_size)


class Maker:
    """A factory that is an object."""

    def __init__(self, **held):
        vars(self).update(held)

    def __call__(self, batch_size):
        return vars(self), batch_size

    def make(self, batch_size):
        return self(batch_size)
