"""Names at a router, by which programs of different sites find each other."""

from __future__ import annotations

import ctypes

from ._library import NameHandle, call

#: Longest text of a name. Bytes.
TEXT_MAX = 1024


class Published:
    """A name that is published; withdrawn by ``withdraw``, at the end of ``with``, or with the process."""

    def __init__(self, handle: NameHandle) -> None:
        self._handle = handle

    def withdraw(self) -> None:
        """Nobody finds the name any more."""
        call("withdraw", self._handle)

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()


def publish(place: str, name: str, text: str) -> Published:
    """Publishes ``text`` under ``name`` at the router ``place`` (``isthmus://AS.SUBNET/IP:PORT``), one
    of this process's own AS."""
    handle = NameHandle()
    call("publish", place.encode(), name.encode(), text.encode(), ctypes.byref(handle))
    return Published(handle)


def look_up(place: str, name: str, patience: float = 0.0) -> str:
    """The text that somebody publishes under ``name`` at that router, now or within ``patience`` seconds."""
    text = ctypes.create_string_buffer(TEXT_MAX + 1)
    call("look_up", place.encode(), name.encode(), int(patience * 1e6), text, len(text))
    return text.value.decode()
