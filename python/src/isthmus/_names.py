"""Names at a router, and other places, by which programs of different sites find each other."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from ._library import NULL, URI_MAX, call, encoded, ffi, native, text_of

#: Longest text of a name. Bytes.
TEXT_MAX = 1024


class Published:
    """What others find, a name or an address; withdrawn by ``withdraw``, at the end of ``with``, or with the process."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def withdraw(self) -> None:
        """Nobody finds it any more."""
        call(native.isthmus_withdraw, self._handle[0])

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()


def publish(place: str, name: str, text: str) -> Published:
    """Publishes ``text`` under ``name`` at the router ``place`` (``isthmus://AS.SUBNET/IP:PORT``), one
    of this process's own AS."""
    handle = ffi.new("isthmus_name *")
    call(native.isthmus_publish, encoded(place, "place"), encoded(name, "name"), encoded(text, "text"), handle)
    return Published(handle)


def look_up(place: str, name: str, patience: float = 0.0) -> str:
    """The text that somebody publishes under ``name`` at that router, now or within ``patience`` seconds."""
    text = ffi.new("char[]", TEXT_MAX + 1)
    call(native.isthmus_look_up, encoded(place, "place"), encoded(name, "name"), int(patience * 1e6), text, len(text))
    return text_of(text)


def site(rank: int) -> Optional[int]:
    """The site of a rank of the world that ``isthmus run`` has started, from 0; ``None`` if there is no such rank."""
    found = native.isthmus_site(rank)
    return None if found < 0 else int(found)


def _file(secret: Union[str, os.PathLike[str], None]) -> Any:
    return NULL if secret is None else encoded(os.fspath(secret), "secret")


def announce(at: str, uri: str, secret: Union[str, os.PathLike[str], None] = None) -> Published:
    """Announces an endpoint's address at ``file:PATH``, ``router:isthmus://AS.SUBNET/IP:PORT/NAME`` or
    ``HOST:PORT``; there ``secret`` is the path of a file that holders share."""
    handle = ffi.new("isthmus_name *")
    call(native.isthmus_announce, encoded(at, "at"), _file(secret), encoded(uri, "uri"), handle)
    return Published(handle)


def find(at: str, patience: float = 0.0, secret: Union[str, os.PathLike[str], None] = None) -> str:
    """The address that a program announces there, now or within ``patience`` seconds."""
    uri = ffi.new("char[]", URI_MAX)
    call(native.isthmus_find, encoded(at, "at"), _file(secret), int(patience * 1e6), uri, len(uri))
    return text_of(uri)
