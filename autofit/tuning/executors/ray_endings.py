"""How a task on Ray ended: whether its host was lost with it, and why it could not tune, for people."""

from __future__ import annotations

from typing import Any

from autofit.errors import CancelledError
from autofit.tuning.executors.ray_cluster import first_line


def is_loss(ray: Any, error: BaseException) -> bool:
    """Whether a task ended with its process or its host, rather than by itself."""
    errors = ray.exceptions
    kinds = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError)
    return isinstance(error, (*kinds, errors.LocalRayletDiedError, errors.OwnerDiedError))


def problem(error: BaseException, host: str) -> str:
    """Why a task could not tune, where autofit itself gives no reason."""
    cause = getattr(error, "cause", None) or error
    where = f" on {host}" if host else ""
    if isinstance(cause, ModuleNotFoundError) or "No module named" in str(error):
        return (
            f"{first_line(cause)}{where}: each host needs the same packages; your own code comes with --ship FOLDER, or "
            "is in a folder that all hosts share"
        )
    return f"the task failed{where}: {first_line(cause)}"


def lost_cluster(error: BaseException) -> str:
    """Why the sweep ends, where the cluster does not answer."""
    if isinstance(error, CancelledError):
        return str(error)
    return f"the Ray cluster does not answer any more: {first_line(error)}. What has been measured is kept; run it again"
