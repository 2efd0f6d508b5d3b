"""The mover between MPI applications: within one job, between two, in Fortran and Python."""

import dataclasses
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import time

from . import mpis, process
from .cases import Case, Failure, Skip, await_journal, await_output, dead_peer, last_words, must_pass, sides


def folder_of(c, name="files"):
    """A fresh folder for a case's files."""
    folder = c.logs.resolve() / f"{c.label}.{c.case}.{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# Little may go ahead of the receives: a source is changed before it is all sent.
SETTINGS = {"FI_ISTHMUS_CREDIT": "1MiB"}


def kinds(c, ranks, senders):
    """Every kind of transfer and failure, between the halves of a job."""
    return c.run(ranks, "mover", "split", folder_of(c), senders, seconds=120, env=SETTINGS)


def jobs(c):
    """The same between two jobs of 3 and 2 ranks, which come together by a file."""
    folder, (here, there) = folder_of(c), sides(c)
    accepting = c.start(2, "mover", "accept", folder, suffix=".accept", place=here, env=SETTINGS)
    connecting = c.start(3, "mover", "connect", folder, suffix=".connect", place=there, env=SETTINGS)
    try:
        return must_pass(connecting.wait(120)) + "; " + must_pass(accepting.wait(120))
    finally:
        accepting.end()
        connecting.end()


def small_disk(c):
    """The receiver's disk is a memory file system of 8 MB: both sides are told so. When there is room
    the same programs end what they began."""
    folder = folder_of(c)
    small, source = folder / "small", folder / "source"
    small.mkdir()
    source.write_bytes(os.urandom(1 << 20) * 40)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], capture_output=True).returncode != 0:
        raise Skip("making a small file system needs the right to mount")

    def copy(suffix):
        receiver = c.start(2, "copy", "receive", f"file:{folder}/port", small / "copy", suffix=f".{suffix}.receive")
        sender = c.start(2, "copy", "send", f"file:{folder}/port", source, suffix=f".{suffix}.send")
        try:
            return [job.wait(60) for job in (sender, receiver)]
        finally:
            sender.end()
            receiver.end()

    words = r"^copy: rank 0 of the receiver: cannot write .*; free some space$"
    try:
        for one in (ended := copy("full")):
            if one.timed_out or one.status == 0 or not re.search(words, one.output, re.M):
                raise Failure(f"exit {one.status}: {last_words(one.output)}")
        if (small / "copy").exists():
            raise Failure("a file that is not whole has its name")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        for one in copy("room"):
            if one.timed_out or one.status != 0:
                raise Failure(f"with room, exit {one.status}: {last_words(one.output)}")
        if os.listdir(small) != ["copy"] or not filecmp.cmp(source, small / "copy", shallow=False):
            raise Failure(f"on the disk: {os.listdir(small)}, or the copy differs")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    return re.search(words, ended[0].output, re.M).group(0)


def layout(c):
    """Lengths of pieces by what file systems were seen to say."""
    return c.run(1, "layout", seconds=30)


def storage_targets(c):
    """Both halves read and write by storage target, as a description file says that the files lie."""
    folder, speeds = folder_of(c), "100,200,200,400"
    source, copy, described = folder / "source", folder / "copy", folder / "layouts.toml"
    source.write_bytes(os.urandom((40 << 20) + 12345))
    described.write_text(f'[[file]]\npath = "{folder}"\nstripe = "1MiB"\ntargets = [0, 1, 2, 3]\n')
    words = ("transfer", source, copy, 256 << 10, "posix", 0, 64 << 20, 1, 1 << 20, "0,1,2,3", speeds, speeds)
    ended = c.start(6, *words, env={"ISTHMUS_LAYOUT": str(described)}).wait(60)
    told = re.search(r"^RESULT (.*)$", ended.output, re.M)
    if ended.timed_out or ended.status != 0 or not told:
        raise Failure(f"exit {ended.status} after {ended.seconds:.0f} s: {last_words(ended.output)}")
    told, size = json.loads(told.group(1)), source.stat().st_size
    if (told["read"], told["written"]) != (size, size) or not filecmp.cmp(source, copy, shallow=False):
        raise Failure(f"the copy differs, or the targets served something else: {told}")
    # A write may meet another: a receiver's rank can write only what it has received.
    if told["reads_met"]:
        raise Failure(f"{told['reads_met']} reads met another at their target, while a target with work idled")
    return f"{told['seconds']:.2f} s; {told['writes_met']} writes met another"


