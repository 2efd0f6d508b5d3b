"""Names at a router, and other places, by which programs of different sites find each other."""

from __future__ import annotations

import ctypes
import os
from typing import Optional, Union

from ._library import URI_MAX, NameHandle, call, encoded

#: Longest text of a name. Bytes.
TEXT_MAX = 1024


class Published:
    """What others find, a name or an address; withdrawn by ``withdraw``, at the end of ``with``, or with the process."""

    def __init__(self, handle: NameHandle) -> None:
        self._handle = handle

    def withdraw(self) -> None:
        """Nobody finds it any more."""
        call("withdraw", self._handle)

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()


def publish(place: str, name: str, text: str) -> Published:
    """Publishes ``text`` under ``name`` at the router ``place`` (``isthmus://AS.SUBNET/IP:PORT``), one
    of this process's own AS."""
    handle = NameHandle()
    call("publish", encoded(place, "place"), encoded(name, "name"), encoded(text, "text"), ctypes.byref(handle))
    return Published(handle)


def look_up(place: str, name: str, patience: float = 0.0) -> str:
    """The text that somebody publishes under ``name`` at that router, now or within ``patience`` seconds."""
    text = ctypes.create_string_buffer(TEXT_MAX + 1)
    call("look_up", encoded(place, "place"), encoded(name, "name"), int(patience * 1e6), text, len(text))
    return text.value.decode()


def _file(secret: Union[str, os.PathLike[str], None]) -> Optional[bytes]:
    return None if secret is None else encoded(os.fspath(secret), "secret")


def announce(at: str, uri: str, secret: Union[str, os.PathLike[str], None] = None) -> Published:
    """Announces an endpoint's address at ``file:PATH``, ``router:isthmus://AS.SUBNET/IP:PORT/NAME`` or
    ``HOST:PORT``; there ``secret`` is the path of a file that holders share."""
    handle = NameHandle()
    call("announce", encoded(at, "at"), _file(secret), encoded(uri, "uri"), ctypes.byref(handle))
    return Published(handle)


def find(at: str, patience: float = 0.0, secret: Union[str, os.PathLike[str], None] = None) -> str:
    """The address that a program announces there, now or within ``patience`` seconds."""
    uri = ctypes.create_string_buffer(URI_MAX)
    call("find", encoded(at, "at"), _file(secret), int(patience * 1e6), uri, len(uri))
    return uri.value.decode()
