#!/usr/bin/env python3
"""What `make build` asks for, as an ordinary user without dpkg, apt and sudo.

tools/bootstrap.sh runs with a PATH of its own: links to a few commands of this machine. Exit status 0 when all
holds.
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


def bootstrap(path, home):
    """Runs the check as an ordinary user. Returns the exit status and what was said."""
    env = {"PATH": str(path), "HOME": str(home), "LC_ALL": "C"}
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [shutil.which("bash"), ROOT / "tools/bootstrap.sh", "compile"],
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
        home.mkdir()
        version = next(
            line.split("=")[1] for line in (ROOT / "tools/versions.env").read_text().splitlines() if line.startswith("RUST_VERSION=")
        )

        bare = tools_in(work / "bare", *PLAIN)
        status, said = bootstrap(bare, home)
        require(status == 3, "without a compiler the status is 3", said)
        for word in ("C compiler", "module load gcc", f"Rust {version}", "sh.rustup.rs", "without root"):
            require(word in said, f'the remedy names "{word}"', said)
        require("apt could not" not in said and "Debian packages:" not in said, "it does not ask apt", said)

        # A cc that cannot make a program is none.
        script(bare / "cc", "exit 1")
        status, said = bootstrap(bare, home)
        require(status == 3 and "C compiler" in said, "a compiler that cannot link does not count", said)

        good = tools_in(work / "good", *PLAIN, "cc", "as", "ld")
        script(good / "rustc", f"echo 'rustc {version} (0 2000-01-01)'")
        script(good / "cargo", f"echo 'cargo {version}'")
        status, said = bootstrap(good, home)
        require(status == 0, "with cc and cargo nothing is missing", said)

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
    print("passed: make build asks for cargo and cc only, and says how to get them without root")


if __name__ == "__main__":
    sys.exit(main())
