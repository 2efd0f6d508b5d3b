"""A connection with another endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from . import _library as lib
from ._library import Level, ffi, native
from ._memory import lend

if TYPE_CHECKING:
    from ._endpoint import Buffer, Endpoint, Region


_TRANSFERS = {
    None: 0,
    "eager": native.ISTHMUS_EAGER,
    "rendezvous": native.ISTHMUS_RENDEZVOUS,
    "mixed": native.ISTHMUS_MIXED,
}


def _flags(silent: bool, blocking: bool, copy: bool, transfer: Optional[str], unordered: bool) -> int:
    """The library's flags for a message."""
    if silent and not copy:
        raise ValueError("what is not copied needs an event: leave out silent or copy=False")
    if transfer not in _TRANSFERS:
        raise ValueError(f'transfer is "eager", "rendezvous", "mixed" or None, not {transfer!r}')
    flags = native.ISTHMUS_SILENT * silent | native.ISTHMUS_BLOCKING * blocking
    flags |= native.ISTHMUS_NO_COPY * (not copy) | native.ISTHMUS_UNORDERED * unordered
    return int(flags | _TRANSFERS[transfer])


def _remote_flags(silent: bool, blocking: bool, fence: bool) -> int:
    """The library's flags for a write or read."""
    flags = native.ISTHMUS_SILENT * silent | native.ISTHMUS_BLOCKING * blocking
    return int(flags | native.ISTHMUS_FENCE * fence)


