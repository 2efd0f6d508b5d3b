"""Couplings of two jobs of unlike MPIs (isthmus_couple): files, arrays and messages, on one host, between sites and
through routers; in C, Fortran and Python; and every way in which the two do not come together, or are parted."""

import contextlib
import filecmp
import os
import re
import signal
import socket
import sys
import time

from . import mpis, process
from .cases import Case, Failure, Skip, await_journal, await_output, last_words, must_pass, sides
from .mover_cases import compiled, folder_of

# Which MPI's job is part 2, and starts 3 ranks; part 1 is of the case's own, with 2.
PARTNERS = {"mpich": "debian-openmpi", "intel": "openmpi"}
# How long after a job was killed the other must have ended. Seconds; a killed process is noticed after 2 to 3.
NOTICE = 30


class Sides:
    """The two jobs of a coupling; both end when this is left."""

    def __init__(self, c):
        self.c, self.jobs = c, []
        self.here, self.there = sides(c)
        self.partner = mpis.MPIS[PARTNERS[c.mpi.name]]
        if missing := self.partner.missing():
            raise Skip(f"the other MPI is not there: {missing}")
        if words := mpis.compile_mover(self.partner, c.log(".compile")):
            raise Failure(f"it does not compile with {self.partner.title}: {last_words(words)}")

    def start(self, part, *words, program=None, suffix="", env=None):
        """Part 1 at the first site, part 2 at the second; `program` is one of the compiled, or a whole command."""
        mpi, place, ranks = (self.c.mpi, self.here, 2) if part == 1 else (self.partner, self.there, 3)
        start = program if isinstance(program, list) else [str(mpi.programs / program)]
        command, full = mpi.command(ranks, [*start, *map(str, words)], self.c.transport, place, env)
        job = process.Running(command, full, self.c.log(f"{suffix}.part{part}"))
        self.jobs.append(job)
        return job

    def both(self, program, *words, seconds=90, suffix="", env=None):
        """Both parts of a program must end well. What they say. A word can be one for each part."""
        of = {part: [word[part] if isinstance(word, dict) else word for word in words] for part in (1, 2)}
        jobs = [self.start(part, part, *of[part], program=program, suffix=suffix, env=env) for part in (1, 2)]
        return "; ".join(must_pass(job.wait(seconds)) for job in jobs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.end()


def mover(c):
    """Every kind of transfer of files and arrays, and of failure."""
    folder = folder_of(c)
    with Sides(c) as two:
        jobs = [two.start(part, f"part{part}", folder, program="mover") for part in (1, 2)]
        return "; ".join(must_pass(job.wait(120)) for job in jobs)


def messages(c):
    """Every kind of message, all ranks to all. They meet by a file."""
    with Sides(c) as two:
        return two.both("messages", f"file:{folder_of(c)}/at")


def text(c):
    """They meet by the line that part 1 prints. A third job is turned away, and the two do not notice."""
    with Sides(c) as two:
        one = two.start(1, 1, "-", "-", 60, "lose", program="messages")
        uri = await_output(one, r"couples with part 2 at '(isthmus://\S+)'").group(1)
        other = two.start(2, 2, uri, "-", 60, "lose", program="messages")
        for job in (one, other):
            await_output(job, "READY")
        third = two.start(2, 2, uri, program="messages", suffix=".third")
        must_fail(third, "status 2: the application at isthmus://[^#]* is coupled with another already")
        if one.process.poll() is not None or other.process.poll() is not None:
            raise Failure(f"the first two have ended: {last_words(one.output())}")
    return "coupled by a text; a third was turned away"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def secret(folder, name):
    path = folder / name
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    return path


def must_fail(job, words, seconds=60):
    ended = job.wait(seconds)
    if ended.timed_out or ended.status == 0 or not re.search(words, ended.output):
        raise Failure(f"exit {ended.status}, and no {words!r}: {last_words(ended.output)}")


def by_secret(c):
    """They meet at a port. Who has another secret is told so, and does not disturb; who is readable by all too."""
    folder, at = folder_of(c), f"127.0.0.1:{free_port()}"
    right, wrong, loose = (secret(folder, name) for name in ("right", "wrong", "loose"))
    loose.chmod(0o644)
    with Sides(c) as two:
        two.start(1, 1, at, right, program="messages")
        must_fail(two.start(2, 2, at, wrong, program="messages", suffix=".wrong"), "status 2: who listens at .* has another secret")
        must_fail(two.start(2, 2, at, loose, program="messages", suffix=".loose"), "status 1: the secret .*chmod 600")
        must_fail(two.start(2, 2, at, program="messages", suffix=".none"), "status 1: .* needs a secret")
        two.start(2, 2, at, right, program="messages")
        return "; ".join(must_pass(job.wait(90)) for job in (two.jobs[0], two.jobs[-1]))


def nobody(c):
    """Nobody comes, or nobody is there: also where a file is left of an earlier run."""
    folder = folder_of(c)
    (folder / "old").write_text("isthmus://0.0/127.0.0.1:9#0badcafe.00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n")
    with Sides(c) as two:
        jobs = {
            r"status 2: nobody came to file:\S+/at within 2 s: .*with part 2\?": two.start(1, 1, f"file:{folder}/at", "-", 2, program="messages", suffix=".1"),
            r"status 2: nobody is at file:\S+ after 2 s .*with part 1\?": two.start(2, 2, f"file:{folder}/none", "-", 2, program="messages", suffix=".2"),
            r"status 2: nobody is at file:\S+/old after 2 s .*with part 1\? *": two.start(2, 2, f"file:{folder}/old", "-", 2, program="messages", suffix=".3"),
            r"status 1: part 3; one side is part 1": two.start(2, 3, f"file:{folder}/at", program="messages", suffix=".4"),
            r"status 1: .*expected file:PATH": two.start(1, 2, "somewhere", program="messages", suffix=".5"),
        }
        for words, job in jobs.items():
            must_fail(job, words)
    if (folder / "at").exists():
        raise Failure("the file of who waited in vain is left")
    return f"{len(jobs)} that were told why"


# Asks for a coupling as a build of the next version would.
LATER = """
import struct, sys, isthmus
endpoint = isthmus.Endpoint()
hello = struct.pack("<IiiI", 0x49534c31, 2, 2, 0xffffffff) + bytes(16)
endpoint.connect(sys.argv[1], hello, timeout=20)
print("reason", endpoint.wait(30).reason)
"""


def version(c):
    """A build that does not speak this version is turned away, and both are told."""
    with Sides(c) as two:
        one = two.start(1, 1, "-", program="messages")
        uri = await_output(one, r"couples with part 2 at '(isthmus://\S+)'").group(1)
        made = process.ask([sys.executable, str(mpis.ROOT / "python/backend.py")], {}, c.log(".declarations"), 60)
        if made.returncode:
            raise Failure(f"the binding's declarations are not made: {made.stderr[-300:]!r}")
        env = {"PYTHONPATH": str(mpis.ROOT / "python" / "src"), "ISTHMUS_LIBRARY": str(mpis.BUILD / "lib" / "libisthmus.so")}
        asked = process.ask([sys.executable, "-c", LATER, uri], env, c.log(".later"), 60)
        if asked.stdout != "reason 1\n":
            raise Failure(f"it was told {asked.stdout!r} {asked.stderr[-300:]!r}")
        must_fail(one, "status 6: the other application has another version of this library")
    return "told"


def kill(pids):
    """The launcher may be quicker with all but the first."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def killed(c):
    """All ranks of one job are killed: those of the other, which wait for a message, are told in bounded time."""
    folder, told = folder_of(c), []
    with Sides(c) as two:
        for victim in (1, 2):
            jobs = {part: two.start(part, part, f"file:{folder}/at{victim}", "-", 60, "lose", program="messages", suffix=f".{victim}") for part in (1, 2)}
            for job in jobs.values():
                await_output(job, "READY")
            kill(jobs[victim].pids("messages"))
            since, other = time.monotonic(), jobs[3 - victim]
            ended = other.wait(since - other.began + NOTICE)
            must_pass(ended)
            why = re.search(r"LOST after .*: (its rank \d+: .*)", ended.output).group(1)
            told.append(f"part {3 - victim} {time.monotonic() - since:.1f} s after: {why[:60]}")
            jobs[victim].end()
    return "; ".join(told)


def killed_in_transfer(c):
    """The receiver is killed in the middle of an array: the sender is told in bounded time."""
    with Sides(c) as two:
        jobs = [two.start(part, part, f"file:{folder_of(c)}/at", 600, program="array") for part in (1, 2)]
        await_output(jobs[1], "BEGIN")
        time.sleep(1.0)
        kill(jobs[0].pids("array"))
        since = time.monotonic()
        must_fail(jobs[1], "status 9: the other application is lost", since - jobs[1].began + NOTICE)
    return f"told {time.monotonic() - since:.1f} s after"


def resumed(c):
    """The sender is killed in the middle of a file. Both jobs, started again, send only the rest. An
    environment variable names where they meet."""
    folder, size = folder_of(c), 192 << 20
    source, copy = folder / "source", folder / "copy"
    with open(source, "wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(4, "big") * (1 << 18))
    env = {"MEET_AT": f"file:{folder}/at"}
    with Sides(c) as two:
        one, other = (two.start(part, part, "env:MEET_AT", path, *block, program="file", env=env)
                      for part, path, block in ((1, copy, ()), (2, source, (65536,))))
        await_journal([one, other], folder)
        kill(other.pids("file"))
        since = time.monotonic()
        must_fail(one, "status 9: the other application is lost", since - one.began + NOTICE)
        other.end()
        if copy.exists():
            raise Failure("a file that is not whole has its name")
        # Without its variable a job is told so.
        must_fail(two.start(2, 2, "env:MEET_AT", source, program="file", suffix=".unset"), "status 1: the environment variable MEET_AT, .* is not set")
        said = two.both("file", "env:MEET_AT", {1: copy, 2: source}, suffix=".again", env=env)
    were_there = {int(count) for count in re.findall(r"of which (\d+) were there", said)}
    if len(were_there) != 1 or not 0 < min(were_there) < size:
        raise Failure(f"of {size} bytes {were_there} were there")
    if not filecmp.cmp(source, copy, shallow=False):
        raise Failure("the copy differs")
    if left := list(folder.glob(".isthmus-*")):
        raise Failure(f"left: {left}")
    return said


def languages(c):
    """Part 1 in Python, part 2 in Fortran: an MPI that has mpi4py, and one that has Fortran bindings."""
    folder = folder_of(c)
    source, copy, at = folder / "source", folder / "copy", f"file:{folder}/at"
    source.write_bytes(os.urandom((5 << 20) + 3))
    with Sides(c) as two:
        other = process_context(c, two.partner)
        fortran = compiled(other, "two_mpis", "-Werror", wrapper="mpif90.openmpi")
        python = [c.mpi.python(), str(mpis.ROOT / "examples" / "mpi" / "two_mpis.py")]
        two.start(1, 1, at, copy, program=python, env={"PYTHONPATH": str(mpis.mover_folder(c.mpi))})
        two.start(2, 2, at, source, program=[str(fortran)])
        told = "; ".join(must_pass(job.wait(90)) for job in two.jobs)
    if not filecmp.cmp(source, copy, shallow=False):
        raise Failure("the copy differs")
    return told


def process_context(c, mpi):
    """The same test, of another MPI."""
    return type(c)(mpi, c.transport, c.place, c.logs, c.case, c.net)


def in_c(c):
    """The example in C, by both."""
    folder = folder_of(c)
    source, copy = folder / "source", folder / "copy"
    source.write_bytes(os.urandom((5 << 20) + 3))
    with Sides(c) as two:
        for part, path in ((1, copy), (2, source)):
            two.start(part, part, f"file:{folder}/at", path, program="two_mpis")
        told = "; ".join(must_pass(job.wait(90)) for job in two.jobs)
    if not filecmp.cmp(source, copy, shallow=False):
        raise Failure("the copy differs")
    return told


def routed(c):
    """Sites that only routers join: the jobs know a name at a router of part 1's site."""
    side = c.net.sides["a"]
    place = f"router:isthmus://{side.as_id}.{side.shape.subnets[0].id}/{side.routers[0]}/couple"
    with Sides(c) as two:
        return two.both("messages", place)


def router_killed(c):
    """A router next to the sender is killed in the middle of an array: the array arrives."""
    side = c.net.sides["a"]
    place = f"router:isthmus://{side.as_id}.{side.shape.subnets[0].id}/{side.routers[1]}/array"
    with Sides(c) as two:
        jobs = [two.start(part, part, place, 200, program="array") for part in (1, 2)]
        await_output(jobs[1], "BEGIN")
        time.sleep(0.7)
        c.net.routers["b"][0].send(signal.SIGKILL)
        return "; ".join(must_pass(job.wait(90)) for job in jobs)


# Shown by one pair of MPIs, and messages by the other pair too.
CASES = {
    case.name: case
    for case in (
        Case("couple-mover", mover, places=("host",), mpis=("mpich",)),
        Case("couple-messages", messages, places=("host", "sites"), mpis=("mpich",)),
        Case("couple-other-mpis", messages, places=("host",), mpis=("intel",)),
        Case("couple-text", text, places=("host",), mpis=("intel",)),
        Case("couple-secret", by_secret, places=("host",), mpis=("mpich",)),
        Case("couple-nobody", nobody, places=("host",), mpis=("mpich",)),
        Case("couple-version", version, places=("host",), mpis=("mpich",)),
        Case("couple-killed", killed, places=("host",), mpis=("mpich",)),
        Case("couple-killed-array", killed_in_transfer, places=("sites",), mpis=("mpich",)),
        Case("couple-resumed", resumed, places=("sites",), mpis=("mpich",)),
        Case("couple-languages", languages, places=("host",), mpis=("mpich",)),
        Case("couple-c", in_c, places=("host",), mpis=("intel",)),
    )
}
