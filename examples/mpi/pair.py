"""One of two applications that come together by a port: it sends a file and an array, or receives them, by mpi4py.

    mpiexec -n 2 python pair.py receive file:/shared/port COPY
    mpiexec -n 3 python pair.py send file:/shared/port SOURCE

The array is of a thousand numbers, which each application's ranks hold in equal shares and a rest.
"""

import sys
from array import array

from mpi4py import MPI

import isthmus_mpi

what, port, path = sys.argv[1:4]
sends = what == "send"
world = MPI.COMM_WORLD
first, last = (1000 * rank // world.size for rank in (world.rank, world.rank + 1))

with isthmus_mpi.connect(world, port, 60) if sends else isthmus_mpi.accept(world, port) as coupling:
    numbers = array("d", range(first, last) if sends else [0.0] * (last - first))
    if sends:
        report = coupling.send_file(path)
        coupling.send_array(numbers)
    else:
        report = coupling.receive_file(path)
        coupling.receive_array(numbers)
    assert list(numbers) == list(range(first, last)), "other numbers"
    if world.rank == 0:
        print(f"OK {what}: {report.bytes} bytes, {coupling.remote_ranks} ranks there, BLAKE3 {report.digest}", flush=True)
