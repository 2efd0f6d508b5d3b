"""The C library, as its header declares it. The header says what each call does."""

from __future__ import annotations

import enum
import os
import pathlib
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any, Callable, Dict, List

try:
    from ._declarations import ffi as ffi
except ModuleNotFoundError as error:
    if error.name != f"{__package__}._declarations":
        raise
    raise ImportError(
        "the declarations of the C library are not made: run python/backend.py first, or pip install ./python"
    ) from None

NULL: Any = ffi.NULL
ABI_VERSION: int = ffi.integer_const("ABI_VERSION")
URI_MAX: int = ffi.integer_const("URI_MAX")
#: Longest text that an error quotes whole. Characters.
QUOTED_MAX = 200


def _bundled(name: str) -> str | None:
    """The library that pip installed with this package: by a wheel of the binding alone, or by
    the wheel of everything, whose files pip knows."""
    # Where maturin puts it; its own declarations, beside it, are not used.
    beside = pathlib.Path(__file__).parent / "_native/lib_native.so"
    if beside.is_file():
        return str(beside)
    try:
        installed = metadata.files("isthmus") or []
    except metadata.PackageNotFoundError:
        return None
    found = (file.locate() for file in installed if file.name == name)
    return next((str(path) for path in found if os.path.isfile(path)), None)


def _open() -> Any:
    name = f"libisthmus.so.{ABI_VERSION}"
    try:
        return ffi.dlopen(os.environ.get("ISTHMUS_LIBRARY") or _bundled(name) or name)
    except OSError as error:
        raise ImportError(
            f"{error}: install Isthmus' C library (make install), or set ISTHMUS_LIBRARY to "
            f"the path of {name}"
        ) from None


#: The calls and constants of the header, by their names there.
native = _open()


class Level(enum.IntEnum):
    """Service levels."""

    UU = native.ISTHMUS_UU  #: May be lost or come twice; complete when it has left the program's hands.
    RU = native.ISTHMUS_RU  #: Arrives once; complete when the other endpoint has it.
    RO = native.ISTHMUS_RO  #: As RU, and in the order of sending.


class Status(enum.IntEnum):
    """What calls return, and the status of events."""

    SUCCESS = native.ISTHMUS_SUCCESS
    AGAIN = native.ISTHMUS_AGAIN
    INVALID = native.ISTHMUS_INVALID
    STALE = native.ISTHMUS_STALE
    FULL = native.ISTHMUS_FULL
    TOO_LONG = native.ISTHMUS_TOO_LONG
    STATE = native.ISTHMUS_STATE
    LEVEL = native.ISTHMUS_LEVEL
    MEMORY = native.ISTHMUS_MEMORY
    CONFIGURATION = native.ISTHMUS_CONFIGURATION
    DEVICE = native.ISTHMUS_DEVICE
    SYSTEM = native.ISTHMUS_SYSTEM
    UNREACHABLE = native.ISTHMUS_UNREACHABLE
    CLOSED = native.ISTHMUS_CLOSED
    INTERNAL = native.ISTHMUS_INTERNAL
    UNINITIALISED = native.ISTHMUS_UNINITIALISED
    TIMED_OUT = native.ISTHMUS_TIMED_OUT
    REJECTED = native.ISTHMUS_REJECTED
    BUSY = native.ISTHMUS_BUSY
    VERSION = native.ISTHMUS_VERSION
    DISCONNECTED = native.ISTHMUS_DISCONNECTED
    PEER_GONE = native.ISTHMUS_PEER_GONE
    REMOTE_ACCESS = native.ISTHMUS_REMOTE_ACCESS
    PROTOCOL = native.ISTHMUS_PROTOCOL


