"""What `kernels.py` asks of Cython, for a Python that has none: names that do nothing.

Cython reads those names when it compiles. In plain Python they must only exist.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

_T = TypeVar("_T")


def _same(function: _T) -> _T:
    return function


def _decorator(*_: object, **__: object) -> Callable[[_T], _T]:
    return _same


class _Plain:
    """Stands in for the module `cython`."""

    compiled = False
    cclass = cfunc = final = inline = staticmethod(_same)
    exceptval = locals = returns = staticmethod(_decorator)
    int = longlong = Py_ssize_t = None

    nogil = nullcontext()

    @staticmethod
    def declare(_: object, value: object = None) -> object:
        return value


cython: Any = _Plain()
