"""The C library: isthmus.h as ctypes sees it. The header says what each call does."""

from __future__ import annotations

import ctypes
import enum
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Dict, List

ABI_VERSION = 0
URI_MAX = 2048
#: Longest text that an error quotes whole. Characters.
QUOTED_MAX = 200


class Level(enum.IntEnum):
    """Service levels."""

    UU = 0  #: May be lost or come twice; complete when it has left the program's hands.
    RU = 1  #: Arrives once; complete when the other endpoint has it.
    RO = 2  #: As RU, and in the order of sending.


class Status(enum.IntEnum):
    """What calls return, and the status of events."""

    SUCCESS = 0
    AGAIN = 1
    INVALID = 2
    STALE = 3
    FULL = 4
    TOO_LONG = 5
    STATE = 6
    LEVEL = 7
    MEMORY = 8
    CONFIGURATION = 9
    DEVICE = 10
    SYSTEM = 11
    UNREACHABLE = 12
    CLOSED = 13
    INTERNAL = 14
    UNINITIALISED = 15
    TIMED_OUT = 16
    REJECTED = 17
    BUSY = 18
    VERSION = 19
    DISCONNECTED = 20
    PEER_GONE = 21
    REMOTE_ACCESS = 22
    PROTOCOL = 23


class Error(Exception):
    """A call was refused; nothing has happened. ``status`` says why, the text what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = Status(status)


SILENT, BLOCKING, NO_COPY, FENCE = 1, 2, 4, 8
EAGER, RENDEZVOUS, UNORDERED, MIXED = 16, 32, 64, 128
REMOTE_READ, REMOTE_WRITE = 1, 2

OPT_RECV_BUFFERS, OPT_SEND_BUFFERS, OPT_SEND_TIMEOUT_US, OPT_KEEPALIVE_US = 2, 3, 4, 5
OPT_UDP_PROTOCOLS, OPT_CONN_UDP_PROTOCOLS = 7, 22
OPT_TRANSFER, OPT_CONN_TRANSFER = 8, 23
OPT_PROTOCOLS, OPT_CONN_PROTOCOLS = 9, 24
OPT_CONN_SEND_TIMEOUT_US, OPT_CONN_KEEPALIVE_US = 16, 17
OPT_CONN_LEVEL, OPT_CONN_MESSAGE_MAX, OPT_CONN_URI, OPT_CONN_DEVICE = 18, 19, 20, 21


class EndpointName(Structure):
    _fields_ = [("id", c_uint64)]


class ConnectionName(Structure):
    _fields_ = [("id", c_uint64)]


class RegionName(Structure):
    _fields_ = [("id", c_uint64)]


class NameHandle(Structure):
    _fields_ = [("id", c_uint64)]


class MemoryBytes(Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 32)]


class Piece(Structure):
    _fields_ = [("start", c_void_p), ("len", c_size_t)]


class DeviceRecord(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("transport", c_char * 32),
        ("interface", c_char * 32),
        ("address", c_char * 64),
        ("why", c_char * 256),
        ("rate_bps", c_uint64),
        ("as_id", c_uint32),
        ("subnet", c_uint32),
        ("priority", c_uint32),
        ("up", c_uint32),
        ("routers", c_uint32),
        ("reserved", c_uint32),
    ]


class OptionsRecord(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("recv_buffers", c_uint32),
        ("send_buffers", c_uint32),
        ("message_max", c_uint32),
        ("backlog", c_uint32),
        ("send_timeout_us", c_uint64),
        ("keepalive_us", c_uint64),
        ("port", c_uint32),
        ("reserved", c_uint32),
    ]


class EventRecord(Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("status", c_int32),
        ("connection", ConnectionName),
        ("context", c_void_p),
        ("operation", c_void_p),
        ("data", c_void_p),
        ("len", c_size_t),
        ("level", c_uint32),
        ("reason", c_uint32),
        ("text", c_char_p),
        ("token", c_uint64),
    ]


class CountersRecord(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sent_bytes", c_uint64),
        ("received_bytes", c_uint64),
        ("messages_sent", c_uint64),
        ("datagrams_sent", c_uint64),
        ("datagrams_received", c_uint64),
        ("fragments_resent", c_uint64),
        ("lanes", c_uint64),
        ("rtt_us", c_uint64),
    ]


#: Gets a line of the log: severity, text, and what was set with it.
LogFunction = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)

#: What each call takes; where nothing else is said it returns a status.
CALLS = {
    "init": [c_uint32],
    "devices": [POINTER(DeviceRecord), c_size_t, POINTER(c_size_t)],
    "create_endpoint": [c_char_p, POINTER(OptionsRecord), POINTER(EndpointName), POINTER(c_int)],
    "destroy_endpoint": [EndpointName],
    "uri": [EndpointName, c_char_p, c_size_t],
    "arm": [EndpointName],
    "get_event": [EndpointName, POINTER(EventRecord)],
    "wait_event": [EndpointName, c_int64, POINTER(EventRecord)],
    "return_event": [EndpointName, POINTER(EventRecord)],
    "connect": [
        EndpointName, c_char_p, c_void_p, c_size_t, c_int, c_void_p, c_uint64,
        POINTER(ConnectionName),
    ],
    "accept": [EndpointName, POINTER(EventRecord), c_void_p, POINTER(ConnectionName)],
    "reject": [EndpointName, POINTER(EventRecord), c_uint32, c_void_p, c_size_t],
    "disconnect": [EndpointName, ConnectionName],
    "send": [EndpointName, ConnectionName, c_void_p, c_size_t, c_void_p, c_uint32],
    "sendv": [EndpointName, ConnectionName, POINTER(Piece), c_size_t, c_void_p, c_uint32],
    "register": [
        EndpointName, c_void_p, c_size_t, c_uint32, POINTER(RegionName), POINTER(MemoryBytes),
    ],
    "deregister": [EndpointName, RegionName],
    "get_option": [EndpointName, ConnectionName, c_int, c_void_p, POINTER(c_size_t)],
    "set_option": [EndpointName, ConnectionName, c_int, c_void_p, c_size_t],
    "get_counters": [EndpointName, ConnectionName, POINTER(CountersRecord)],
    "set_log": [LogFunction, c_void_p, c_int],
    "digest_block": [c_void_p, c_size_t, c_uint64, c_uint64, c_uint64, c_char_p],
    "digest_whole": [c_char_p, c_size_t, c_uint64, c_uint64, c_char_p],
    "publish": [c_char_p, c_char_p, c_char_p, POINTER(NameHandle)],
    "withdraw": [NameHandle],
    "look_up": [c_char_p, c_char_p, c_uint64, c_char_p, c_size_t],
    "announce": [c_char_p, c_char_p, c_char_p, POINTER(NameHandle)],
    "find": [c_char_p, c_char_p, c_uint64, c_char_p, c_size_t],
}
REMOTE = [
    EndpointName, ConnectionName, RegionName, c_uint64, POINTER(MemoryBytes), c_uint64, c_uint64,
    c_void_p, c_size_t, c_void_p, c_uint32,
]  # fmt: skip
CALLS["write"] = CALLS["read"] = REMOTE


def _bundled(name: str) -> str | None:
    """The library that pip installed with this package: by a wheel of the binding alone, or by
    the wheel of everything, whose files pip knows."""
    # Where maturin puts it; its own face of the library, for cffi, is not used.
    beside = pathlib.Path(__file__).parent / "_native/lib_native.so"
    if beside.is_file():
        return str(beside)
    try:
        installed = metadata.files("isthmus") or []
    except metadata.PackageNotFoundError:
        return None
    found = (file.locate() for file in installed if file.name == name)
    return next((str(path) for path in found if os.path.isfile(path)), None)


def _open() -> ctypes.CDLL:
    name = f"libisthmus.so.{ABI_VERSION}"
    try:
        library = ctypes.CDLL(os.environ.get("ISTHMUS_LIBRARY") or _bundled(name) or name)
    except OSError as error:
        raise ImportError(
            f"{error}: install Isthmus' C library (make install), or set ISTHMUS_LIBRARY to "
            f"the path of {name}"
        ) from None
    for call, takes in CALLS.items():
        getattr(library, f"isthmus_{call}").argtypes = takes
    library.isthmus_last_error.restype = c_char_p
    library.isthmus_strerror.restype = c_char_p
    return library


_library = _open()


def call(name: str, *arguments: Any, but: int = Status.SUCCESS) -> int:
    """Calls ``isthmus_NAME``; raises what is neither success nor ``but``."""
    status: int = getattr(_library, f"isthmus_{name}")(*arguments)
    if status not in (Status.SUCCESS, but):
        text = _library.isthmus_last_error().decode()
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


def text_option(endpoint: EndpointName, connection: ConnectionName, option: int) -> str:
    """An option that is a text, however long."""
    room = URI_MAX
    while True:
        text, length = ctypes.create_string_buffer(room), c_size_t(room)
        status = call(
            "get_option", endpoint, connection, option, text, byref(length), but=Status.TOO_LONG
        )
        if status == Status.SUCCESS:
            return text.value.decode()
        room *= 2


def set_text_option(
    endpoint: EndpointName, connection: ConnectionName, option: int, text: str
) -> None:
    value = encoded(text, "the option")
    call("set_option", endpoint, connection, option, value, len(value))


def counters(endpoint: EndpointName, connection: ConnectionName) -> Dict[str, int]:
    """The counts of a connection's peer, or of all peers where the name of the connection is 0."""
    record = CountersRecord(ctypes.sizeof(CountersRecord))
    call("get_counters", endpoint, connection, byref(record))
    names = (field[0] for field in CountersRecord._fields_)
    return {name: getattr(record, name) for name in names if name != "size"}


def meaning(status: int) -> str:
    """What a status means, in general."""
    text: bytes = _library.isthmus_strerror(status)
    return text.decode()


_initialised = False


def initialise() -> None:
    """Reads the configuration, at the first use."""
    global _initialised
    if not _initialised:
        call("init", ABI_VERSION)
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
    count = c_size_t()
    call("devices", None, 0, byref(count))
    records = (DeviceRecord * count.value)()
    call("devices", records, count.value, byref(count))
    return [
        Device(
            *(getattr(record, text).decode() for text in ("name", "transport", "interface", "address", "why")),
            *(getattr(record, number) for number in ("rate_bps", "as_id", "subnet", "priority", "routers")),
        )
        for record in records
    ]
