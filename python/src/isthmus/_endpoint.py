"""An endpoint: its connections, its memory, and its one queue of events."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import math
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Union

from . import _events
from . import _library as lib
from ._connection import Connection
from ._library import NOBODY, NULL, Device, Level, Status, call, ffi, meaning, native
from ._memory import borrow, lend

if TYPE_CHECKING:
    import asyncio

#: Whatever has the buffer protocol, such as an array of numpy.
Buffer = Union[bytes, bytearray, memoryview, Any]

#: A wait is that long at most before signals are looked at. Seconds.
SLICE = 0.1

_EVENT = ffi.typeof("isthmus_event *")

_open: "weakref.WeakSet[Endpoint]" = weakref.WeakSet()


def devices() -> list[Device]:
    """The devices of this host, best first."""
    return lib.list_devices()


def _settle(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


def _end_wait(handle: int, readable: "asyncio.Future[None]") -> None:
    """Ends the wait of a task for an endpoint that is closed."""
    if not readable.done():
        readable.get_loop().remove_reader(handle)
        text = "the endpoint was closed while a task waited for its events"
        readable.set_exception(lib.Error(Status.STALE, text))


class Region:
    """Registered memory, from :meth:`Endpoint.register`. Its buffer cannot be resized until
    it is deregistered."""

    def __init__(self, lent: Any, name: Any, memory: bytes) -> None:
        self._lent = lent
        self._length = len(lent)
        self._name = name
        #: What peers need to reach it: send it there. 32 bytes.
        self.memory = memory

    def __len__(self) -> int:
        return self._length


class Endpoint:
    """A program's instance of a device. Methods may be called from any thread."""

    def __init__(
        self,
        device: str | None = None,
        *,
        recv_buffers: int = 0,
        send_buffers: int = 0,
        message_max: int = 0,
        backlog: int = 0,
        send_timeout: float = 0,
        keepalive: float = 0,
        port: int = 0,
    ) -> None:
        """Opens it on the device of this name (default: the best that is up); several names
        joined by commas, or ``*`` for all that are up, make one endpoint on all of them. 0 in
        an option means its default, times are in seconds. ``isthmus.h`` describes the options."""
        self._state = "closed"
        self._awaited = False
        self._readable: asyncio.Future[None] | None = None
        self._words = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._left: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
        self._operations: dict[int, tuple[Any, Any]] = {}
        self._regions: dict[int, Region] = {}
        self._lent: set[int] = set()
        lib.initialise()
        options = {
            "size": ffi.sizeof("isthmus_endpoint_options"),
            "recv_buffers": recv_buffers,
            "send_buffers": send_buffers,
            "message_max": message_max,
            "backlog": backlog,
            "send_timeout_us": round(send_timeout * 1e6),
            "keepalive_us": round(keepalive * 1e6),
            "port": port,
        }
        self._name, handle = lib.name_of("isthmus_endpoint"), ffi.new("int *")
        call(
            native.isthmus_create_endpoint,
            NULL if device is None else lib.encoded(device, "device"),
            ffi.new("isthmus_endpoint_options *", options),
            ffi.addressof(self._name),
            handle,
        )
        self._handle: int = handle[0]
        self._state = "open"
        _open.add(self)

    @property
    def uri(self) -> str:
        """The address that peers need; of several devices one for each, joined by commas."""
        text = ffi.new("char[]", lib.URI_MAX)
        call(native.isthmus_uri, self._name, text, len(text))
        return lib.text_of(text)

    def connect(
        self,
        uri: str,
        payload: Buffer = b"",
        *,
        level: Level = Level.RO,
        context: Any = None,
        timeout: float = 0,
    ) -> Connection:
        """Asks for a connection, with a payload of at most 1,024 bytes. Returns at once;
        :class:`Connected` follows, within ``timeout`` seconds (0: as long as the peer can be
        reached)."""
        address = lib.encoded(uri, "uri")
        lent = lend(payload)
        connection = Connection(self, context)
        word = self._enter(connection)
        try:
            call(
                native.isthmus_connect, self._name, address, lent, len(lent), level, lib.pointer_of(word),
                round(timeout * 1e6), ffi.addressof(connection._name),
            )  # fmt: skip
        except BaseException:
            self._forget(word)
            raise
        return connection

    def poll(self) -> _events.Event | None:
        """The next event, if there is one; never sleeps."""
        record = ffi.new(_EVENT)
        if call(native.isthmus_get_event, self._name, record, but=Status.AGAIN) == Status.AGAIN:
            return None
        return self._shape(record)

    def wait(self, timeout: float | None = None) -> _events.Event | None:
        """The next event; sleeps until there is one, or so many seconds (``None``: no
        limit)."""
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout is a number of seconds, or None for no limit, not nan")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE if end is None else max(0.0, min(SLICE, end - time.monotonic()))
            record = ffi.new(_EVENT)
            status = call(
                native.isthmus_wait_event, self._name, round(left * 1e6), record, but=Status.AGAIN
            )
            if status == Status.SUCCESS:
                return self._shape(record)
            if end is not None and time.monotonic() >= end:
                return None

    def events(self, timeout: float | None = None) -> Iterator[_events.Event]:
        """Events as they come, until there was none for so many seconds."""
        while (event := self.wait(timeout)) is not None:
            yield event
            del event

    async def next_event(self) -> _events.Event:
        """The next event, in a coroutine of :mod:`asyncio`: other tasks run until there is one. One
        task at a time may wait. If the task is cancelled, no event is lost. :meth:`close` ends the
        wait with :class:`Error`."""
        import asyncio  # Programs without it start faster.

        if self._awaited:
            raise RuntimeError("another task waits for the events of this endpoint already")
        loop = asyncio.get_running_loop()
        self._awaited = True
        try:
            while (event := self.poll()) is None:
                if not self.arm():
                    continue
                readable = loop.create_future()
                loop.add_reader(self._handle, _settle, readable)
                self._readable = readable
                try:
                    await readable
                finally:
                    # close() removes the reader itself: the number may belong to another file by now.
                    if self._readable is readable:
                        self._readable = None
                        loop.remove_reader(self._handle)
            return event
        finally:
            self._awaited = False

    def __aiter__(self) -> Endpoint:
        """``async for event in endpoint`` takes events as they come."""
        return self

    async def __anext__(self) -> _events.Event:
        return await self.next_event()

    def arm(self) -> bool:
        """Prepares to sleep on :meth:`fileno`. ``False`` where events are waiting: take them
        first. When it was readable, take events until there are none, then arm again."""
        return call(native.isthmus_arm, self._name, but=Status.AGAIN) == Status.SUCCESS

    def fileno(self) -> int:
        """A descriptor that is readable when there may be events, once armed."""
        return self._handle

    def register(
        self, buffer: Buffer, *, remote_read: bool = False, remote_write: bool = False
    ) -> Region:
        """Registers writable memory for reads and writes of ours, and as said of peers."""
        lent = lend(buffer, writable=True)
        access = native.ISTHMUS_REMOTE_READ * remote_read | native.ISTHMUS_REMOTE_WRITE * remote_write
        name, memory = lib.name_of("isthmus_region"), ffi.new("isthmus_memory *")
        call(native.isthmus_register, self._name, lent, len(lent), access, ffi.addressof(name), memory)
        region = Region(lent, name, bytes(ffi.buffer(memory)))
        self._regions[name.id] = region
        return region

    def deregister(self, region: Region) -> None:
        """Takes memory back: no peer reaches it after this returns. Refused while operations
        of ours use it."""
        call(native.isthmus_deregister, self._name, region._name)
        self._regions.pop(region._name.id, None)
        ffi.release(region._lent)

    @property
    def recv_buffers(self) -> int:
        """Messages that wait for or are with the program; more wait at their senders."""
        return self._count(native.ISTHMUS_OPT_RECV_BUFFERS)

    @recv_buffers.setter
    def recv_buffers(self, count: int) -> None:
        self._set_count(native.ISTHMUS_OPT_RECV_BUFFERS, count)

    @property
    def send_buffers(self) -> int:
        """Operations that may be under way at once."""
        return self._count(native.ISTHMUS_OPT_SEND_BUFFERS)

    @send_buffers.setter
    def send_buffers(self, count: int) -> None:
        self._set_count(native.ISTHMUS_OPT_SEND_BUFFERS, count)

    @property
    def udp_protocols(self) -> str:
        """What lanes by UDP, or as frames, are made up of, as the setting of this name says it."""
        return lib.text_option(self._name, NOBODY, native.ISTHMUS_OPT_UDP_PROTOCOLS)

    @udp_protocols.setter
    def udp_protocols(self, text: str) -> None:
        lib.set_text_option(self._name, NOBODY, native.ISTHMUS_OPT_UDP_PROTOCOLS, text)

    @property
    def transfer(self) -> str:
        """How messages are transferred that do not say it themselves, as the setting of this name
        says it."""
        return lib.text_option(self._name, NOBODY, native.ISTHMUS_OPT_TRANSFER)

    @transfer.setter
    def transfer(self, text: str) -> None:
        lib.set_text_option(self._name, NOBODY, native.ISTHMUS_OPT_TRANSFER, text)

    @property
    def protocols(self) -> str:
        """What service levels, messages and lanes are made of, as the setting of this name says it."""
        return lib.text_option(self._name, NOBODY, native.ISTHMUS_OPT_PROTOCOLS)

    @protocols.setter
    def protocols(self, text: str) -> None:
        lib.set_text_option(self._name, NOBODY, native.ISTHMUS_OPT_PROTOCOLS, text)

    @property
    def counters(self) -> dict[str, int]:
        """What went between this endpoint and all its peers, as :attr:`Connection.counters`."""
        return lib.counters(self._name, NOBODY)

    def _count(self, option: int) -> int:
        return lib.number_option(self._name, NOBODY, option, "uint32_t")

    def _set_count(self, option: int, count: int) -> None:
        lib.set_number_option(self._name, NOBODY, option, "uint32_t", count)

    def set_times(self, *, send_timeout: float, keepalive: float) -> None:
        """Send time-out and keepalive of new connections; 0: none. Seconds."""
        for option, seconds in (
            (native.ISTHMUS_OPT_SEND_TIMEOUT_US, send_timeout),
            (native.ISTHMUS_OPT_KEEPALIVE_US, keepalive),
        ):
            lib.set_number_option(self._name, NOBODY, option, "uint64_t", round(seconds * 1e6))

    def close(self) -> None:
        """Delivers what was sent and closes the endpoint. While the program still holds views
        of messages only its connections end; the rest does when the last view is gone."""
        if self._state != "open":
            return
        self._state = "closing"
        self._end_wait()
        if not self._lent:
            return self._destroy()
        for connection in list(self._connections.values()):
            with contextlib.suppress(lib.Error):
                call(native.isthmus_disconnect, self._name, connection._name)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _end_wait(self) -> None:
        readable, self._readable = self._readable, None
        if readable is None:
            return
        loop = readable.get_loop()
        import asyncio  # It is loaded already.

        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            _end_wait(self._handle, readable)
        else:
            # Another thread closes the endpoint. The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_end_wait, self._handle, readable)

    def _destroy(self) -> None:
        self._state = "closed"
        self._end_wait()
        call(native.isthmus_destroy_endpoint, self._name)
        self._connections.clear()
        self._operations.clear()
        while self._regions:
            ffi.release(self._regions.popitem()[1]._lent)

    def _enter(self, connection: Connection) -> int:
        word = next(self._words)
        self._connections[word] = connection
        return word

    def _forget(self, word: int) -> None:
        connection = self._connections.pop(word, None)
        if connection is not None:
            # Ends of what it had sent may still come.
            self._left[word] = connection

    def _forget_later(self, connection: Connection) -> None:
        for word, known in list(self._connections.items()):
            if known is connection:
                self._forget(word)

    @contextlib.contextmanager
    def _operation(self, word: Any, holder: Any, event: bool) -> Iterator[Any]:
        """A number for an operation, by which its event finds what it was called."""
        if not event:
            yield NULL
            return
        number = next(self._words)
        self._operations[number] = (word, holder)
        try:
            yield lib.pointer_of(number)
        except BaseException:
            self._operations.pop(number, None)
            raise

    def _accept(self, request: _events.Request, context: Any) -> Connection:
        connection = Connection(self, context)
        word = self._enter(connection)
        try:
            call(
                native.isthmus_accept, self._name, request._record, lib.pointer_of(word),
                ffi.addressof(connection._name),
            )  # fmt: skip
        except BaseException:
            self._forget(word)
            raise
        return connection

    def _reject(self, request: _events.Request, reason: int, payload: bytes) -> None:
        lent = lend(payload)
        call(native.isthmus_reject, self._name, request._record, reason, lent, len(lent))

    def _give_back(self, record: Any) -> None:
        self._lent.discard(record.token)
        if self._state != "closed":
            with contextlib.suppress(lib.Error):
                call(native.isthmus_return_event, self._name, record)
        if self._state == "closing" and not self._lent:
            self._destroy()

    def _shape(self, record: Any) -> _events.Event:
        """What the program gets for an event of the library."""
        kind = record.kind
        if kind == native.ISTHMUS_EVENT_REQUEST:
            self._lent.add(record.token)
            return _events.Request(self, record, _events.copied(record))
        word = lib.number_of(record.context)
        connection = self._connections.get(word) or self._left.get(word)
        if connection is None:
            connection = Connection(self, None)
            connection._name = ffi.new("isthmus_connection *", record.connection)[0]
        if kind == native.ISTHMUS_EVENT_RECV:
            return _events.Received(connection, self._view(record))
        status = Status(record.status)
        text = lib.text_of(record.text) or meaning(status)
        payload, reason = _events.copied(record), record.reason
        operation = lib.number_of(record.operation)
        call(native.isthmus_return_event, self._name, record)
        if kind in (native.ISTHMUS_EVENT_CONNECT, native.ISTHMUS_EVENT_ACCEPT) and status != Status.SUCCESS:
            self._forget(word)
        if kind == native.ISTHMUS_EVENT_CONNECT:
            return _events.Connected(connection, status, text, reason, payload)
        if kind == native.ISTHMUS_EVENT_ACCEPT:
            return _events.Accepted(connection, status, text)
        if kind == native.ISTHMUS_EVENT_SEND:
            told, _ = self._operations.pop(operation, (None, None)) if operation else (None, None)
            return _events.Sent(connection, told, status, text)
        if kind == native.ISTHMUS_EVENT_DISCONNECT:
            with contextlib.suppress(lib.Error):
                call(native.isthmus_disconnect, self._name, connection._name)
            self._forget(word)
            return _events.Disconnected(connection, status, text)
        if kind == native.ISTHMUS_EVENT_KEEPALIVE:
            return _events.KeepaliveExpired(connection)
        return _events.DeviceFailed(text)

    def _view(self, record: Any) -> memoryview:
        if not record.len:
            call(native.isthmus_return_event, self._name, record)
            return memoryview(b"")
        self._lent.add(record.token)
        return borrow(record.data, record.len, functools.partial(self._give_back, record))


@atexit.register
def _close_all() -> None:
    for endpoint in list(_open):
        endpoint.close()
        if endpoint._state == "closing":
            endpoint._destroy()
