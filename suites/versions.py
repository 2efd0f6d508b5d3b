#!/usr/bin/env python3
"""One libisthmus-fi.so in old and new MPIs, each with the libfabric that it brings: one table.

    suites/versions.py                 all of them
    suites/versions.py mpich-4.0.3     some, by what --list calls them
    suites/versions.py --list

The MPIs are wheels from PyPI, put into build/mpi/NAME, and Debian's packages. With the newest MPICH programs
run by the standard ABI of MPI 5 too. Of Debian's MPICH only programs: it can load no libfabric provider itself, so what was built for it runs by
library path on MPIs with the same ABI. Each runs four programs whose data is verified, and says
itself that it took the provider. What fails is run over tcp;ofi_rxm too. The exit status is 1 if
anything fails that does not fail there.
Logs: build/logs/suites/versions/
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from others import abi, debian, table  # noqa: E402
from harness import cases, mpis, process  # noqa: E402

# Program, ranks, arguments: Sendrecv, ping-pong, collectives, one-sided communication.
PROGRAMS = [("ring", 4, ["4M"]), ("pingpong", 2, ["8M"]), ("collectives", 4, ["256k"]), ("onesided", 4, ["256k"])]
SECONDS = 120
# What of PyPI is tried beside the versions that tools/versions.env names.
MPICHS, OPENMPIS = ("3.4.3", "4.0.3", "4.1.3", "4.2.3", "4.3.2", "5.0.0"), ("4.1.7", "4.1.8", "5.0.8", "5.0.10")
INTELS = ("2021.13.1", "2021.16.2")
TITLES = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI"}
# A libfabric's version, as it says it itself.
FI_TYPE_VERSION = 18
VERSION_OF = f"""
import ctypes, sys
said = ctypes.CDLL(sys.argv[1]).fi_tostr
said.restype = ctypes.c_char_p
print(said(ctypes.byref(ctypes.c_int()), {FI_TYPE_VERSION}).decode())
"""
# What the oldest MPICH wants to name the provider that it took.
VERBOSE_3 = {"MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG": "1"}


class WheelOpenMpi4(mpis.DebianOpenMpi):
    """Open MPI 4.1 from PyPI."""

    def launcher(self):
        return str(self.folder / "bin" / "mpirun")

    def mpicc(self):
        return [str(self.folder / "bin" / "mpicc")]


class ForDebianMpich:
    """Programs compiled with the header and library of Debian's MPICH, on another MPI."""

    @property
    def folder(self):
        return mpis.BUILD / "mpi" / self.name.split("-on-")[1]

    def mpicc(self):
        return ["gcc"]

    def compile_command(self, source, output, *more):
        header = next(debian.unpacked("libmpich-dev").rglob("mpich/mpi.h")).parent
        library = next(debian.unpacked("libmpich12").rglob("libmpich.so.12"))
        return [*super().compile_command(source, output, *more), f"-I{header}", library, "-Wl,--allow-shlib-undefined"]

    def command(self, ranks, program, transport, place=mpis.HOST, env=None):
        return super().command(ranks, program, transport, place, {**(env or {}), **abi.environment(self)})


class DebianMpich(ForDebianMpich, mpis.Mpich):
    pass


class DebianIntel(ForDebianMpich, mpis.Intel):
    pass


@dataclass
class Version:
    """An MPI and what installs it: requirements of pip, or none."""

    mpi: mpis.Mpi
    requirements: tuple = ()
    more: tuple = ()  # programs beyond PROGRAMS: a function that gives the file, ranks, arguments


def versions():
    pinned = dict(re.findall(r"^(\w+)_VERSION=(.*)$", (table.ROOT / "tools" / "versions.env").read_text(), re.M))

    def copy(of, name, title, kind=None):
        mpi = mpis.MPIS[of]
        return (kind or type(mpi))(name, title, mpi.couples, mpi.verbose, mpi.named)

    def like(of, number, kind=None):
        return copy(of, f"{of}-{number}", f"{TITLES[of]} {number}", kind)

    def newest(of, variable):
        return Version(copy(of, of, f"{TITLES[of]} {pinned[variable]}"))

    for number in MPICHS:
        mpi = like("mpich", number)
        mpi.verbose = mpi.verbose | VERBOSE_3
        yield Version(mpi, (f"mpich=={number}",))
    yield newest("mpich", "MPICH")
    yield Version(mpis.STANDARD_ABI)
    for number in OPENMPIS:
        yield Version(like("openmpi", number, WheelOpenMpi4 if number < "5" else None), (f"openmpi=={number}",))
    yield newest("openmpi", "OPENMPI")
    yield Version(mpis.MPIS["debian-openmpi"])
    for number in INTELS:
        yield Version(like("intel", number), (f"impi-rt=={number}", f"impi-devel=={number}"))
    yield newest("intel", "IMPI")
    for name, kind in (("mpich", DebianMpich), ("mpich-4.0.3", DebianMpich), ("intel", DebianIntel)):
        mpi = copy(name.split("-")[0], f"debian-mpich-on-{name}", f"for Debian's MPICH, on {name}", kind)
        yield Version(mpi, more=((mpivars, 2, []),))


