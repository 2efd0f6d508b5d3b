#!/usr/bin/env python3
"""A coupled pair: heat in a rod, one half computed by each of two programs that may be at two
sites. Each step they exchange the temperature at the seam.

coupled.py       the left half; waits for the right one
coupled.py URI   the right half, which also computes the whole rod by itself, and compares
"""

import array
import struct
import sys

import isthmus

CELLS, STEPS = 64, 500


def step(cells: "array.array[float]") -> None:
    """One step of all cells but the outermost two."""
    left = cells[0]
    for i in range(1, len(cells) - 1):
        here = cells[i]
        cells[i] = here + 0.25 * (left - 2 * here + cells[i + 1])
        left = here


def message(endpoint: isthmus.Endpoint) -> bytes:
    event = endpoint.wait(60)
    if not isinstance(event, isthmus.Received):
        sys.exit(f"coupled: {event}")
    return bytes(event.data)


def exchange(endpoint: isthmus.Endpoint, other: isthmus.Connection, ours: float) -> float:
    other.send(struct.pack("d", ours), silent=True)
    (theirs,) = struct.unpack("d", message(endpoint))
    return float(theirs)


def left_half(endpoint: isthmus.Endpoint) -> None:
    cells = array.array("d", [100.0] + [0.0] * (CELLS + 1))  # its far end is kept at 100 degrees
    print(endpoint.uri, flush=True)
    request = endpoint.wait()
    if not isinstance(request, isthmus.Request):
        sys.exit(f"coupled: {request}")
    right = request.accept()
    endpoint.wait()
    for _ in range(STEPS):
        cells[CELLS + 1] = exchange(endpoint, right, cells[CELLS])
        step(cells)
    # The result, for comparison.
    right.send(memoryview(cells)[1 : CELLS + 1], blocking=True)
    endpoint.wait(60)


def right_half(endpoint: isthmus.Endpoint, uri: str) -> None:
    cells = array.array("d", [0.0] * (CELLS + 2))
    whole = array.array("d", [100.0] + [0.0] * (2 * CELLS + 1))
    left = endpoint.connect(uri)
    event = endpoint.wait(60)
    if not isinstance(event, isthmus.Connected) or not event.ok:
        sys.exit(f"coupled: {event}")
    for _ in range(STEPS):
        cells[0] = exchange(endpoint, left, cells[1])
        step(cells)
        step(whole)
    theirs = array.array("d", message(endpoint))
    if theirs != whole[1 : CELLS + 1] or cells[1:-1] != whole[CELLS + 1 : -1]:
        sys.exit("coupled: the halves are not those of the whole")
    print(f"both halves are those of the whole, bit by bit; {cells[0]:.4f} degrees at the seam")
    left.disconnect()


with isthmus.Endpoint() as endpoint:
    right_half(endpoint, sys.argv[1]) if len(sys.argv) > 1 else left_half(endpoint)
