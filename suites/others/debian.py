"""What Debian's archive carries, below build/suites/: source packages, programs of packages."""

import re
import shutil
import subprocess
from pathlib import Path

from .table import BUILD, Unavailable

ARCHIVE = "http://deb.debian.org/debian"


def source(package, folder, release=None):
    """A folder of a source package's upstream archive, unpacked; of this system's release by default."""
    release = release or this_release()
    kept = BUILD / "source" / f"{package}-{release}" / folder
    if kept.exists():
        return kept
    work = emptied(BUILD / "fetch" / f"{package}-{release}")
    print(f"suites: fetching the source package {package} of Debian's {release}", flush=True)
    got = subprocess.run(
        [*apt_get(work, f"deb-src {ARCHIVE} {release} main"), "source", "--download-only", "--tar-only", package],
        cwd=work,
        stdout=subprocess.DEVNULL,
    )
    archives = list(work.glob(f"{package}_*.orig.tar.*"))
    if got.returncode or not archives:
        raise Unavailable(f"apt-get could not fetch the source package {package}: is Debian's archive within reach?")
    members = subprocess.run(["tar", "-tf", archives[0]], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(rf"^([^/\n]+/{re.escape(folder)})/", members, re.M)
    if not found:
        raise Unavailable(f"{archives[0].name} carries no {folder}")
    subprocess.run(["tar", "-C", work, "--no-same-owner", "-xf", archives[0], found.group(1)], check=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    (work / found.group(1)).rename(kept)
    shutil.rmtree(work)
    return kept


def unpacked(package):
    """The files of a binary package of this system's release, unpacked but not installed."""
    kept = BUILD / "packages" / package
    if kept.exists():
        return kept
    work = emptied(BUILD / "fetch" / package)
    print(f"suites: fetching Debian's package {package}", flush=True)
    apt = apt_get(work, f"deb {ARCHIVE} {this_release()} main")
    got = subprocess.run([*apt, "download", package], cwd=work, stdout=subprocess.DEVNULL)
    archives = list(work.glob("*.deb"))
    if got.returncode or not archives:
        raise Unavailable(f"apt-get could not fetch {package}: is Debian's archive within reach?")
    subprocess.run(["dpkg", "-x", archives[0], work / "files"], check=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    (work / "files").rename(kept)
    shutil.rmtree(work)
    return kept


def this_release():
    lines = (line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return dict(lines).get("VERSION_CODENAME", "bookworm").strip('"')


def apt_get(work, line):
    """apt-get with lists of its own: the system's need not name source packages."""
    (work / "sources.list").write_text(line + "\n")
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-q"] + [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    if subprocess.run([*apt, "update"], stdout=subprocess.DEVNULL).returncode:
        raise Unavailable(f"apt-get could not read the lists of {ARCHIVE}: is it within reach?")
    return apt


def emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
