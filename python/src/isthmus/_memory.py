"""Buffers of the library for Python."""

from __future__ import annotations

from typing import Any, Callable

from ._library import ffi


def borrow(start: Any, length: int, give_back: Callable[[], None]) -> memoryview:
    """A view of the library's memory, given back once no view of it is left."""
    kept = ffi.gc(start, lambda _: give_back())
    return memoryview(ffi.buffer(kept, length)).toreadonly()
