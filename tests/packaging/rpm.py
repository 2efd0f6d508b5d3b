#!/usr/bin/env python3
"""The RPM: rpmlint is silent, rpm installs it into a folder, `isthmus` works from there, and rpm removes it.

tools/rpm.sh packs what tools/portable.sh has made. RPM's own dependencies and scripts are left out, since this is not
one of its distributions: what a RHEL says is not tried here. Exit status 0 when all holds.
"""

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"FAILED: rpm: {' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def files(folder):
    return [str(path) for path in folder.rglob("*") if path.is_file() or path.is_symlink()]


def main():
    subprocess.run([ROOT / "tools/rpm.sh"], check=True)
    (package,) = (ROOT / "build/rpm").glob("isthmus-*.rpm")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name) / "root"
        top.mkdir()
        rpm = ["rpm", "--root", top, "--dbpath", "/db"]
        run(*rpm, "--install", "--nodeps", "--noscripts", package)
        said = run(top / "usr/bin/isthmus", "env", "--mpi", "openmpi")
        if f"{top}/usr/lib64/isthmus" not in said:
            raise SystemExit(f"FAILED: rpm: isthmus env does not find the package's provider; it said:\n{said}")
        run(*rpm, "--erase", "--noscripts", "isthmus")
        left = files(top / "usr")
        if left:
            raise SystemExit("FAILED: rpm: this is left after erasing:\n" + "\n".join(left))
    print("rpm: rpmlint is silent, isthmus works from where it is installed, and nothing is left of it")


if __name__ == "__main__":
    main()
