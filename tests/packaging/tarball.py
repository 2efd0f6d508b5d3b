#!/usr/bin/env python3
"""The tarball for older systems: unpacked anywhere it works, also on an older Debian, and after it was moved.

tools/tarball.sh packs what tools/portable.sh has made. Lmod loads its module. Exit status 0 when all holds.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from fresh import JOB, OLD, ROOT, job, trial, version

LMOD = "/usr/share/lmod/lmod/libexec/lmod"
SCRIPT = f"""
ldd --version | head -n 1
mkdir "/opt/a place"
tar -C "/opt/a place" -xzf /tmp/lent/tarball/isthmus-*-"$(uname -m)"-*.tar.gz
PATH=$(echo "/opt/a place"/isthmus-*/bin):$PATH
isthmus --version
grep -q "^rustls " "/opt/a place"/isthmus-*/share/doc/isthmus/THIRD-PARTY
{JOB}
mv "/opt/a place"/isthmus-* /opt/moved
PATH=/opt/moved/bin:$PATH
{JOB}
rm -r "/opt/a place" /opt/moved
"""
PROGRAM = '#include <isthmus.h>\nint main(void) { return isthmus_init(ISTHMUS_ABI_VERSION); }\n'


def require(condition, what, said):
    if not condition:
        raise SystemExit(f"FAILED: tarball: {what}; it said:\n{said}")


def on_an_older_debian(folder):
    said, left = trial(SCRIPT, [ROOT / "build/tarball", *job(folder, glibc="2.28")], codename=OLD)
    print(said)
    require(version() in said, f"this is not {version()}", said)
    require(said.count("OK ring") == 2, "the job has not run twice", said)
    require("provider in /opt/a place/" in said and "provider in /opt/moved/" in said, "the provider is not found", said)
    require(not left, "something is left", "\n".join(left))


def by_its_module(folder):
    """A C program is compiled and run, and the command found, by what the module sets alone."""
    subprocess.run(["tar", "-C", folder, "-xzf", *(ROOT / "build/tarball").glob(f"isthmus-*-{os.uname().machine}-*.tar.gz")], check=True)
    (top,) = folder.glob("isthmus-*")
    (folder / "program.c").write_text(PROGRAM)
    script = f"""
    eval "$({LMOD} bash load isthmus)"
    command -v isthmus
    cc -o program program.c $(pkg-config --cflags --libs isthmus)
    ./program && echo initialised
    echo "pages in $MANPATH;"
    """
    env = {"PATH": "/usr/bin:/bin", "MODULEPATH": f"{top}/share/modulefiles", "HOME": str(folder), "LC_ALL": "C"}
    done = subprocess.run(["bash", "-euc", script], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)  # fmt: skip
    print(done.stdout)
    require(f"pages in {top}/share/man:" in done.stdout, "man finds its pages, or the system's, no more", done.stdout)
    require("initialised" in done.stdout and f"{top}/bin/isthmus" in done.stdout, "the module does not lead to it", done.stdout)


def newer_symbols_are_found():
    """tools/glibc.sh fails where a file needs more than it may."""
    file = ROOT / "build/portable/bin/isthmus"
    done = subprocess.run([ROOT / "tools/glibc.sh", "2.27", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    require(done.returncode == 1 and "needs glibc 2.28, newer than 2.27" in done.stdout, "tools/glibc.sh lets it pass", done.stdout)


def main():
    subprocess.run([ROOT / "tools/tarball.sh"], check=True)
    newer_symbols_are_found()
    if not os.path.exists(LMOD):
        raise SystemExit(f"FAILED: tarball: {LMOD} is missing: run tools/bootstrap.sh recipes")
    with tempfile.TemporaryDirectory() as name:
        on_an_older_debian(name)
        by_its_module(Path(name))
    print("tarball: a job has run over it on an older Debian, it was moved, and Lmod has loaded its module")


if __name__ == "__main__":
    main()
