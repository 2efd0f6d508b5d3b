"""The library's log, to a function of the program."""

from __future__ import annotations

import atexit
import enum
import logging
from typing import Any, Callable, Optional

from ._library import NULL, call, ffi, native


class Severity(enum.IntEnum):
    """How much a line of the log matters."""

    WARN = native.ISTHMUS_WARN  #: Somebody should act.
    INFO = native.ISTHMUS_INFO  #: Something changed, and why.
    DEBUG = native.ISTHMUS_DEBUG  #: For people who look for a fault.

    @property
    def level(self) -> int:
        """The level of :mod:`logging` that it is."""
        return {self.WARN: logging.WARNING, self.INFO: logging.INFO, self.DEBUG: logging.DEBUG}[self]


#: What C calls; kept while it may be called.
_kept: Any = None


def set_log(
    function: Optional[Callable[[Severity, str], Any]], least: Severity = Severity.INFO
) -> None:
    """Sends the library's log to a function: lines of the severity ``least``, and those that matter
    more. Threads of the library call it too, so it must not call the library. ``None``: lines go to standard
    error, as the environment variable ``ISTHMUS_LOG`` says (off, warn, info or debug; warn is the
    default).

    ``set_log(lambda severity, text: logging.getLogger("isthmus").log(severity.level, text))`` sends
    them to :mod:`logging`."""
    global _kept
    if function is not None and not callable(function):
        raise TypeError(f"set_log takes a function or None, not {type(function).__name__}")
    if function is None:
        taken = NULL
    else:
        take = function

        def pass_on(severity: int, text: Any, _context: Any) -> None:
            take(Severity(severity), ffi.string(text).decode(errors="replace"))

        taken = ffi.callback("isthmus_log_function", pass_on)
    call(native.isthmus_set_log, taken, NULL, least)
    # When that has returned, the one before is not called any more.
    _kept = taken


def _end() -> None:
    # No thread may call Python any more when it ends.
    if _kept:
        set_log(None)


atexit.register(_end)