def kinds_by_target(c):
    """Every kind of transfer and failure, of files that lie on three storage targets."""
    folder, described = folder_of(c), folder_of(c, "layouts") / "layouts.toml"
    described.write_text(f'[[file]]\npath = "{folder}"\nstripe = "1MiB"\ntargets = [0, 1, 2]\n')
    return c.run(5, "mover", "split", folder, 3, seconds=120, env={**SETTINGS, "ISTHMUS_LAYOUT": str(described)})


def greeting(c):
    """Which version builds of several ranges speak."""
    return c.run(1, "greeting", seconds=30)


def cache(c):
    """Which way blocks go, by what they took."""
    return c.run(1, "cache", folder_of(c), seconds=30)


class Pair:
    """A transfer that lasts, as long as the lab's link needs for it, of which one job is to be killed;
    and once more, which goes on with it."""

    SIZE = 256 << 20

    def __init__(self, c, killed):
        self.c, self.killed, self.other = c, killed, "sender" if killed == "receiver" else "receiver"
        self.here, self.there = sides(c)
        self.folder = folder_of(c, f"killed-{killed}")
        self.copy, self.source = self.folder / "copy", self.folder / "source"
        with open(self.source, "wb") as file:
            for number in range(self.SIZE >> 20):
                file.write(number.to_bytes(4, "big") * (1 << 18))
        self.jobs = {}

    def start(self, receivers, senders, name, *options):
        port, suffix = f"file:{self.folder}/port", f".{self.killed}.{name}"
        self.jobs = {
            "receiver": self.c.start(receivers, "copy", "receive", port, self.copy, *options, suffix=f"{suffix}.receive", place=self.here),
            "sender": self.c.start(senders, "copy", "send", port, self.source, *options, suffix=f"{suffix}.send", place=self.there),
        }

    def begin_and_kill(self):
        """Kills one once the transfer is under way."""
        self.start(2, 2, "first", "block=65536")
        await_journal(list(self.jobs.values()), self.folder, 30)
        for pid in self.jobs[self.killed].pids():
            os.kill(pid, signal.SIGKILL)
        self.at = time.monotonic()

    def judge(self, words):
        job = self.jobs[self.other]
        ended = job.wait(self.at - job.began + 90)
        told = re.search(words, ended.output, re.M)
        if ended.timed_out or ended.status == 0 or not told:
            raise Failure(f"the {self.other}: exit {ended.status}, {last_words(ended.output)}")
        if self.copy.exists():
            raise Failure("a file that is not whole has its name")
        return f"{self.other} after {time.monotonic() - self.at:.1f} s: {told.group(0)}"[:150]

    def go_on(self):
        """The same by other numbers of ranks, which sends only the rest."""
        self.end()
        self.start(1, 3, "again")
        ended = {side: job.wait(60) for side, job in self.jobs.items()}
        for side, one in ended.items():
            if one.timed_out or one.status != 0:
                raise Failure(f"the {side} of the second run: exit {one.status}, {last_words(one.output)}")
        report = json.loads(re.search(r"^RESULT (.*)$", ended["sender"].output, re.M).group(1))
        if not 0 < report["resumed"] < self.SIZE:
            raise Failure(f"of {self.SIZE} bytes {report['resumed']} were there")
        if not filecmp.cmp(self.source, self.copy, shallow=False):
            raise Failure("the copy differs")
        if left := list(self.folder.glob(".isthmus-*")):
            raise Failure(f"left: {left}")
        return f"{report['resumed'] >> 10} KiB were there"

    def end(self):
        for job in self.jobs.values():
            job.end()