def mpivars():
    """A program of Debian's, as Debian compiled it."""
    return debian.unpacked("mpich") / "usr" / "bin" / "mpivars"


def main():
    options = arguments()
    options.logs.mkdir(parents=True, exist_ok=True)
    chosen = [version for version in versions() if not options.name or version.mpi.name in options.name]
    if options.list:
        print("\n".join(f"{version.mpi.name:28} {version.mpi.title}" for version in chosen))
        return 0
    names = [name for name, _, _ in PROGRAMS]
    print(f"{'MPI':36}  {'libfabric':20}  {', '.join(names)}")
    failed = 0
    for version in chosen:
        inside, outcomes = tried(version, options)
        wrong = [f"{program}: {outcome.detail}" for program, outcome in outcomes.items() if outcome.verdict != table.PASS]
        failed += any(outcome.verdict == table.FAIL for outcome in outcomes.values())
        seconds = sum(float(outcome.detail) for outcome in outcomes.values() if outcome.verdict == table.PASS)
        print(f"{version.mpi.title:36}  {inside:20}  {'; '.join(wrong) or f'works ({seconds:.1f} s)'}", flush=True)
    return int(failed > 0)


def tried(version, options):
    """The version of its libfabric, and {program: outcome}."""
    mpi = version.mpi
    try:
        installed(version)
        sources = [mpis.ROOT / "tests" / "mpi" / f"{name}.c" for name, _, _ in PROGRAMS]
        words = mpis.compile_programs(mpi, sources, options.logs / f"{mpi.name}.compile.log")
        if words:
            raise table.Unavailable(f"does not build: {cases.last_words(words)}")
        runs = [(name, mpi.programs / name, ranks, args) for name, ranks, args in PROGRAMS]
        runs += [(file().name, file(), ranks, args) for file, ranks, args in version.more]
        return libfabric_of(mpi), {name: judged(mpi, name, [str(file), *args], ranks, options) for name, file, ranks, args in runs}
    except table.Unavailable as why:
        return "?", {"not run": table.Outcome(table.FAIL, str(why))}


def judged(mpi, name, words, ranks, options):
    """How a program ended; one that fails over the stock provider as well was not run, as it were."""
    outcome = ran(mpi, name, words, ranks, "isthmus", options)
    if outcome.verdict == table.PASS or ran(mpi, name, words, ranks, "rxm", options).verdict == table.PASS:
        return outcome
    return table.Outcome(table.ABSENT, f"{outcome.detail}; over tcp;ofi_rxm it fails too")


def ran(mpi, name, words, ranks, transport, options):
    command, env = mpi.command(ranks, words, transport, env=mpi.verbose)
    ended = process.run(command, env, options.logs / f"{mpi.name}.{name}.{transport}.log", SECONDS)
    took = set(re.findall(mpi.named + r"([\w;]+)", ended.output))
    # Debian's own program verifies nothing and says nothing of ours.
    ours = any(name == program for program, _, _ in PROGRAMS)
    if ended.timed_out:
        return table.Outcome(table.FAIL, f"no end after {SECONDS} s")
    if ended.status or (ours and not re.search(r"^OK \w+: ", ended.output, re.M)):
        return table.Outcome(table.FAIL, f"exit {ended.status}, {cases.last_words(ended.output)}")
    if took != {mpi.libfabric_name(transport)}:
        return table.Outcome(table.FAIL, f"took {', '.join(sorted(took)) or 'no libfabric provider'}")
    return table.Outcome(table.PASS, f"{ended.seconds:.1f}")


def installed(version):
    if version.requirements:
        folder = version.mpi.folder.relative_to(mpis.BUILD)
        bootstrap = [mpis.ROOT / "tools" / "bootstrap.sh", "--venv", folder, *version.requirements]
        if subprocess.run(bootstrap, stdout=subprocess.DEVNULL).returncode:
            raise table.Unavailable("pip could not install it: is the package index within reach?")
    if version.mpi.missing():
        raise table.Unavailable(version.mpi.missing())


def libfabric_of(mpi):
    """The version of the libfabric that it loads."""
    inside = next((mpi.folder / "lib").rglob("libfabric.so.1"), "libfabric.so.1")
    asked = subprocess.run([sys.executable, "-c", VERSION_OF, inside], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return asked.stdout.strip() or "?"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="some of what --list names; default: all")
    parser.add_argument("--list", action="store_true", help="only their names")
    parser.add_argument("--logs", type=Path, default=table.ROOT / "build" / "logs" / "suites" / "versions", metavar="FOLDER")
    options = parser.parse_args()
    for name in options.name:
        if name not in [version.mpi.name for version in versions()]:
            parser.error(f'no MPI "{name}"; --list names them')
    return options


if __name__ == "__main__":
    os.chdir(table.ROOT)
    sys.exit(main())
