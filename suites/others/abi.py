"""Programs that were linked with another MPI of MPICH's ABI, on the MPIs of PyPI."""

from .table import BUILD


def environment(mpi):
    """What ranks need so that a program finds this MPI, under Debian's name for it (libmpich.so.12) too,
    and what it needs itself."""
    folder = BUILD / "abi" / mpi.name
    folder.mkdir(parents=True, exist_ok=True)
    library = next((mpi.folder / "lib").rglob("libmpi.so.12")).resolve()
    (folder / "libmpich.so.12").unlink(missing_ok=True)
    (folder / "libmpich.so.12").symlink_to(library)
    libfabric = next((mpi.folder / "lib").rglob("libfabric.so.1")).parent
    return {"LD_LIBRARY_PATH": f"{folder}:{library.parent}:{libfabric}"}
