"""Import Ray and connect to a cluster, without what Ray does to the program that connects."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.distribution import install_command

_ANSWER_SECONDS = 10.0  # for a cluster, to take a connection
_UNPRINTED = "RAY_DEDUP_LOGS_SKIP_REGEX"


def imported() -> Any:
    """Ray's module.

    Raises:
        UsageError: it is not installed.
    """
    is_ours = "ray" not in sys.modules and _UNPRINTED not in os.environ
    if is_ours:  # read while it is imported; Ray prints the last lines of the log of each host that is lost
        os.environ[_UNPRINTED] = "."
    try:
        import ray  # nothing else but `ray_host` needs it
    except ImportError:
        raise UsageError(f"Ray is not installed: {install_command('ray')}", key="executor") from None
    finally:
        if is_ours:
            del os.environ[_UNPRINTED]
    return ray


def connect(ray: Any, address: str, ship: Path | None) -> bool:
    """Connect to the cluster, unless this program is connected; returns whether it was not.

    Raises:
        UsageError: there is no cluster, or the code cannot be shipped to it.
    """
    if ray.is_initialized():
        if ship is not None:
            raise UsageError(
                'Ray is connected already: give working_dir to ray.init(runtime_env={"working_dir": …})', key="ship"
            )
        return False
    if ship is not None and not ship.is_dir():
        raise UsageError(f"there is no folder {ship}", key="ship")
    runtime: Mapping[str, Any] = {} if ship is None else {"working_dir": str(ship)}
    try:
        _require_answer(address)
        with _same_handlers():
            ray.init(
                "auto" if address == "ray" else address, runtime_env=runtime, log_to_driver=False, logging_level="ERROR"
            )
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        hint = "start one with ray start --head, or name one as ray://HOST:10001" if address == "ray" else "is it running?"
        raise UsageError(f"no Ray cluster answers at {address!r} ({first_line(error)}); {hint}", key="executor") from None
    return True


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
    """Install the handlers of signals again afterwards: Ray replaces them, and SIGTERM would end this program at once."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


def _require_answer(address: str) -> None:
    """Check that something listens where the cluster is said to be: Ray tries for minutes.

    Raises:
        OSError: nothing does.
    """
    place = address.removeprefix("ray://") if "://" in address else os.environ.get("RAY_ADDRESS", "")
    host, _, port = place.partition("://")[2].partition(":") if "://" in place else place.partition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{host}:{port}: {error.strerror or error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or else its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
