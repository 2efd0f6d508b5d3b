"""A connection with another endpoint."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint32, c_uint64
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

from . import _library as lib
from ._library import ConnectionName, Level, MemoryBytes

if TYPE_CHECKING:
    from ._endpoint import Buffer, Endpoint, Region


def _flags(silent: bool, blocking: bool, copy: bool, transfer: Optional[str], unordered: bool) -> int:
    """The library's flags for a message."""
    if silent and not copy:
        raise ValueError("what is not copied needs an event: leave out silent or copy=False")
    transfers = {None: 0, "eager": lib.EAGER, "rendezvous": lib.RENDEZVOUS, "mixed": lib.MIXED}
    if transfer not in transfers:
        raise ValueError(f'transfer is "eager", "rendezvous", "mixed" or None, not {transfer!r}')
    flags = lib.SILENT * silent | lib.BLOCKING * blocking | lib.NO_COPY * (not copy)
    return flags | transfers[transfer] | lib.UNORDERED * unordered


class Connection:
    """A connection, from :meth:`Endpoint.connect` or :meth:`Request.accept`."""

    def __init__(self, endpoint: Endpoint, context: Any) -> None:
        self._endpoint = endpoint
        self._name = ConnectionName()
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
        pointer, length, holder = self._endpoint._lend(message)
        wants_event = not silent and not blocking
        with self._endpoint._operation(operation, None if copy else holder, wants_event) as word:
            lib.call("send", self._endpoint._name, self._name, pointer, length, word, flags)

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
        holders = [self._endpoint._lend(piece) for piece in pieces]
        table = (lib.Piece * len(holders))(*(lib.Piece(address, length) for address, length, _ in holders))
        wants_event = not silent and not blocking
        with self._endpoint._operation(operation, None if copy else holders, wants_event) as word:
            lib.call("sendv", self._endpoint._name, self._name, table, len(table), word, flags)

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
        flags = lib.SILENT * silent | lib.BLOCKING * blocking | lib.FENCE * fence
        self._remote("write", region, memory, length, offset, remote_offset, message, operation, flags)

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
        flags = lib.SILENT * silent | lib.BLOCKING * blocking | lib.FENCE * fence
        self._remote("read", region, memory, length, offset, remote_offset, message, operation, flags)

    def _remote(
        self,
        call: str,
        region: Region,
        memory: bytes,
        length: Optional[int],
        offset: int,
        remote_offset: int,
        message: Optional[Buffer],
        operation: Any,
        flags: int,
    ) -> None:
        theirs = MemoryBytes.from_buffer_copy(memory)
        pointer, message_len, holder = (
            (None, 0, None) if message is None else self._endpoint._lend(message)
        )
        wants_event = not flags & (lib.SILENT | lib.BLOCKING)
        with self._endpoint._operation(operation, None, wants_event) as word:
            lib.call(
                call, self._endpoint._name, self._name, region._name, offset, byref(theirs),
                remote_offset, len(region) - offset if length is None else length,
                pointer, message_len, word, flags,
            )  # fmt: skip
        del holder  # the message was copied

    def disconnect(self) -> None:
        """Ends it. What was sent before is still delivered, and its events come."""
        lib.call("disconnect", self._endpoint._name, self._name)
        self._endpoint._forget_later(self)

    @property
    def level(self) -> Level:
        """Its service level."""
        return Level(self._number(lib.OPT_CONN_LEVEL, c_uint32()))

    @property
    def message_max(self) -> int:
        """Longest message that may be sent. Bytes; 0 until it is established."""
        return self._number(lib.OPT_CONN_MESSAGE_MAX, c_uint32())

    @property
    def peer(self) -> str:
        """The address of the endpoint at the other end."""
        return self._text(lib.OPT_CONN_URI)

    @property
    def device(self) -> str:
        """The name of the device by which it goes."""
        return self._text(lib.OPT_CONN_DEVICE)

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
        return self._number(lib.OPT_CONN_SEND_TIMEOUT_US, c_uint64()) / 1e6

    @send_timeout.setter
    def send_timeout(self, seconds: float) -> None:
        self._set_us(lib.OPT_CONN_SEND_TIMEOUT_US, seconds)

    @property
    def keepalive(self) -> float:
        """After how much silence the program is told; 0: never. Seconds."""
        return self._number(lib.OPT_CONN_KEEPALIVE_US, c_uint64()) / 1e6

    @keepalive.setter
    def keepalive(self, seconds: float) -> None:
        self._set_us(lib.OPT_CONN_KEEPALIVE_US, seconds)

    @property
    def udp_protocols(self) -> str:
        """What lanes by UDP, or as frames, with its host are made up of; shared by all
        connections with that host."""
        return self._text(lib.OPT_CONN_UDP_PROTOCOLS)

    @udp_protocols.setter
    def udp_protocols(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, lib.OPT_CONN_UDP_PROTOCOLS, text)

    @property
    def transfer(self) -> str:
        """How messages to its host are transferred that do not say it themselves; shared by all
        connections with that host. What is set for its service level goes before."""
        return self._text(lib.OPT_CONN_TRANSFER)

    @transfer.setter
    def transfer(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, lib.OPT_CONN_TRANSFER, text)

    @property
    def protocols(self) -> str:
        """What messages to its host and lanes with it are made of, in a text without hosts; shared by
        all connections with that host. What is not mentioned when it is set stays."""
        return self._text(lib.OPT_CONN_PROTOCOLS)

    @protocols.setter
    def protocols(self, text: str) -> None:
        lib.set_text_option(self._endpoint._name, self._name, lib.OPT_CONN_PROTOCOLS, text)

    def _text(self, option: int) -> str:
        return lib.text_option(self._endpoint._name, self._name, option)

    def _number(self, option: int, value: Any) -> int:
        length = c_size_t(ctypes.sizeof(value))
        lib.call("get_option", self._endpoint._name, self._name, option, byref(value), byref(length))
        return int(value.value)

    def _set_us(self, option: int, seconds: float) -> None:
        value = c_uint64(round(seconds * 1e6))
        lib.call("set_option", self._endpoint._name, self._name, option, byref(value), 8)
