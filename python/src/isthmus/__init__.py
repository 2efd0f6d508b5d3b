"""Isthmus: endpoints, connections, events, messages and remote memory between sites."""

from importlib import metadata

from ._connection import Connection
from ._digest import digest_block, digest_whole
from ._endpoint import Endpoint, Region, devices
from ._events import (
    Accepted,
    Connected,
    DeviceFailed,
    Disconnected,
    Event,
    KeepaliveExpired,
    Received,
    Request,
    Sent,
)
from ._library import Device, Error, Level, Status
from ._log import Severity, set_log
from ._names import Published, announce, find, look_up, publish, site

try:
    __version__ = metadata.version("isthmus")
except metadata.PackageNotFoundError:  # It runs from its source.
    __version__ = "unknown"

__all__ = [
    "Accepted",
    "Connected",
    "Connection",
    "Device",
    "DeviceFailed",
    "Disconnected",
    "Endpoint",
    "Error",
    "Event",
    "KeepaliveExpired",
    "Level",
    "Published",
    "Received",
    "Region",
    "Request",
    "Sent",
    "Severity",
    "Status",
    "__version__",
    "announce",
    "devices",
    "digest_block",
    "digest_whole",
    "find",
    "look_up",
    "publish",
    "set_log",
    "site",
]
