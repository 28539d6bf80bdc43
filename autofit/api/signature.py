"""What is wrong with a call of a public function, in the words of its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from autofit.errors import AutofitError, UsageError
from autofit.workload.arguments import no_such, raise_joined

P = ParamSpec("P")
R = TypeVar("R")


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a call with wrong arguments into a UsageError, and leave autofit's own frames out of tracebacks of errors."""
    signature = inspect.signature(function)
    names = tuple(signature.parameters)
    positional = ", ".join(name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            unknown = [] if takes_all else [name for name in kwargs if name not in names]
            raise_joined([UsageError(no_such(name, names), key=name) for name in unknown])
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                expected = f"{function.__name__}({positional}, ...), with arrays as data=(x, y) and other arguments by name"
                raise UsageError(f"{error}; call {expected}") from None
            return function(*args, **kwargs)
        except AutofitError as error:
            raise error.with_traceback(None) from error.__cause__

    return call
