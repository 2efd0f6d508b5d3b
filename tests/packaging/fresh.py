"""A fresh Debian, as small as debootstrap makes it, for trying packages in.

Each is made once, in build/fresh (half a minute). Each trial sees it through an overlay of its own, so that afterwards
the overlay holds exactly what the trial has changed. Needs root.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The newest that packages are made for, and the oldest that there is.
NEW, OLD = "bookworm", "bullseye"
# Not in a smallest Debian; they make the daemons' user and folders. Trials without them hide them.
MORE = {NEW: ["--include=systemd-standalone-sysusers,systemd-standalone-tmpfiles"], OLD: []}
# Two ranks of what job() has lent, over the provider that isthmus finds.
JOB = """
eval "$(isthmus env --mpi mpich --no-shared-memory 2>/dev/null)"
echo "provider in $FI_PROVIDER_PATH"
/tmp/lent/mpich/bin/mpiexec -n 2 /tmp/lent/job/ring
"""
# Stops what is left of a trial with it: it is the first process of its own process namespace.
INSIDE = """
set -eu
mount -t tmpfs none "$TRIAL"
mkdir "$TRIAL/upper" "$TRIAL/work" "$TRIAL/root"
mount -t overlay none -o "lowerdir=$FRESH,upperdir=$TRIAL/upper,workdir=$TRIAL/work" "$TRIAL/root"
mount -t proc none "$TRIAL/root/proc"
mount --rbind /dev "$TRIAL/root/dev"
mount -t tmpfs none "$TRIAL/root/tmp"
mount -t tmpfs none "$TRIAL/root/dev/shm"
for folder in $LENT; do
    mkdir -p "$TRIAL/root/tmp/lent/${folder##*/}"
    mount --bind -o ro "$folder" "$TRIAL/root/tmp/lent/${folder##*/}"
done
ip link set lo up
cp "$SCRIPT" "$TRIAL/root/tmp/trial.sh"
chroot "$TRIAL/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh -eu /tmp/trial.sh
# What is left of it: files, and folders that were not there before.
cd "$TRIAL/upper"
find . -mindepth 1 | sed 's|^\\./||' | sort | while read -r path; do
    if [ -d "$path" ] && [ -d "$FRESH/$path" ]; then continue; fi
    echo "left: $path"
done
"""


def made(codename):
    """The folder of the fresh Debian, which is made where it is missing."""
    fresh = ROOT / "build/fresh" / codename
    if os.geteuid() != 0:
        raise SystemExit("FAILED: packages are tried in a root of their own, which needs root: run this as root")
    stamp = fresh / ".complete"
    if not stamp.exists():
        if not shutil.which("debootstrap"):
            raise SystemExit("FAILED: debootstrap is missing: run tools/bootstrap.sh packages")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        command = ["debootstrap", "--variant=minbase", *MORE[codename], codename, fresh, *mirror()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"FAILED: debootstrap: exit {done.returncode}; its last lines:\n{done.stdout[-2000:]}")
        shutil.rmtree(fresh / "var/cache/apt/archives")
        stamp.touch()
    return fresh


def version():
    """The line that `isthmus --version` prints where it was made of these sources."""
    done = subprocess.run([ROOT / "tools/version.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return f"isthmus {done.stdout.strip()}"


def mirror():
    """Where apt on this machine gets Debian, else debootstrap's own choice."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main", "Origin: Debian"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return found.stdout.split()[:1]


def trial(script, lent=(), seconds=120, codename=NEW):
    """Runs a shell script in a fresh Debian. The folders lent are below /tmp/lent there, read-only. Returns what it
    said, and the paths that it has left behind."""
    fresh = made(codename)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "script").write_text(script)
        (Path(name) / "trial").mkdir()
        env = {**os.environ, "TRIAL": f"{name}/trial", "SCRIPT": f"{name}/script", "FRESH": str(fresh), "LENT": " ".join(map(str, lent))}
        command = ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise SystemExit(f"FAILED: in a fresh Debian: exit {done.returncode}\n{done.stdout}")
    lines = done.stdout.splitlines()
    left = [line.removeprefix("left: ") for line in lines if line.startswith("left: ")]
    return "\n".join(line for line in lines if not line.startswith("left: ")), left


def job(folder, glibc=None):
    """What JOB needs, as folders to lend; its program is compiled into a folder below this one, for this version of
    glibc."""
    mpich, program = ROOT / "build/mpi/mpich", Path(folder) / "job/ring"
    if not (mpich / "bin/mpicc").exists():
        raise SystemExit("FAILED: build/mpi/mpich is missing: run tools/bootstrap.sh mpich")
    program.parent.mkdir()
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wl,-rpath,/tmp/lent/mpich/lib"]
    zig = f"{ROOT}/build/manylinux/bin/python-zig cc -target {os.uname().machine}-linux-gnu.{glibc}"
    env = {**os.environ, "MPICH_CC": zig if glibc else "cc"}
    subprocess.run([mpich / "bin/mpicc", *flags, "-o", program, ROOT / "tests/mpi/ring.c"], check=True, env=env)
    return [mpich, program.parent]
