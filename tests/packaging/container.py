#!/usr/bin/env python3
"""packaging/container/isthmus-container: a job inside a container goes by this host's provider.

The container is podman's, of the fresh Debian that packages are tried in; MPICH of build/mpi is bound into it in place
of an MPI of its own. The provider is that of the tarball. It runs in namespaces of its own, with which its mounts go. Exit status 0
when all holds; Apptainer and Docker are not tried.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fresh import NEW, ROOT, job, made

# Which library carries a rank stands in the list of what it has mapped.
COMMAND = """
/tmp/lent/mpich/bin/mpiexec -n 2 sh -c '/tmp/lent/job/ring 64M & rank=$!
while kill -0 $rank 2>/dev/null; do grep -o "/opt/.*fi.so" /proc/$rank/maps; sleep 0.05; done | sort -u; wait $rank'
"""
# What crun wants to see, and not beside cgroups of version 1.
ENTER = """
ip link set lo up
[ -e /sys/fs/cgroup/cgroup.controllers ] || { umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; }
exec "$@"
"""


def main():
    if not shutil.which("podman"):
        raise SystemExit("FAILED: container: podman is missing: run tools/bootstrap.sh recipes")
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["tar", "-C", name, "-xzf", *(ROOT / "build/tarball").glob(f"isthmus-*-{os.uname().machine}-*.tar.gz")], check=True)
        (isthmus,) = Path(name).glob("isthmus-*/bin/isthmus")
        volumes = [f"--volume {folder}:/tmp/lent/{folder.name}:ro" for folder in job(name)]
        # Nothing of podman outlives this: neither images nor containers. Its own limits may be above this machine's.
        podman = f"--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --cgroups disabled --log-driver none {' '.join(volumes)} --rootfs"
        storage = Path(name) / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{name}/graph"\nrunroot = "{name}/run"\n')
        env = {**os.environ, "ISTHMUS": str(isthmus), "RUN_OPTIONS": podman, "CONTAINERS_STORAGE_CONF": str(storage)}
        script = [ROOT / "packaging/container/isthmus-container", "--no-shared-memory", "podman", f"{made(NEW)}:O", "sh", "-c", COMMAND]
        done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", ENTER, "sh", *script], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)  # fmt: skip
    print(done.stdout)
    if done.returncode or "OK ring" not in done.stdout or "/opt/isthmus/libisthmus-fi.so" not in done.stdout:
        raise SystemExit(f"FAILED: container: the job has not run over this host's provider; exit {done.returncode}\n{done.stdout}")
    print("container: a job inside it went by the provider of this host")


if __name__ == "__main__":
    main()
