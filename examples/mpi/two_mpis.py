"""Two applications, each with an MPI of its own: messages from rank to rank, then an array, then a file, by mpi4py.

    mpiexec -n 2 python two_mpis.py 1 file:/shared/at COPY
    mpiexec -n 3 python two_mpis.py 2 file:/shared/at SOURCE

Part 2 sends the array and the file. two_mpis.c and two_mpis.f90 do the same, and couple with this program.
"""

import sys
from array import array

from mpi4py import MPI

import isthmus_mpi

NUMBERS, TAG = 1000, 7
part, at, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
world = MPI.COMM_WORLD

with isthmus_mpi.couple(world, at, part, patience=60) as coupling:
    # Every rank tells every rank of the other side its number, and hears theirs.
    for there in range(coupling.remote_ranks):
        heard = array("q", [-1])
        request = coupling.ireceive(heard, there, TAG)
        coupling.send(array("q", [world.rank]), there, TAG)
        assert request.wait() == 8 and heard[0] == there, "another rank's number"

    # Numbers that each application's ranks hold in equal shares and a rest.
    first, last = (NUMBERS * rank // world.size for rank in (world.rank, world.rank + 1))
    if part == 2:
        coupling.send_array(array("d", range(first, last)))
        report = coupling.send_file(path)
    else:
        numbers = array("d", [-1.0] * (last - first))
        coupling.receive_array(numbers)
        assert list(numbers) == list(range(first, last)), "other numbers"
        report = coupling.receive_file(path)
    if world.rank == 0:
        print(f"OK two_mpis: part {part} in Python, {coupling.remote_ranks} ranks there, {report.bytes} bytes", flush=True)
