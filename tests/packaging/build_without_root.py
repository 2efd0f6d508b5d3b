#!/usr/bin/env python3
"""What `make build`, `make wheel`, `make demo` and `make test` ask for, as an ordinary user without dpkg, apt and sudo.

A copy of tools/bootstrap.sh, where nothing is installed yet, runs with a PATH of its own: links to a few commands of
this machine. Exit status 0 when all holds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Neither dpkg, apt-get, apt-cache, sudo nor flock is among them.
PLAIN = "bash sh env mktemp rm mkdir dirname awk sed sort head grep cat".split()
NOBODY = 65534
# Components, the Debian packages that stand for what they need, and some that only others need.
WANTED = (
    (("demo", "rust", "mpich"), ("gcc", "libc6-dev", "pkg-config", "python3-venv"), ("iperf3", "gdb")),
    (("rust", "manylinux"), ("gcc", "python3-venv"), ("pkg-config", "iperf3", "gdb")),
    (("--rights",), ("gcc", "python3-venv", "iperf3", "gdb", "openmpi-bin", "libhwloc15", "debootstrap"), ("qemu-user-static",)),
)


def tools_in(folder, *commands):
    """A folder for PATH with links to these commands."""
    folder.mkdir(parents=True)
    for command in commands:
        found = shutil.which(command)
        if not found:
            raise SystemExit(f"build_without_root: {command} is not in PATH")
        (folder / command).symlink_to(found)
    return folder


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def bootstrap(path, home, *words):
    """Asks as an ordinary user for these components, else for what `make build` needs. Returns the exit status and what
    was said."""
    env = {"PATH": str(path), "HOME": str(home), "LC_ALL": "C"}
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [shutil.which("bash"), home.parent / "tools/bootstrap.sh", *(words or ["compile"])],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False, **user,
    )  # fmt: skip
    return done.returncode, done.stdout


def require(condition, what, said):
    if not condition:
        raise SystemExit(f"FAILED: {what}; it said:\n{said}")


def main():
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        work.chmod(0o755)
        home = work / "home"
        for folder in (home, work / "build", work / "tools"):
            folder.mkdir()
        for file in ("bootstrap.sh", "versions.env"):
            shutil.copy(ROOT / "tools" / file, work / "tools")
        version = next(
            line.split("=")[1] for line in (ROOT / "tools/versions.env").read_text().splitlines() if line.startswith("RUST_VERSION=")
        )

        bare = tools_in(work / "bare", *PLAIN)
        status, said = bootstrap(bare, home)
        require(status == 3, "without a compiler the status is 3", said)
        for word in ("C compiler", "module load gcc", f"Rust {version}", "sh.rustup.rs", "without root"):
            require(word in said, f'the remedy names "{word}"', said)
        require("apt could not" not in said and "Debian packages:" not in said, "it does not ask apt", said)

        # All that is missing is told at once, and no more than is needed.
        for words, needed, further in WANTED:
            status, said = bootstrap(bare, home, *words)
            require(status == 3 and said.count("error:") == 1, f"{words} end with one error", said)
            for word in (*needed, "not Debian", f"Rust {version}", "sh.rustup.rs"):
                require(said.count(word) == 1, f'{words} name "{word}" once', said)
            for word in further:
                require(word not in said, f'{words} do not ask for "{word}"', said)
        script(bare / "apt-get", "exit 1")
        status, said = bootstrap(bare, home, "--rights")
        require(status == 3 and "As root:\n      apt-get install gcc libc6-dev" in said, "an administrator's command is told", said)

        # A cc that cannot make a program is none.
        script(bare / "cc", "exit 1")
        status, said = bootstrap(bare, home)
        require(status == 3 and "C compiler" in said, "a compiler that cannot link does not count", said)

        good = tools_in(work / "good", *PLAIN, "cc", "as", "ld")
        script(good / "rustc", f"echo 'rustc {version} (0 2000-01-01)'")
        script(good / "cargo", f"echo 'cargo {version}'")
        status, said = bootstrap(good, home)
        require(status == 0, "with cc and cargo nothing is missing", said)
        for command in ("python3", "pkg-config"):
            script(good / command, "exit 0")
        status, said = bootstrap(good, home, "--rights", "demo", "rust")
        require(status == 0 and not said, "nothing is asked for that is there", said)

        # rustup of the home folder is found without PATH.
        (good / "rustc").unlink()
        (good / "cargo").unlink()
        status, said = bootstrap(good, home)
        require(status == 3 and "C compiler" not in said, "only Rust is missing", said)
        (home / ".cargo/bin").mkdir(parents=True)
        script(home / ".cargo/bin/rustc", f"echo 'rustc {version} (0 2000-01-01)'")
        script(home / ".cargo/bin/cargo", f"echo 'cargo {version}'")
        status, said = bootstrap(good, home)
        require(status == 0, "~/.cargo/bin is found", said)
    print("passed: an ordinary user learns at once what is missing and how to get it; make build asks for cargo and cc only")


if __name__ == "__main__":
    sys.exit(main())
