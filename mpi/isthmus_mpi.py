"""Files and arrays from one running MPI application to another, for mpi4py.

    from mpi4py import MPI
    import isthmus_mpi

    with isthmus_mpi.connect(MPI.COMM_WORLD, "file:/shared/port") as coupling:
        report = coupling.send_file("in.h5")
        coupling.send_array(numpy_array)

    with isthmus_mpi.couple(MPI.COMM_WORLD, "file:/shared/at", part=2) as coupling:   # another MPI, or the same
        coupling.send(data, rank, tag)

All calls but those for messages are collective, and raise the same Error on all ranks of both sides. Options are
those of struct isthmus_mpi_options (isthmus-mpi.h), as keywords: block, memory, threads, io
(POSIX or MPIIO), sync, direct (MEASURED, DIRECT or CACHED), in_turn. The library is found beside this
module; it has to be the one that was built for the MPI that mpi4py uses.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

POSIX, MPIIO = 0, 1
MEASURED, DIRECT, CACHED = 0, 1, 2
(SUCCESS, INVALID, COUPLING, FILE, SPACE, CHANGED, MISMATCH, DAMAGED, MEMORY, LOST) = range(10)

_library = ctypes.CDLL(str(Path(__file__).resolve().parent / "libisthmus-mpi.so"))
_library.isthmus_mpi_last_error.restype = ctypes.c_char_p


class Error(Exception):
    """What failed; `status` is one of FILE, SPACE, LOST ..."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class _Options(ctypes.Structure):
    _fields_ = [
        ("block", ctypes.c_int64), ("memory", ctypes.c_int64), ("threads", ctypes.c_int32), ("io", ctypes.c_int32),
        ("sync", ctypes.c_int32), ("direct", ctypes.c_int32), ("in_turn", ctypes.c_int32), ("reserved", ctypes.c_int32 * 7),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_int64), ("block", ctypes.c_int64), ("seconds", ctypes.c_double),
        ("sent_seconds", ctypes.c_double), ("has_digest", ctypes.c_int32), ("digest", ctypes.c_uint8 * 32),
        ("resumed", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Report:
    """What came of a transfer: bytes, of which `resumed` were there, seconds, and the BLAKE3 of a file in
    hexadecimal digits, or None."""

    bytes: int
    block: int
    seconds: float
    sent_seconds: float
    digest: str | None
    resumed: int


def _check(status):
    if status != SUCCESS:
        raise Error(status, _library.isthmus_mpi_last_error().decode(errors="replace"))


def _text(path):
    return None if path is None else str(path).encode()


class Request:
    """A message under way. Its memory is the library's until wait, or a test that says so, has ended it."""

    def __init__(self, request, memory):
        self._request, self._memory, self._bytes = request, memory, ctypes.c_int64()

    def wait(self):
        """Waits for its end; the length of what was received."""
        if self._request:
            _check(_library.isthmus_mpi_wait(ctypes.byref(self._request), ctypes.byref(self._bytes)))
        return self._bytes.value

    def test(self):
        """Whether it has ended."""
        done = ctypes.c_int(1)
        if self._request:
            _check(_library.isthmus_mpi_test(ctypes.byref(self._request), ctypes.byref(done), ctypes.byref(self._bytes)))
        return bool(done.value)


class Coupling:
    """Two applications that have come together. At its end, or that of `with`, they part."""

    def __init__(self, handle):
        self._handle = handle

    def _transfer(self, call, *arguments, **options):
        known = {name for name, _ in _Options._fields_} - {"reserved"}
        if odd := set(options) - known:
            raise TypeError(f"no such option: {', '.join(sorted(odd))}; there are {', '.join(sorted(known))}")
        chosen, report = _Options(**{name: int(value) for name, value in options.items()}), _Report()
        _check(call(self._handle, *arguments, ctypes.byref(chosen), ctypes.byref(report)))
        digest = bytes(report.digest).hex() if report.has_digest else None
        return Report(report.bytes, report.block, report.seconds, report.sent_seconds, digest, report.resumed)

    def send_file(self, path, offset=0, length=-1, **options):
        """Sends `length` bytes (-1: all) of a file from `offset` on."""
        return self._transfer(_library.isthmus_mpi_send_file, _text(path), ctypes.c_int64(offset), ctypes.c_int64(length), **options)

    def receive_file(self, path, offset=-1, **options):
        """Receives a file; with an offset, into the one that is there."""
        return self._transfer(_library.isthmus_mpi_receive_file, _text(path), ctypes.c_int64(offset), **options)

    def send_array(self, data, **options):
        """Sends this rank's part of an array: anything contiguous with the buffer protocol."""
        memory = MPI.memory.frombuffer(data, readonly=True)
        return self._transfer(_library.isthmus_mpi_send_array, ctypes.c_void_p(memory.address), ctypes.c_int64(memory.nbytes), **options)

    def receive_array(self, data, **options):
        """Receives into this rank's part of an array."""
        memory = MPI.memory.frombuffer(data)
        return self._transfer(_library.isthmus_mpi_receive_array, ctypes.c_void_p(memory.address), ctypes.c_int64(memory.nbytes), **options)

    def isend(self, data, rank, tag=0):
        """Begins to send anything contiguous to a rank of the other side; a Request."""
        memory = MPI.memory.frombuffer(data, readonly=True)
        return self._begin(_library.isthmus_mpi_isend, memory, rank, tag)

    def ireceive(self, data, rank, tag=0):
        """Begins to receive a message of a rank of the other side; a Request."""
        return self._begin(_library.isthmus_mpi_ireceive, MPI.memory.frombuffer(data), rank, tag)

    def send(self, data, rank, tag=0):
        """Sends anything contiguous to a rank of the other side."""
        self.isend(data, rank, tag).wait()

    def receive(self, data, rank, tag=0):
        """Receives a message of a rank of the other side; its length in bytes."""
        return self.ireceive(data, rank, tag).wait()

    def _begin(self, call, memory, rank, tag):
        request = ctypes.c_void_p()
        _check(call(self._handle, ctypes.c_void_p(memory.address), ctypes.c_int64(memory.nbytes), ctypes.c_int(rank), ctypes.c_int(tag), ctypes.byref(request)))
        return Request(request, memory)

    @property
    def remote_ranks(self):
        """How many ranks the other side has."""
        return _library.isthmus_mpi_remote_ranks(self._handle)

    def uncouple(self):
        handle, self._handle = self._handle, None
        if handle:
            _check(_library.isthmus_mpi_uncouple(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.uncouple()


def _couple(call, *arguments):
    handle = ctypes.c_void_p()
    _check(call(*arguments, ctypes.byref(handle)))
    return Coupling(handle)


def accept(comm, port=None):
    """Waits for the other application at a port: "file:PATH", "env:NAME"; None: as ISTHMUS_PORT says."""
    return _couple(_library.isthmus_mpi_accept_f, comm.py2f(), _text(port))


def connect(comm, port=None, patience=0.0):
    """Connects to the application that accepts there; `patience` in seconds."""
    return _couple(_library.isthmus_mpi_connect_f, comm.py2f(), _text(port), ctypes.c_double(patience))


def couple(comm, at, part=None, secret=None, patience=0.0):
    """With an application of any MPI: `at` is the place where both meet, such as "file:/shared/at", and `part` 1 or 2.
    At "HOST:PORT" `secret` is the path of a file, the same at both. None, at part 1: it prints its address.
    Or, with an inter-communicator as `at` and no part, over that."""
    if isinstance(at, MPI.Comm):
        return _couple(_library.isthmus_mpi_couple_f, comm.py2f(), at.py2f())
    if part is None:
        raise TypeError("couple() needs part=1 at one side and part=2 at the other")
    return _couple(_library.isthmus_couple_f, comm.py2f(), _text(at), ctypes.c_int(part), _text(secret), ctypes.c_double(patience))
