#!/usr/bin/env python3
"""`pip install mpich mpi4py isthmus` as an ordinary user, and a job over what that has installed.

    tests/packaging/wheel.py [WHEEL]

Without WHEEL it is that of tools/wheel.sh --here, of what tools/build.sh has made. The environment is new, and belongs to a user without
rights; pip fetches MPICH and mpi4py from the package index. Exit status 0 when all holds.
"""

import os
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


class User:
    """Somebody without rights, with a home of their own."""

    def __init__(self, home):
        self.home = home
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    def run(self, *command, seconds=60, **env):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "FI_", "ISTHMUS_"))}
        env = {**kept, "PATH": f"{self.home}/venv/bin:/usr/bin:/bin", "HOME": str(self.home), "LC_ALL": "C", **env}
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
        there = home / wheel.name
        there.write_bytes(wheel.read_bytes())
        there.chmod(0o644)
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        user = User(home)
        user.run("python3", "-m", "venv", home / "venv")
        user.run("pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--only-binary", ":all:",
                 f"mpich=={pinned['MPICH_VERSION']}", f"mpi4py=={pinned['MPI4PY_VERSION']}", there, seconds=300)  # fmt: skip
        own = str(home / "venv/lib/isthmus")
        for command in (["isthmus"], ["python", "-m", "isthmus"]):
            said = user.run(*command, "env", "--mpi", "mpich")
            require(f"FI_PROVIDER_PATH={own}" in said, "isthmus env does not find the wheel's own provider", said)
        said = user.run("sh", "-c", 'eval "$(isthmus env --mpi mpich --no-shared-memory)"; mpiexec -n 2 python -c "$RING"',
                        RING=RING)  # fmt: skip
        require(said.count(f"carried by {own}/libisthmus-fi.so") == 2, "the job did not go by the wheel's provider", said)
        said = user.run("isthmus-cp", "--help")
        require("mpiexec" in said, "isthmus-cp is not the mover of MPI programs", said)
        said = user.run("python", "-c", "import isthmus; print(isthmus.__file__)")
        require(str(home) in said, "the Python binding does not load", said)
        user.run("pip", "uninstall", "--yes", "--quiet", "--disable-pip-version-check", "isthmus")
        left = [str(path) for path in (home / "venv").rglob("*") if path.is_file() and "isthmus" in str(path.relative_to(home))]
        require(not left, "pip uninstall leaves something", left)
    print("wheel: installed by an ordinary user, a job has run over it, and nothing is left of it")


if __name__ == "__main__":
    main()
