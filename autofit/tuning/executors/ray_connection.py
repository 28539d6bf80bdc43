"""Import Ray and connect to a cluster, without side effects on the program that connects."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autofit.errors import UsageError
from autofit.records.distribution import install_command

_ANSWER_SECONDS = 10.0  # for a cluster to accept a connection


def import_ray() -> Any:
    """Import Ray.

    Raises:
        UsageError: it is not installed.
    """
    # Ray reads this at import. Without it, it prints the end of the log of each host that is lost.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UsageError(f"Ray is not installed: {install_command('ray')}", key="executor") from None
    return ray


def connect(ray: Any, address: str, ship: Path | None) -> bool:
    """Connect to a cluster; return False if this program is already connected to one.

    Raises:
        UsageError: there is no cluster, or the code cannot be shipped to it.
    """
    if ray.is_initialized():
        if ship is not None:
            problem = 'Ray is already connected; pass the folder to ray.init(runtime_env={"working_dir": …})'
            raise UsageError(problem, key="ship")
        return False
    if ship is not None and not ship.is_dir():
        raise UsageError(f"there is no folder {ship}", key="ship")
    runtime_env = {} if ship is None else {"working_dir": str(ship)}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _require_answer(address)
        ray.init(
            "auto" if address == "ray" else address, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR"
        )
    except (OSError, ValueError, RuntimeError) as error:
        hint = "start one with ray start --head, or name one as ray://HOST:10001" if address == "ray" else "is it running?"
        raise UsageError(f"no Ray cluster answers at {address!r} ({first_line(error)}); {hint}", key="executor") from None
    finally:
        # Ray installs a handler of its own, with which SIGTERM would end this program at once.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return True


def _require_answer(address: str) -> None:
    """Check that something listens at the address of the cluster, since Ray itself tries for minutes.

    Raises:
        ConnectionError: nothing does.
    """
    if address == "ray":
        address = os.environ.get("RAY_ADDRESS", "")
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname and parts.port:
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{parts.hostname}:{parts.port}: {error.strerror or error}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
