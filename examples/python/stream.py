#!/usr/bin/env python3
"""A stream of messages that are not copied, and a large write behind it.

stream.py       waits, and prints its address
stream.py URI   sends, and says how fast
"""

import sys
import time
import zlib

import isthmus

MESSAGES, LENGTH = 2000, 60_000
REGION = 16 << 20


def take(endpoint: isthmus.Endpoint) -> None:
    target = bytearray(REGION)
    region = endpoint.register(target, remote_write=True)
    print(endpoint.uri, flush=True)
    total = digest = 0
    for event in endpoint.events():
        if isinstance(event, isthmus.Request):
            event.accept()
        elif isinstance(event, isthmus.Accepted):
            event.connection.send(region.memory, silent=True)
        elif isinstance(event, isthmus.Received) and bytes(event.data) == b"written":
            # It came after the data.
            digest = zlib.crc32(target, digest)
            event.connection.send(f"{total} {digest}".encode(), silent=True)
        elif isinstance(event, isthmus.Received):
            total += len(event.data)
            digest = zlib.crc32(event.data, digest)
        elif isinstance(event, isthmus.Disconnected):
            break
    endpoint.deregister(region)


def give(endpoint: isthmus.Endpoint, uri: str) -> None:
    connection = endpoint.connect(uri, level=isthmus.Level.RO)
    memory, answer = b"", ""
    while not memory:
        event = endpoint.wait()
        if isinstance(event, isthmus.Received):
            memory = bytes(event.data)
        elif not isinstance(event, isthmus.Connected) or not event.ok:
            sys.exit(f"stream: {event}")
    source = bytearray(bytes(range(251)) * (REGION // 251 + 1))[:REGION]
    region = endpoint.register(source)
    messages = memoryview(source)
    digest, start = 0, time.perf_counter()
    sent = done = 0
    while done < MESSAGES:
        while sent < MESSAGES and sent - done < 64:
            message = messages[sent : sent + LENGTH]
            digest = zlib.crc32(message, digest)
            connection.send(message, operation=sent, copy=False)
            sent += 1
        event = endpoint.wait()
        if not isinstance(event, isthmus.Sent) or not event.ok:
            sys.exit(f"stream: {event}")
        done += 1
    connection.write(region, memory, message=b"written", silent=True)
    digest = zlib.crc32(source, digest)
    event = endpoint.wait(60)
    took = time.perf_counter() - start
    if isinstance(event, isthmus.Received):
        answer = bytes(event.data).decode()
    if answer != f"{MESSAGES * LENGTH} {digest}":
        sys.exit(f"stream: {event}: {answer}")
    print(f"{(MESSAGES * LENGTH + REGION) / took / 1e6:.0f} MB/s, and all of it is right")
    connection.disconnect()


with isthmus.Endpoint() as endpoint:
    give(endpoint, sys.argv[1]) if len(sys.argv) > 1 else take(endpoint)
