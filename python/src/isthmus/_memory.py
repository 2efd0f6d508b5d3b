"""Buffers of Python for the library, and of the library for Python."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_ssize_t, c_void_p
from ctypes import py_object, pythonapi
from typing import Any, Callable

WRITABLE = 1  # PyBUF_WRITABLE; without it any contiguous buffer does


class _View(Structure):
    """Py_buffer, as the stable ABI has it since Python 3.11, and as it always was."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


pythonapi.PyObject_GetBuffer.argtypes = [py_object, POINTER(_View), c_int]
pythonapi.PyBuffer_Release.argtypes = [POINTER(_View)]
pythonapi.PyBuffer_Release.restype = None


class Lent:
    """A buffer of Python that stays where it is as long as this lives and is not released."""

    def __init__(self, buffer: Any, flags: int = 0) -> None:
        self._view = _View()
        self._held = False
        # Raises TypeError for what is no buffer, BufferError for one in pieces.
        pythonapi.PyObject_GetBuffer(buffer, byref(self._view), flags)
        self._held = True

    @property
    def address(self) -> int | None:
        address: int | None = self._view.buf
        return address

    def __len__(self) -> int:
        return int(self._view.len)

    def release(self) -> None:
        """It may move from now on."""
        if self._held:
            self._held = False
            pythonapi.PyBuffer_Release(byref(self._view))

    def __del__(self) -> None:
        self.release()


def borrow(address: int, length: int, give_back: Callable[[], None]) -> memoryview:
    """A view of the library's memory, given back once no view of it is left."""
    array = (c_char * length).from_address(address)
    finalizer = weakref.finalize(array, give_back)
    finalizer.atexit = False  # type: ignore[misc]  # the stub knows no setter
    return memoryview(array).cast("B").toreadonly()
