#!/usr/bin/env python3
"""Ping-pong: messages go round, and how long that takes.

pingpong.py             waits, and prints its address
pingpong.py LEVEL URI   LEVEL is uu, ru or ro
"""

import statistics
import sys
import time

import isthmus

ROUNDS = 1000


def pong(endpoint: isthmus.Endpoint) -> None:
    print(endpoint.uri, flush=True)
    for event in endpoint.events():
        if isinstance(event, isthmus.Request):
            event.accept()
        elif isinstance(event, isthmus.Received):
            event.connection.send(event.data, silent=True)
        elif isinstance(event, isthmus.Disconnected):
            return


def ping(endpoint: isthmus.Endpoint, level: isthmus.Level, uri: str) -> None:
    connection = endpoint.connect(uri, level=level)
    event = endpoint.wait()
    if not isinstance(event, isthmus.Connected) or not event.ok:
        sys.exit(f"pingpong: {event}")
    times = []
    for number in range(ROUNDS):
        message = number.to_bytes(8, "little")
        start = time.perf_counter()
        answer = None
        while answer != message:
            connection.send(message, silent=True)
            # What UU has lost is sent again.
            event = endpoint.wait(0.5 if level == isthmus.Level.UU else 60)
            if isinstance(event, isthmus.Received):
                answer = bytes(event.data)
            elif level != isthmus.Level.UU:
                sys.exit(f"pingpong: {event}")
        times.append(time.perf_counter() - start)
    print(f"{ROUNDS} rounds, median {statistics.median(times) * 1e6:.1f} us")
    connection.disconnect()


with isthmus.Endpoint() as endpoint:
    if len(sys.argv) > 2:
        ping(endpoint, isthmus.Level[sys.argv[1].upper()], sys.argv[2])
    else:
        pong(endpoint)
