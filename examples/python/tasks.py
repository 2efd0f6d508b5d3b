#!/usr/bin/env python3
"""Messages and other work in one event loop of asyncio.

tasks.py       waits, and answers each message
tasks.py URI   sends messages, takes the answers, and does something else meanwhile
"""

import asyncio
import sys

import isthmus

MESSAGES = 200


async def answer(endpoint: isthmus.Endpoint) -> None:
    print(endpoint.uri, flush=True)
    async for event in endpoint:
        if isinstance(event, isthmus.Request):
            event.accept()
        elif isinstance(event, isthmus.Received):
            event.connection.send(bytes(event.data).upper(), silent=True)
        elif isinstance(event, isthmus.Disconnected):
            return


async def ask(endpoint: isthmus.Endpoint, uri: str) -> int:
    connection = endpoint.connect(uri)
    connected = await endpoint.next_event()
    if not isinstance(connected, isthmus.Connected) or not connected.ok:
        sys.exit(f"tasks: {connected}")
    answers = 0
    for number in range(MESSAGES):
        connection.send(b"message %d" % number, silent=True)
        event = await endpoint.next_event()
        if isinstance(event, isthmus.Received) and bytes(event.data) == b"MESSAGE %d" % number:
            answers += 1
    connection.disconnect()
    return answers


async def tick(counts: "list[int]") -> None:
    while True:
        counts[0] += 1
        await asyncio.sleep(0.001)


async def caller(endpoint: isthmus.Endpoint, uri: str) -> None:
    counts = [0]
    other = asyncio.create_task(tick(counts))
    answers = await ask(endpoint, uri)
    other.cancel()
    if answers != MESSAGES or counts[0] < 2:
        sys.exit(f"tasks: {answers} answers, {counts[0]} ticks")
    print(f"{answers} answers came, and the other task ran meanwhile")


with isthmus.Endpoint() as endpoint:
    asyncio.run(caller(endpoint, sys.argv[1]) if len(sys.argv) > 1 else answer(endpoint))
