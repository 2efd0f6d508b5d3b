"""What has happened. Every event is of one of these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ._library import Level, Status, ffi, text_of

if TYPE_CHECKING:
    from ._connection import Connection
    from ._endpoint import Endpoint


class Request:
    """A peer asks for a connection: accept or reject. One that is dropped undecided is
    rejected with reason 0."""

    def __init__(self, endpoint: Endpoint, record: Any, payload: bytes) -> None:
        self._endpoint = endpoint
        self._record = record
        self._open = True
        #: What the peer sent along; at most 1,024 bytes.
        self.payload = payload
        #: The level that it asks for.
        self.level = Level(record.level)
        #: The peer's address.
        self.peer = text_of(record.text)

    def accept(self, context: Any = None) -> Connection:
        """Grants it; :class:`Accepted` follows."""
        return self._endpoint._accept(self, context)

    def reject(self, reason: int = 0, payload: bytes = b"") -> None:
        """Turns it down; the other program learns the reason and the payload."""
        self._endpoint._reject(self, reason, payload)

    def __del__(self) -> None:
        if self._open:
            self._open = False
            self._endpoint._give_back(self._record)


@dataclass(frozen=True)
class Connected:
    """The end of :meth:`Endpoint.connect`; ``ok`` where it is established."""

    connection: Connection
    status: Status
    text: str
    reason: int  #: Where it was rejected: the other program's number,
    payload: bytes  #: and what it said.

    @property
    def ok(self) -> bool:
        return self.status == Status.SUCCESS


@dataclass(frozen=True)
class Accepted:
    """The end of :meth:`Request.accept`."""

    connection: Connection
    status: Status
    text: str

    @property
    def ok(self) -> bool:
        return self.status == Status.SUCCESS


@dataclass(frozen=True)
class Received:
    """A message. ``data`` is the library's buffer, which it gets back once nobody refers to
    a view of it any more."""

    connection: Connection
    data: memoryview


@dataclass(frozen=True)
class Sent:
    """The end of a send, write or read that was given this ``operation``."""

    connection: Connection
    operation: Any
    status: Status
    text: str

    @property
    def ok(self) -> bool:
        return self.status == Status.SUCCESS


@dataclass(frozen=True)
class Disconnected:
    """The connection is over; ``status`` says why. Its name was given back."""

    connection: Connection
    status: Status
    text: str


@dataclass(frozen=True)
class KeepaliveExpired:
    """Nothing was heard of the connection for its keepalive time. It goes on."""

    connection: Connection


@dataclass(frozen=True)
class DeviceFailed:
    """A device carries nothing any more; ``text`` says what is wrong, and what to do."""

    text: str


Event = Union[
    Request, Connected, Accepted, Received, Sent, Disconnected, KeepaliveExpired, DeviceFailed
]


def copied(record: Any) -> bytes:
    """What an event carries."""
    return bytes(ffi.buffer(record.data, record.len))
