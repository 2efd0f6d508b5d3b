#!/usr/bin/env python3
"""The wheel for aarch64, run by qemu: pip installs it, its commands and its binding run, and a job of two ranks. The
tarball: its command runs, and finds its own provider.

    tests/packaging/aarch64.py [WHEEL [TARBALL]]

Without WHEEL it is that of `make wheel ARCH=aarch64`. Python and its libraries for aarch64 are those of Debian
(tools/bootstrap.sh aarch64), MPICH and mpi4py those of the package index. Everything runs in namespaces of its own, in
which alone the kernel starts such programs by qemu; that takes Linux 6.7. Exit status 0 when all holds.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from wheel import PACKAGES, RING, ROOT, require, versions

# "P": programs learn the name that they were called by. "F": the kernel opens qemu now, whatever the namespaces see
# later. The pattern is the head of an ELF file for aarch64.
QEMU = (
    r":aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:PF"
)
INSIDE = """
ip link set lo up
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$QEMU" >/proc/sys/fs/binfmt_misc/register
exec sh -eux trial.sh
"""
# Programs start slowly under qemu: the longest that one may take, and the whole trial. Seconds.
PROGRAM_MAX, TRIAL_MAX = 180, 1500
# What two ranks go by, beside shared memory.
LANES = {"memory": "", "tcp": "FI_ISTHMUS_FABRIC=off FI_ISTHMUS_TRANSPORT=tcp", "udp": "FI_ISTHMUS_FABRIC=off FI_ISTHMUS_TRANSPORT=udp"}
SCRIPT = """
most() { timeout --kill-after=5 "$PROGRAM_MAX" "$@"; }
"$PYTHON" -m venv --without-pip venv
PYTHONPATH=$PIP most venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --find-links . isthmus mpich mpi4py
PATH=$PWD/venv/bin:$PATH
isthmus --version
isthmus env --mpi mpich
isthmus-cp --help | grep -c mpiexec
python -c 'import platform; print("processor", platform.machine())'

most python "$EXAMPLES/coupled.py" >uri &
most sh -c 'until [ -s uri ]; do sleep 0.1; done'
most python "$EXAMPLES/coupled.py" "$(cat uri)"
wait

mkdir data
isthmus serve --config serve.toml 2>served &
serve=$!
most sh -c 'until grep -q :4290 served; do sleep 0.1; done'
# The qemu of Debian 12 lacks the call that keeps the service within its folder. The copy gets as far as that.
if most isthmus cp --plain big 127.0.0.1:4290:data/ 2>copied; then cmp big data/big; else grep "has no openat2" copied; fi
kill $serve

if [ -n "$TARBALL" ]; then
    tar -xzf "$TARBALL"
    isthmus-*/bin/isthmus env --mpi mpich
fi

eval "$(isthmus env --mpi mpich --no-shared-memory)"
"""
SERVE = 'listen = "127.0.0.1:4290"\nplain = true\n[export.data]\npath = "{}/data"\nwritable = true\n'


def main():
    debian = ROOT / "build/aarch64"
    if not (debian / ".bootstrapped").exists():
        raise SystemExit("FAILED: aarch64: build/aarch64 is missing: run tools/bootstrap.sh aarch64")
    wheel = [Path(path) for path in sys.argv[1:2]] or list((ROOT / "build/wheel").glob("isthmus-*_aarch64.whl"))
    if len(wheel) != 1:
        raise SystemExit("FAILED: aarch64: there is not one wheel in build/wheel: run make wheel ARCH=aarch64")
    tarball = [Path(path).resolve() for path in sys.argv[2:3]]
    manylinux = ROOT / "build/manylinux"
    (pip,) = manylinux.glob("lib/python*/site-packages")
    (python,) = debian.glob("usr/bin/python3.?*")
    pinned = versions()
    fetched = [f"{name}=={pinned[PACKAGES[name]]}" for name in ("mpich", "mpi4py")]
    tags = [f"--platform=manylinux{tag}_aarch64" for tag in ("_2_28", "_2_17", "2014")]
    tags += [f"--python-version={python.name.removeprefix('python')}", "--implementation=cp"]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # By itself: what else is in that environment, such as cffi, would count as installed.
        (work / "pip").mkdir()
        (work / "pip/pip").symlink_to(pip / "pip")
        subprocess.run([manylinux / "bin/pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
                        "--dest", work, *tags, *fetched, wheel[0].resolve()], check=True, timeout=600)  # fmt: skip
        jobs = "".join(f'most env {lanes} mpiexec -n 2 python -c "$RING"\necho "by {kind}"\n' for kind, lanes in LANES.items())
        (work / "trial.sh").write_text(SCRIPT + jobs)
        (work / "serve.toml").write_text(SERVE.format(work))
        (work / "big").write_bytes(bytes(range(256)) * 50_000)
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": name, "LC_ALL": "C.UTF-8", "QEMU": QEMU, "QEMU_LD_PREFIX": str(debian),
               "PYTHON": str(python), "PIP": str(work / "pip"), "EXAMPLES": str(ROOT / "examples/python"), "RING": RING,
               "TARBALL": str(*tarball), "PROGRAM_MAX": str(PROGRAM_MAX)}  # fmt: skip
        # What it has said by then is told also if it does not end.
        command = ["timeout", "--kill-after=5", str(TRIAL_MAX), "unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc",
                   "--pid", "--fork", "--kill-child", "--mount-proc"]  # fmt: skip
        done = subprocess.run([*command, "sh", "-eu", "-c", INSIDE], env=env, cwd=work, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    said = done.stdout
    print(said)
    require(done.returncode == 0, f"the trial ended with status {done.returncode}", said)
    require("processor aarch64" in said, "this is no aarch64", said)
    require(f"FI_PROVIDER_PATH={work}/venv/lib/isthmus" in said, "isthmus env does not find the wheel's own provider", said)
    for path in tarball:
        folder = path.name.removesuffix(".tar.gz")
        require(f"FI_PROVIDER_PATH={work}/{folder}/lib/isthmus" in said, "the tarball's command does not find its own provider", said)
    require("bit by bit" in said, "the two programs of the binding did not talk", said)
    require(said.count(f"carried by {work}/venv/lib/isthmus/libisthmus-fi.so") == 2 * len(LANES), "a job did not go by the provider", said)
    print("aarch64: the wheel runs under qemu: its commands, its binding, and jobs of two ranks by shared memory, TCP and UDP")


if __name__ == "__main__":
    main()
