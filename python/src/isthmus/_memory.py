"""Buffers of Python for the library, and of the library for Python."""

from __future__ import annotations

from typing import Any, Callable

from ._library import ffi


def lend(buffer: Any, *, writable: bool = False) -> Any:
    """A pointer to a buffer of Python, which stays where it is while the pointer lives and is not
    released. Its ``len`` is that of the buffer in bytes."""
    if isinstance(buffer, str):
        raise TypeError("a bytes-like object is required, not 'str'")
    return ffi.from_buffer(buffer, require_writable=writable)


def borrow(start: Any, length: int, give_back: Callable[[], None]) -> memoryview:
    """A view of the library's memory, given back once no view of it is left."""
    kept = ffi.gc(start, lambda _: give_back())
    return memoryview(ffi.buffer(kept, length)).toreadonly()
