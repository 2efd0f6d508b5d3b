"""One half of a job's ranks sends a file and an array to the other half, by mpi4py.

    mpiexec -n 3 python halves.py FOLDER

The halves stand for two applications: those would call isthmus_mpi.accept and connect with
a port's name, such as "file:/shared/port", instead of isthmus_mpi.couple.
"""

import sys
from array import array
from pathlib import Path

from mpi4py import MPI

import isthmus_mpi

folder = Path(sys.argv[1])
source, copy = folder / "source", folder / "copy"
world = MPI.COMM_WORLD
senders = world.size // 2
sends = world.rank < senders
mine = world.Split(sends, world.rank)
other = mine.Create_intercomm(0, world, senders if sends else 0)

if world.rank == 0:
    source.write_bytes(bytes(range(256)) * 10000)
mine.Barrier()

with isthmus_mpi.couple(mine, other) as coupling:
    # A file; then a thousand numbers, which each side's ranks hold in equal shares and a rest.
    if sends:
        report = coupling.send_file(source, block=65536)
    else:
        report = coupling.receive_file(copy, sync=True)
    first, last = (1000 * rank // mine.size for rank in (mine.rank, mine.rank + 1))
    numbers = array("d", range(first, last) if sends else [0.0] * (last - first))
    if sends:
        coupling.send_array(numbers)
    else:
        coupling.receive_array(numbers)
    assert list(numbers) == list(range(first, last)), "other numbers"
    # What fails is an exception, at all ranks alike.
    try:
        coupling.send_file("/no/such/file") if sends else coupling.receive_file(copy)
        raise AssertionError("a file that is not there was sent")
    except isthmus_mpi.Error as error:
        assert error.status == isthmus_mpi.FILE and "No such file" in str(error), error
    try:
        coupling.send_file(source, blocks=1)
        raise AssertionError("an option that is none was taken")
    except TypeError:
        pass

if world.rank == senders:
    assert copy.read_bytes() == bytes(range(256)) * 10000, "another file"
assert report.bytes == 2560000 and len(report.digest) == 64
world.Barrier()
if world.rank == 0:
    print(f"OK halves: {report.bytes} bytes, BLAKE3 {report.digest[:16]}...", flush=True)
