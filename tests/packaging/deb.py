#!/usr/bin/env python3
"""The Debian package: lintian is silent, it installs in a fresh Debian, a job runs over it, and nothing is left of it.

tools/deb.sh packs what tools/build.sh has made. The job is two ranks of MPICH from build/mpi, which is lent to the
fresh Debian. Without root the package is built and checked only. Exit status 0 when all holds.
"""

import os
import subprocess
import tempfile

from fresh import JOB, ROOT, job, trial, version

# What apt, dpkg and ldconfig keep of their own.
OF_SYSTEM = ("var/lib/dpkg", "var/log", "var/cache/ldconfig", "var/cache/debconf", "var/cache/apt", "var/lib/apt", "etc/ld.so.cache")
# Users stay, as is the custom in Debian: files may still belong to them.
OF_USERS = ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock")
WITHOUT_SYSTEMD = "rm /bin/systemd-sysusers /bin/systemd-tmpfiles\n"
HIDDEN = ("bin/systemd-sysusers", "bin/systemd-tmpfiles", "usr/bin/systemd-sysusers", "usr/bin/systemd-tmpfiles")
SCRIPT = r"""
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o Dir::State::lists=/tmp/none install -y /tmp/lent/deb/isthmus_*.deb >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
isthmus --version
zgrep -q "^rustls " /usr/share/doc/isthmus/THIRD-PARTY.gz
""" + JOB + r"""
isthmus run --job none --part 1/1 --pmix -- true 2>&1 && exit 1
[ ! -d /etc/isthmus ] || stat -c 'folder %n %U:%G %a' /etc/isthmus /etc/isthmus/keys /var/lib/isthmus
[ ! -e /etc/systemd/system/multi-user.target.wants ] || ls /etc/systemd/system/multi-user.target.wants
apt-get -qq -o Dir::State::lists=/tmp/none purge -y isthmus >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
"""


def require(condition, what, said):
    if not condition:
        raise SystemExit(f"FAILED: deb: {what}; it said:\n{said}")


def check(name, script, lent):
    said, left = trial(script, lent)
    print(f"--- {name}\n{said}")
    require(version() in said, f"this is not {version()}", said)
    require("provider in /usr/lib/" in said, "isthmus env does not find the package's provider", said)
    require("OK ring" in said, "the two-rank job has not run", said)
    require("install libpmix 4 or later (Debian: libpmix2)" in said, "isthmus run does not say how to serve PMIx", said)
    require("isthmus-" not in said.split("OK ring")[1], "a daemon is enabled", said)
    found = [path for path in left if not path.startswith((*OF_SYSTEM, *OF_USERS)) and path not in HIDDEN]
    require(not found, "something is left after purge", "\n".join(found))
    mine = [path for path in left if "isthmus" in path]
    require(not mine, "dpkg still knows the package after purge", "\n".join(mine))
    return said


def main():
    subprocess.run([ROOT / "tools/deb.sh"], check=True)
    if os.geteuid() != 0:
        print("deb: lintian is silent; installing it in a fresh Debian needs root, and was not tried")
        return
    with tempfile.TemporaryDirectory() as name:
        lent = [ROOT / "build/deb", *job(name)]
        check("without systemd", WITHOUT_SYSTEMD + SCRIPT, lent)
        said = check("with systemd's users and folders", SCRIPT, lent)
        # Users read isthmus.toml there, and nobody but the daemons reads keys.
        for folder in ("/etc/isthmus root:isthmus 755", "/etc/isthmus/keys root:isthmus 750"):
            require(f"folder {folder}" in said, "the daemons' folders are not there", said)
    print("deb: lintian is silent, a job has run over it in a fresh Debian, and nothing is left of it")


if __name__ == "__main__":
    main()