class Connection:
    """A connection, from :meth:`Endpoint.connect` or :meth:`Request.accept`."""

    def __init__(self, endpoint: Endpoint, context: Any) -> None:
        self._endpoint = endpoint
        self._name = lib.name_of("isthmus_connection")
        #: The program's word for it.
        self.context = context

    def send(
        self,
        message: Buffer,
        *,
        operation: Any = None,
        silent: bool = False,
        blocking: bool = False,
        copy: bool = True,
        transfer: Optional[str] = None,
        unordered: bool = False,
    ) -> None:
        """Sends a message. :class:`Sent` follows with ``operation``; with ``silent`` only
        where it fails, with ``blocking`` not at all: the call returns when it is complete.
        With ``copy=False`` the buffer is kept, and must not be changed, until then.

        ``transfer`` is "eager" (all at once, as far as the receiver has room), "rendezvous"
        (nothing before the receiver has asked), "mixed" (the first part at once) or ``None``: as
        is measured, or set. With ``unordered`` a message on RO is out of its order."""
        flags = _flags(silent, blocking, copy, transfer, unordered)
        lent = lend(message)
        wants_event = not silent and not blocking
        with self._endpoint._operation(operation, None if copy else lent, wants_event) as word:
            lib.call(native.isthmus_send, self._endpoint._name, self._name, lent, len(lent), word, flags)

    def send_pieces(
        self,
        pieces: Sequence[Buffer],
        *,
        operation: Any = None,
        silent: bool = False,
        blocking: bool = False,
        copy: bool = True,
        transfer: Optional[str] = None,
        unordered: bool = False,
    ) -> None:
        """Sends one message that is made of pieces; as :meth:`send`."""
        flags = _flags(silent, blocking, copy, transfer, unordered)
        lent = [lend(piece) for piece in pieces]
        table = ffi.new("struct iovec[]", [(piece, len(piece)) for piece in lent])
        wants_event = not silent and not blocking
        with self._endpoint._operation(operation, None if copy else lent, wants_event) as word:
            lib.call(native.isthmus_sendv, self._endpoint._name, self._name, table, len(table), word, flags)

    def write(
        self,
        region: Region,
        memory: bytes,
        length: Optional[int] = None,
        *,
        offset: int = 0,
        remote_offset: int = 0,
        message: Optional[Buffer] = None,
        operation: Any = None,
        silent: bool = False,
        blocking: bool = False,
        fence: bool = False,
    ) -> None:
        """Writes ``length`` bytes (default: all) of a region, from ``offset``, to a peer's
        memory. A message, if there is one, reaches the other program after the data."""
        flags = _remote_flags(silent, blocking, fence)
        self._remote(native.isthmus_write, region, memory, length, offset, remote_offset, message, operation, flags)

    def read(
        self,
        region: Region,
        memory: bytes,
        length: Optional[int] = None,
        *,
        offset: int = 0,
        remote_offset: int = 0,
        message: Optional[Buffer] = None,
        operation: Any = None,
        silent: bool = False,
        blocking: bool = False,
        fence: bool = False,
    ) -> None:
        """Reads a peer's memory into a region; as :meth:`write`, the other way."""
        flags = _remote_flags(silent, blocking, fence)
        self._remote(native.isthmus_read, region, memory, length, offset, remote_offset, message, operation, flags)

    def _remote(
        self,
        call: Callable[..., int],
        region: Region,
        memory: bytes,
        length: Optional[int],
        offset: int,
        remote_offset: int,
        message: Optional[Buffer],
        operation: Any,
        flags: int,
    ) -> None:
        theirs = ffi.new("isthmus_memory *")
        memory_len = ffi.sizeof("isthmus_memory")
        if len(memory) < memory_len:
            raise ValueError(f"memory has {memory_len} bytes, as Region.memory, not {len(memory)}")
        ffi.buffer(theirs)[:] = memory[:memory_len]
        lent = lib.NULL if message is None else lend(message)
        wants_event = not flags & (native.ISTHMUS_SILENT | native.ISTHMUS_BLOCKING)
        with self._endpoint._operation(operation, None, wants_event) as word:
            lib.call(
                call, self._endpoint._name, self._name, region._name, offset, theirs,
                remote_offset, len(region) - offset if length is None else length,
                lent, 0 if message is None else len(lent), word, flags,
            )  # fmt: skip

    def disconnect(self) -> None:
        """Ends it. What was sent before is still delivered, and its events come."""
        lib.call(native.isthmus_disconnect, self._endpoint._name, self._name)
        self._endpoint._forget_later(self)

    @property
    def level(self) -> Level:
        """Its service level."""
        return Level(self._number(native.ISTHMUS_OPT_CONN_LEVEL, "uint32_t"))

    @property
    def message_max(self) -> int:
        """Longest message that may be sent. Bytes; 0 until it is established."""
        return self._number(native.ISTHMUS_OPT_CONN_MESSAGE_MAX, "uint32_t")

    @property
    def peer(self) -> str:
        """The address of the endpoint at the other end."""
        return self._text(native.ISTHMUS_OPT_CONN_URI)

    @property
    def device(self) -> str:
        """The name of the device by which it goes."""
        return self._text(native.ISTHMUS_OPT_CONN_DEVICE)

    @property
    def counters(self) -> Dict[str, int]:
        """What went between this endpoint and the peer's so far; all connections with that endpoint share
        the counts. ``isthmus.h`` describes them (``isthmus_counters``): ``sent_bytes``,
        ``received_bytes``, ``messages_sent``, ``datagrams_sent``, ``datagrams_received``,
        ``fragments_resent``, ``lanes``, ``rtt_us``."""
        return lib.counters(self._endpoint._name, self._name)

    @property
    def send_timeout(self) -> float:
        """How long operations may take; 0: as long as the peer lives. Seconds."""
        return self._number(native.ISTHMUS_OPT_CONN_SEND_TIMEOUT_US, "uint64_t") / 1e6

    @send_timeout.setter
    def send_timeout(self, seconds: float) -> None:
        self._set_us(native.ISTHMUS_OPT_CONN_SEND_TIMEOUT_US, seconds)

    @property
    def keepalive(self) -> float:
        """After how much silence the program is told; 0: never. Seconds."""
        return self._number(native.ISTHMUS_OPT_CONN_KEEPALIVE_US, "uint64_t") / 1e6

    @keepalive.setter
    def keepalive(self, seconds: float) -> None:
        self._set_us(native.ISTHMUS_OPT_CONN_KEEPALIVE_US, seconds)

    @property
    def udp_protocols(self) -> str:
        """What lanes by UDP, or as frames, with its host are made up of; shared by all
        connections with that host."""
        return self._text(native.ISTHMUS_OPT_CONN_UDP_PROTOCOLS)

    @udp_protocols.setter
    def udp_protocols(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, native.ISTHMUS_OPT_CONN_UDP_PROTOCOLS, text)

    @property
    def transfer(self) -> str:
        """How messages to its host are transferred that do not say it themselves; shared by all
        connections with that host. What is set for its service level goes before."""
        return self._text(native.ISTHMUS_OPT_CONN_TRANSFER)

    @transfer.setter
    def transfer(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, native.ISTHMUS_OPT_CONN_TRANSFER, text)

    @property
    def protocols(self) -> str:
        """What messages to its host and lanes with it are made of, in a text without hosts; shared by
        all connections with that host. What is not mentioned when it is set stays."""
        return self._text(native.ISTHMUS_OPT_CONN_PROTOCOLS)

    @protocols.setter
    def protocols(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, native.ISTHMUS_OPT_CONN_PROTOCOLS, text)

    def _text(self, option: int) -> str:
        return lib.text_option(self._endpoint._name, self._name, option)

    def _number(self, option: int, kind: str) -> int:
        return lib.number_option(self._endpoint._name, self._name, option, kind)

    def _set_us(self, option: int, seconds: float) -> None:
        us = round(seconds * 1e6)
        lib.set_number_option(self._endpoint._name, self._name, option, "uint64_t", us)