def killed_partner(c):
    """One of the two jobs is killed in mid-transfer: the other ends in bounded time, says why, and
    gives no file its name. MPICH and Intel MPI end the program themselves when the provider gives
    a peer up; an MPI that returns that error has the library tell it. The same programs, run again,
    go on where they were."""
    pairs = []
    try:
        for killed in ("sender", "receiver"):
            pairs.append(Pair(c, killed))
            pairs[-1].begin_and_kill()
        words = rf"^copy: the other application is lost.*|{dead_peer(c)}"
        told = [pair.judge(words) for pair in pairs]
        return "; ".join(told + [pair.go_on() for pair in pairs])
    finally:
        for pair in pairs:
            pair.end()


def python(c):
    """The example for mpi4py."""
    folder = folder_of(c)
    program = [c.mpi.python(), str(mpis.ROOT / "examples" / "mpi" / "halves.py"), str(folder)]
    command, env = c.mpi.command(3, program, c.transport, c.place, {"PYTHONPATH": str(mpis.mover_folder(c.mpi))})
    return must_pass(process.run(command, env, c.log(), 60))


def compiled(c, name, *flags, wrapper=None):
    """An example in Fortran, compiled by `wrapper` or else the plain compiler."""
    real = mpis.fortran_compiler()
    if not real or (wrapper and not shutil.which(wrapper)):
        raise Skip("no Fortran compiler: apt-get install gfortran")
    program = c.mpi.programs / f"{name}_f90"
    build = process.run([wrapper or real, "-O1", "-Wall", "-J", str(folder_of(c, "compiled")), "-o", str(program),
                         str(mpis.BUILD / "include" / "isthmus_mpi.f90"),
                         str(mpis.ROOT / "examples" / "mpi" / f"{name}.f90"), *mpis.mover_flags(c.mpi), *flags],
                        {"OMPI_FC": real}, c.log(".compile"), 60)
    if build.status != 0:
        raise Failure(f"it does not compile: {last_words(build.output)}")
    return program


def fortran(c):
    """The example for Fortran, by an MPI that has Fortran bindings."""
    program = compiled(c, "halves", "-Werror", wrapper="mpif90.openmpi")
    return c.run(3, program.name, folder_of(c), seconds=60)


def pair(c, *program, env=None):
    """Two applications, of 3 and 2 ranks, that come together by a file: one sends a file and an array."""
    folder = folder_of(c)
    source, copy, port = folder / "source", folder / "copy", f"file:{folder}/port"
    source.write_bytes(os.urandom((5 << 20) + 3))
    jobs = []
    try:
        for what, ranks, path in (("receive", 2, copy), ("send", 3, source)):
            words = [*program, what, port, str(path)]
            command, full = c.mpi.command(ranks, words, c.transport, c.place, env)
            jobs.append(process.Running(command, full, c.log(f".{what}")))
        told = "; ".join(must_pass(job.wait(60)) for job in jobs)
    finally:
        for job in jobs:
            job.end()
    if not filecmp.cmp(source, copy, shallow=False):
        raise Failure("the copy differs")
    return told


def python_pair(c):
    """Two programs by mpi4py."""
    program = str(mpis.ROOT / "examples" / "mpi" / "pair.py")
    return pair(c, c.mpi.python(), program, env={"PYTHONPATH": str(mpis.mover_folder(c.mpi))})


def fortran_pair(c):
    """Two programs in Fortran, by the one MPI here that couples jobs and has Fortran bindings."""
    base = c.mpi.folder
    # Its module files are of another compiler's version; mpif.h is for any.
    libraries = (f"-L{base}/lib", "-lmpifort", "-lmpi", f"-Wl,-rpath,{base}/lib")
    return pair(c, str(compiled(c, "pair", f"-I{base}/include", *libraries)))