class Error(Exception):
    """A call was refused; nothing has happened. ``status`` says why, the text what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = Status(status)


def name_of(kind: str) -> Any:
    """A new name (handle) of this kind, for the library to fill in: ``isthmus_endpoint`` or such."""
    return ffi.new(f"{kind} *")[0]


#: No connection: options and counters of the whole endpoint.
NOBODY: Any = name_of("isthmus_connection")

_ADDRESS, _POINTER = ffi.typeof("uintptr_t"), ffi.typeof("void *")


def pointer_of(number: int) -> Any:
    """A number that comes back with events, as C passes it."""
    return ffi.cast(_POINTER, number)


def number_of(pointer: Any) -> int:
    """The number that :func:`pointer_of` was given; 0 without any."""
    return int(ffi.cast(_ADDRESS, pointer))


def text_of(text: Any) -> str:
    """A text of the library, or of a buffer that it has filled; empty where there is none."""
    if not text:
        return ""
    whole: bytes = ffi.string(text)
    return whole.decode()


def call(function: Callable[..., int], *arguments: Any, but: int = Status.SUCCESS) -> int:
    """Calls a function of :data:`native`; raises what is neither success nor ``but``."""
    status = function(*arguments)
    if status not in (Status.SUCCESS, but):
        text = text_of(native.isthmus_last_error())
        for argument in arguments:
            # Errors quote the text that was wrong, however long it is.
            if isinstance(argument, bytes) and len(argument) > QUOTED_MAX:
                whole = argument.decode(errors="replace")
                text = text.replace(whole, shortened(whole))
        raise Error(status, text)
    return status


def encoded(value: Any, what: str) -> bytes:
    """A text for the library, in UTF-8; ``what`` names it in errors. C ends a text at the first NUL,
    so a text that contains one is refused."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} contains a NUL character: {shortened(value)!r}")
    return value.encode()


def shortened(text: str) -> str:
    """A text as errors quote it: the middle of a long one is left out."""
    return text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX // 2]}...{text[-QUOTED_MAX // 2:]}"


def text_option(endpoint: Any, connection: Any, option: int) -> str:
    """An option that is a text, however long."""
    room = URI_MAX
    while True:
        text, length = ffi.new("char[]", room), ffi.new("size_t *", room)
        status = call(
            native.isthmus_get_option, endpoint, connection, option, text, length, but=Status.TOO_LONG
        )
        if status == Status.SUCCESS:
            return text_of(text)
        room *= 2


def set_text_option(endpoint: Any, connection: Any, option: int, text: str) -> None:
    value = encoded(text, "the option")
    call(native.isthmus_set_option, endpoint, connection, option, value, len(value))


def number_option(endpoint: Any, connection: Any, option: int, kind: str) -> int:
    """An option that is a number of this type of C."""
    value, length = ffi.new(f"{kind} *"), ffi.new("size_t *", ffi.sizeof(kind))
    call(native.isthmus_get_option, endpoint, connection, option, value, length)
    return int(value[0])


def set_number_option(endpoint: Any, connection: Any, option: int, kind: str, number: int) -> None:
    value = ffi.new(f"{kind} *", number)
    call(native.isthmus_set_option, endpoint, connection, option, value, ffi.sizeof(kind))


def counters(endpoint: Any, connection: Any) -> Dict[str, int]:
    """The counts of a connection's peer, or of all peers where the name of the connection is 0."""
    record = ffi.new("isthmus_counters *", {"size": ffi.sizeof("isthmus_counters")})
    call(native.isthmus_get_counters, endpoint, connection, record)
    names = (name for name, _ in ffi.typeof("isthmus_counters").fields)
    return {name: getattr(record, name) for name in names if name != "size"}


def meaning(status: int) -> str:
    """What a status means, in general."""
    return text_of(native.isthmus_strerror(status))


_initialised = False


def initialise() -> None:
    """Reads the configuration, at the first use."""
    global _initialised
    if not _initialised:
        call(native.isthmus_init, ABI_VERSION)
        _initialised = True


@dataclass(frozen=True)
class Device:
    """An interface of this host, as configured."""

    name: str
    transport: str
    interface: str  #: Empty while it is down.
    address: str  #: Empty while it is down.
    why: str  #: Why it is down; empty while it is up.
    rate_bps: int  #: Bits per second; 0: the system does not tell.
    as_id: int
    subnet: int
    priority: int  #: Those with more are chosen first.
    routers: int  #: How many its subnet has.

    @property
    def is_up(self) -> bool:
        """Whether endpoints can be created on it."""
        return not self.why


def list_devices() -> List[Device]:
    """The devices, best first."""
    initialise()
    count = ffi.new("size_t *")
    call(native.isthmus_devices, NULL, 0, count)
    records = ffi.new("isthmus_device[]", count[0])
    call(native.isthmus_devices, records, len(records), count)
    return [Device(**{field.name: _value(getattr(record, field.name)) for field in fields(Device)}) for record in records]


def _value(field: Any) -> Any:
    return text_of(field) if isinstance(field, ffi.CData) else field
