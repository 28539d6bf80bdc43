"""A tune that only sleeps, in its own module so that a host that runs it does not import the search."""

import time


def sleep(cell, tell, cancelled):
    """Sleep for `seconds`, and return a made-up record."""
    time.sleep(cell.workload.model_kwargs["seconds"])
    return cell.workload.model_kwargs["record"]