def shared_file(c):
    """isthmus-cp under the MPI's own launcher: three processes share one long file, and small ones."""
    folder, ranks = folder_of(c), 3
    source, there = folder / "source", folder / "there"
    source.mkdir(), there.mkdir()
    (source / "long").write_bytes(os.urandom((60 << 20) + 7))
    for number in range(9):
        (source / f"small-{number}").write_bytes(os.urandom(1000 * number))
    program = folder / "isthmus-cp"
    program.symlink_to(mpis.ISTHMUS)
    (folder / "serve.toml").write_text(f'listen = "127.0.0.1:0"\nplain = true\n[export.data]\npath = "{there}"\nwritable = true\n')
    service = process.Running([str(mpis.ISTHMUS), "serve", "--config", str(folder / "serve.toml")], {}, c.log(".serve"))
    try:
        found = await_output(service, r"serving at (\S+)")
        words = [str(program), "--plain", "-v", "-r", str(source), f"{found.group(1)}:data/"]
        command, env = c.mpi.command(ranks, words, c.transport, c.place, {"ISTHMUS_INTERFACE": "127.0.0.1"})
        ended = process.run(command, env, c.log(), 120)
    finally:
        service.end()
    parts = re.findall(r"process (\d) of 3: ", ended.output)
    if ended.timed_out or ended.status != 0 or sorted(parts) != ["0", "1", "2"]:
        raise Failure(f"exit {ended.status}: {last_words(ended.output)}")
    names = sorted(path.name for path in source.iterdir())
    if sorted(path.name for path in (there / "source").iterdir()) != names:
        raise Failure("something is missing, or left over")
    if any((source / name).read_bytes() != (there / "source" / name).read_bytes() for name in names):
        raise Failure("a copy differs from its source")
    if len(re.findall(r"^[0-9a-f]{64}  source/long$", ended.output, re.M)) != 1:
        raise Failure("the long file's digest was not told once")
    return "; ".join(re.findall(r"process \d of 3: .*", ended.output))


def standard_abi(c):
    """Mover and programs compiled by the standard ABI of MPI 5."""
    c = dataclasses.replace(c, mpi=mpis.STANDARD_ABI)
    said = mpis.compile_mover(c.mpi, c.log(".compile"))
    if said:
        raise Failure(f"it does not compile: {last_words(said)}")
    return kinds(c, 5, 3)


# What few need not be shown on every MPI. Open MPI couples within a job only; of those here only
# Debian's and Intel's have Fortran bindings, and Debian's has no mpi4py.
CASES = {
    case.name: case
    for case in (
        Case("mover-3-to-2", lambda c: kinds(c, 5, 3), places=("host",)),
        Case("mover-standard-abi", standard_abi, places=("host",), mpis=("mpich",)),
        Case("mover-jobs", jobs, places=("host",), mpis=("mpich", "intel")),
        Case("mover-across", jobs, places=("sites",), mpis=("mpich",)),
        Case("mover-full-disk", small_disk, places=("host",), mpis=("mpich",)),
        Case("mover-killed", killed_partner, places=("sites",), mpis=("mpich",)),
        Case("mover-shared-file", shared_file, places=("host",), mpis=("mpich",)),
        Case("mover-layout", layout, places=("host",), mpis=("mpich",)),
        Case("mover-targets", storage_targets, places=("host",), mpis=("mpich", "debian-openmpi")),
        Case("mover-kinds-by-target", kinds_by_target, places=("host",), mpis=("mpich", "debian-openmpi")),
        Case("mover-greeting", greeting, places=("host",), mpis=("mpich",)),
        Case("mover-cache", cache, places=("host",), mpis=("mpich",)),
        Case("mover-python", python, places=("host",), mpis=("mpich", "openmpi")),
        Case("mover-python-jobs", python_pair, places=("host",), mpis=("mpich",)),
        Case("mover-fortran-jobs", fortran_pair, places=("host",), mpis=("intel",)),
        Case("mover-fortran", fortran, places=("host",), mpis=("debian-openmpi",)),
    )
}
