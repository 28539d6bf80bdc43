"""A tune that only takes time; in a file of its own, since a host that runs it imports no search."""

import time


def sleep(cell, tell, cancelled):
    """A tune of so many seconds, whose record is made up."""
    time.sleep(cell.workload.model_kwargs["seconds"])
    return cell.workload.model_kwargs["record"]
