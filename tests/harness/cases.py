"""The tests: what is run, with how many ranks, and what must be seen."""

import itertools
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from . import process
from .mpis import MPIS, ROOT, Mpi, Place
from .process import Failure, await_until, last_words

sys.path.insert(0, str(ROOT / "tests" / "faults"))
import cut_connections  # noqa: E402
import other_version  # noqa: E402


class Skip(Exception):
    """The test cannot be run in this combination; the text says why."""


@dataclass
class Context:
    """One test in one combination."""

    mpi: Mpi
    transport: str
    place: Place
    logs: Path
    case: str
    net: Any = None  # the routers between the two sites, where there are some

    @property
    def label(self):
        return f"{self.mpi.name}.{self.transport}.{self.place.name}"

    def log(self, suffix=""):
        return self.logs / f"{self.label}.{self.case}{suffix}.log"

    def scratch(self, name):
        path = self.logs / f"{self.label}.{self.case}.{name}"
        path.unlink(missing_ok=True)
        return path

    def start(self, ranks, *words, suffix="", place=None, env=None):
        program = [str(self.mpi.programs / words[0]), *map(str, words[1:])]
        command, launch_env = self.mpi.command(ranks, program, self.transport, place or self.place, env)
        return process.Running(command, launch_env, self.log(suffix))

    def run(self, ranks, *words, seconds, **more):
        """Runs one job that must succeed and print its OK line."""
        return must_pass(self.start(ranks, *words, **more).wait(seconds))


@dataclass
class Case:
    """A test. Its body returns what it saw, or raises Failure or Skip."""

    name: str
    body: Callable[[Context], str]
    places: tuple = ("host", "sites")
    mpis: tuple = tuple(MPIS)
    long: bool = False  # not in `make test`

    def perform(self, c):
        return self.body(c)


# The placements of cases that also have to do with how lanes go.
EVERYWHERE = ("host", "sites", "lossy")


def must_pass(ended):
    if ended.timed_out:
        raise Failure(f"no end after {ended.seconds:.0f} s; {last_words(ended.output)}")
    if ended.status != 0:
        raise Failure(f"exit {ended.status}: {last_words(ended.output)}")
    line = re.search(r"^OK \w+: (.*)$", ended.output, re.M)
    if not line:
        raise Failure(f"no OK line: {last_words(ended.output)}")
    return line.group(1)


# --- point-to-point, collectives, one-sided ----------------------------------


def provider(c):
    """The MPI says itself that it took the provider which is to be tested."""
    job = c.start(2, "pingpong", "1k", env=c.mpi.verbose)
    ended = job.wait(60)
    must_pass(ended)
    names = set(re.findall(c.mpi.named + r"([\w;]+)", ended.output))
    wanted = c.mpi.libfabric_name(c.transport)
    if names != {wanted}:
        raise Failure(f"it took {', '.join(sorted(names)) or 'no libfabric provider'} instead of {wanted}")
    return f"it says: {wanted}"


def pingpong(c):
    return c.run(2, "pingpong", "4M" if c.place.name == "lossy" else "64M", seconds=120)


def sends(c):
    only_isthmus(c)
    return c.run(2, "sends", seconds=60)


def by_udp(c):
    """Between the sites lanes go by UDP, as the setting says, and it can be seen."""
    ended = c.start(2, "pingpong", "1M", env={"FI_LOG_LEVEL": "debug", "FI_LOG_PROV": "isthmus"}).wait(60)
    must_pass(ended)
    lanes = re.findall(r"a lane by UDP with (\S+) ends: .*?bytes_again: (\d+)", ended.output)
    if not lanes:
        raise Failure("no lane went by UDP")
    return f"{len(lanes)} ends of lanes by UDP, {sum(int(again) for _, again in lanes) / 1e3:.0f} kB sent again"


def goes_over(c):
    """Lanes begin by TCP, as on a shorter path, find that it loses packets, and one by UDP takes over."""
    env = {"FI_ISTHMUS_TRANSPORT": "auto", "FI_ISTHMUS_UDP_FROM": "1s", "FI_LOG_LEVEL": "info", "FI_LOG_PROV": "isthmus"}
    ended = c.start(2, "pingpong", "32M", env=env).wait(180)
    must_pass(ended)
    for sign in ("go by UDP: packets are lost without a queue", "go by UDP: it gets through"):
        if sign not in ended.output:
            raise Failure(f"nothing says that lanes {sign}")
    return "from TCP to UDP"


def storm(c):
    # libfabric's own tcp provider stops for ever at 65 unexpected messages of
    # one peer; that is not what the control is for.
    unexpected = 50 if c.transport == "tcp" else 10000
    return c.run(4, "storm", 2000, unexpected, seconds=180)


def wildcard(c):
    words = []
    if c.transport != "isthmus" and c.mpi.name in ("openmpi", "debian-openmpi"):
        # Over libfabric's tcp Mrecv errs (5), and Mprobe hangs (4.1).
        words.append("no-mprobe")
    if c.mpi.name == "mpich":
        # A rank's messages to itself go by MPICH's shared memory whatever one
        # sets; probe and receive of any source look there at different times,
        # so they can take different messages. Over libfabric's tcp as well.
        words.append("no-self")
    return c.run(4, "wildcard", 200, *words, seconds=120)


def collectives(c):
    return c.run(4, "collectives", "1M" if c.place.many else "4M", seconds=180)


def onesided(c):
    return c.run(4, "onesided", "1M", 16 if c.place.many else 64, seconds=180)


def litmus(c):
    """The orders on which one-sided programs rely (docs/ordering.md), by each kind of lane that this place has."""
    # Intel MPI's one-sided communication is MPICH's code.
    rounds = 10 if c.place.many else 20 if c.mpi.name == "intel" else 60
    kinds = {"": {}} if c.place.many else {"memory": {}, "tcp": {"FI_ISTHMUS_FABRIC": "off"},
                                         "udp": {"FI_ISTHMUS_FABRIC": "off", "FI_ISTHMUS_TRANSPORT": "udp-everywhere"}}
    said = [c.run(4, "litmus", rounds, suffix=f".{kind}", env=env, seconds=120) for kind, env in kinds.items()]
    return f"{said[0]}, by {', '.join(kinds) or 'the lanes of this place'}"


def overlap(c):
    return c.run(2, "overlap", "200M", 2000 if c.place.many else 1000, seconds=120)


def last_words_read(c):
    """A failing program of these tests is heard: without that, a test that fails, or is to see a failure, sees nothing."""
    return c.run(1, "lastwords", seconds=30)


def churn(c):
    return c.run(4, "churn", 3, seconds=60)


def goodbye(c):
    """Many short jobs whose ranks end at different times: none may see an error."""
    jobs, at_once, longest = 12, 4, 0.0
    for first in range(1, jobs + 1, at_once):
        # Most of a job's time is its launcher's.
        running = [c.start(4, "goodbye", seed, suffix=f".{seed}") for seed in range(first, first + at_once)]
        try:
            for ended in [job.wait(60) for job in running]:
                must_pass(ended)
                longest = max(longest, ended.seconds)
        finally:
            for job in running:
                job.end()
    return f"{jobs} jobs, {at_once} at once, the longest {longest:.1f} s"


# --- dynamic processes -------------------------------------------------------


def sides(c):
    """The places of two jobs: both here, or one in each site."""
    if c.net:
        return c.net.place("a"), c.net.place("b")
    if not c.place.many:
        return c.place, c.place
    return tuple(Place(c.place.name, (host,), c.place.settings) for host in c.place.hosts[:2])


# What Open MPI 5's launcher says when it has hit a fault of its own: in PRRTE 3.0.14
# (connect_release() of pmix_server_dyn.c) the daemons of two hosts unpack what PMIx_Connect
# has collected as something that it is not, and free what they have not allocated. They say
# so in most runs, and crash in some, over libfabric's tcp as well.
LAUNCHER_FAULT = r"PMIX ERROR: \w+ in file \S+/(bfrop_base_unpack|pmix_server_dyn)\.c at line \d+|" \
                 r"PRTE has lost communication with a remote daemon"


def couple_within_a_job(c, port):
    """The halves of one job couple. Where Open MPI's launcher crashes by the fault above,
    the program's own word counts; if it had no time to say it, the job is run once more."""
    note = ""
    for suffix in ("", ".again"):
        port.unlink(missing_ok=True)
        ended = c.start(4, "connect", "split", port, suffix=suffix).wait(90)
        crashed = ended.status and c.place.many and re.search(LAUNCHER_FAULT, ended.output)
        if not crashed:
            break
        line = re.search(r"^OK connect: (.*)$", ended.output, re.M)
        if line:
            return f"{line.group(1)}; then the launcher crashed by itself, exit {ended.status}{note}"
        note = f"; the launcher crashed by itself at the first attempt, exit {ended.status}"
    return must_pass(ended) + note


def connect(c):
    port = c.scratch("port")
    if not c.mpi.couples:
        return couple_within_a_job(c, port)
    here, there = sides(c)
    accepting = c.start(2, "connect", "accept", port, suffix=".accept", place=here)
    connecting = c.start(2, "connect", "connect", port, suffix=".connect", place=there)
    try:
        return must_pass(connecting.wait(90)) + "; " + must_pass(accepting.wait(90))
    finally:
        accepting.end()
        connecting.end()


def spawn(c):
    return c.run(2, "spawn", 2, 2, seconds=90)


# --- faults and bad input ----------------------------------------------------


def ranks_of(job, count, program="churn", seconds=30):
    def seen():
        pids = job.pids(program)
        return pids if len(pids) >= count else None

    return await_until([job], seen, seconds, f"{count} processes of {program}")


def await_file(path, job, seconds=30):
    await_until([job], path.exists, seconds, path.name)


def await_output(job, words, seconds=60):
    """Waits until a job prints the words (a regular expression). Returns the match."""
    return await_until([job], lambda: re.search(words, job.output(), re.M), seconds, f"output {words!r}", look=0.02)


def await_journal(jobs, folder, seconds=60):
    """Waits until a copy below the folder is under way: its journal says what has arrived."""
    def seen():
        return any(journal.stat().st_size > 1000 for journal in folder.rglob(".isthmus-*.journal"))

    await_until(jobs, seen, seconds, "journal of the copy", look=0.005)


def broken_lanes(c):
    """All connections among the ranks are cut, again and again: right data."""
    if c.transport != "isthmus":
        raise Skip("libfabric's own providers do not survive a broken connection")
    progress = c.scratch("progress")
    job = c.start(4, "churn", 8, "256k", progress)
    try:
        pids = ranks_of(job, 4)
        await_file(progress, job)
        cut = []
        for i in range(6):
            cut.append(cut_connections.cut_all(pids, how=("fin", "reset", "mixed")[i % 3]))
            time.sleep(0.8)
        words = must_pass(job.wait(90))
    finally:
        job.end()
    if not any(cut):
        raise Failure("there was no TCP connection to cut")
    return f"{words}; cut {'+'.join(map(str, cut))} connections"


def die(job, pids):
    """Kills the last of a job's ranks: the job ends with an error within 60 s. Returns how, and after what time. Seconds."""
    os.kill(max(pids), signal.SIGKILL)
    killed = time.monotonic()
    ended = job.wait(killed - job.began + 60)
    took = time.monotonic() - killed
    if ended.timed_out:
        raise Failure("no end 60 s after a rank was killed")
    if ended.status == 0:
        raise Failure("exit 0 though a rank was killed")
    return ended, took


def killed_rank(c):
    """A rank dies: the job ends with an error in bounded time."""
    progress = c.scratch("progress")
    job = c.start(4, "churn", 120, "256k", progress)
    try:
        pids = ranks_of(job, 4)
        await_file(progress, job)
        ended, took = die(job, pids)
    finally:
        job.end()
    if not re.search(r"kill|signal|terminat|abort|exit|error|lost", ended.output, re.I):
        raise Failure(f"no word of why: {last_words(ended.output)}")
    return f"ended {took:.1f} s after, exit {ended.status}"


def only_coupling(c):
    if not c.mpi.couples:
        raise Skip(f"{c.mpi.title} couples jobs through a common daemon only")
    return c.scratch("port"), *sides(c)


def only_isthmus(c):
    if c.transport != "isthmus":
        raise Skip("this is about Isthmus")


ADDRESS = r"isthmus://\d+\.\d+/[\w.:\[\]]+#[0-9a-f]{8}"


def dead_peer(c):
    """What is said of a peer that is gone: by the provider, else by the MPI in its own words."""
    if c.transport == "isthmus":
        return rf"^isthmus: nobody listens at {ADDRESS}: the peer's process has ended, or its address is wrong$"
    return r".*([Cc]onnection (reset|refused)|[Uu]nreachable|[Tt]imed? ?out).*"


def killed_partner(c):
    """One of two coupled jobs dies: the other ends with an error in bounded time."""
    port, here, there = only_coupling(c)
    # One coupling that lasts: between two of them an accept rightly waits for anybody.
    accepting = c.start(2, "connect", "accept", port, 1, 1 << 20, 30000, suffix=".accept", place=here)
    connecting = c.start(2, "connect", "connect", port, 1, 1 << 20, 30000, suffix=".connect", place=there)
    try:
        ranks_of(accepting, 2, "connect")
        ranks_of(connecting, 2, "connect")
        await_file(port, accepting)
        time.sleep(2)
        for pid in connecting.pids():
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        ended = accepting.wait(killed - accepting.began + 90)
    finally:
        accepting.end()
        connecting.end()
    if ended.timed_out:
        raise Failure("no end 90 s after the other job was killed")
    if ended.status == 0:
        raise Failure("exit 0 though the other job was killed")
    told = re.search(dead_peer(c), ended.output, re.M)
    if not told:
        raise Failure(f"no word of why: {last_words(ended.output)}")
    return f"ended {time.monotonic() - killed:.1f} s after: {told.group(0)}"[:150]


def said(output):
    """What the provider told the user. Open MPI's launcher may put a space before it."""
    return re.findall(r"^ *isthmus: .*", output, re.M)


def expect_text(name, ended, words):
    """A job that must end with an error, and the provider's text (a regular expression)."""
    if ended.timed_out:
        raise Failure(f"{name}: no end after {ended.seconds:.0f} s; {last_words(ended.output)}")
    told = re.search(words, ended.output, re.M)
    if not told:
        raise Failure(f"{name}: exit {ended.status}, and no word of why: {last_words(ended.output)}")
    if ended.status == 0 and "refused as it should be" not in ended.output:
        raise Failure(f"{name}: exit 0 without an error")
    return told.group(0)


def attempt(c, name, port, words, place, bound=60):
    """One rank connects to the port in the file, and must be told, once, what is wrong."""
    ended = c.start(1, "connect", "wrong", port, suffix=f".{name}", place=place).wait(bound)
    told = expect_text(name, ended, words)
    if len(said(ended.output)) > 1:
        raise Failure(f"{name}: told more than once: {said(ended.output)[1]}")
    return f"after {ended.seconds:.1f} s: {told}"


def left_port(c, port, place):
    """The name of a port whose job has ended."""
    must_pass(c.start(1, "connect", "open", port, suffix=".open", place=place).wait(30))


def wrong_port(c):
    port, _, there = only_coupling(c)
    port.write_text("no-such-port")
    return attempt(c, "wrong", port, r"(no port_name tag|[Ii]nvalid port).*", there)


def missing_peer(c):
    port, here, there = only_coupling(c)
    left_port(c, port, here)
    return attempt(c, "wrong", port, dead_peer(c), there)[:150]


def other_subnet(c):
    """The two sides are configured for different subnets: the one that connects is told both."""
    only_isthmus(c)
    port, here, there = only_coupling(c)
    ids = {"FI_ISTHMUS_AS_ID": "64512", "FI_ISTHMUS_SUBNET": "7"}
    accepting = c.start(1, "connect", "accept", port, suffix=".accept", place=here, env=ids)
    try:
        await_file(port, accepting)
        words = rf"^isthmus: refused: {ADDRESS} is in AS 64512 subnet 7, this endpoint in AS 0 subnet 0, " \
                r"and no router joins them; (set routers, or )?give both sides the same as_id and subnet$"
        return attempt(c, "wrong", port, words, there)
    finally:
        accepting.end()


def tcp_port(name):
    """The TCP port in a port's name, where MPICH writes runs of zeros as their number."""
    digits = re.sub(r"\[(\d+)\]", lambda run: "00" * int(run[1]), name)
    found = re.search(r"\$connentry#(?:[0-9A-F]{2})*?A501([0-9A-F]{4})", digits)
    if not found:
        raise Failure(f"no address of ours in the port's name {name}")
    return int(found[1], 16)


def another_version(c):
    """A peer of another version answers at the port: both versions are named."""
    only_isthmus(c)
    for how in ("refuses", "welcomes"):
        port, here, there = only_coupling(c)
        left_port(c, port, here)
        words = rf"^isthmus: {ADDRESS} speaks protocol version 7, this library version \d+; " \
                r"install the same isthmus release on both sides$"
        with other_version.Peer(tcp_port(port.read_text()), 7, how) as peer:
            told = attempt(c, how, port, words, there)
            if not peer.greeted_by:
                raise Failure(f"{how}: nobody greeted the peer")
    return f"refused, and welcomed {told}"


def bad_settings(c):
    """Names that are none and values that do not fit, by environment and by file."""
    only_isthmus(c)
    file = c.scratch("toml")
    file.write_text("[device]\nwindow = 3\n")
    trials = {
        "unknown-name": ({"FI_ISTHMUS_WINDOW": "3"}, "FI_ISTHMUS_WINDOW: there is no such setting; unset it, or correct it to one of FI_ISTHMUS_INTERFACE, .*"),
        "bad-value": ({"FI_ISTHMUS_CREDIT": "64Mbit/s"}, 'FI_ISTHMUS_CREDIT = "64Mbit/s": "64Mbit/s" is a rate; expected a size, such as "64MiB", or "auto"$'),
        "out-of-range": ({"FI_ISTHMUS_STREAMS": "65"}, 'FI_ISTHMUS_STREAMS = "65": expected a count from 1 to 64$'),
        "no-interface": ({"FI_ISTHMUS_INTERFACE": "none0"}, r".*none0.*"),
        "unknown-key": ({"ISTHMUS_CONFIG": str(file)}, rf"{re.escape(str(file))}:2: window = 3: unknown field `window`, expected one of `interface`, .*"),
        "no-file": ({"ISTHMUS_CONFIG": "/no/such.toml"}, r"/no/such\.toml: No such file or directory .*; correct ISTHMUS_CONFIG, or unset it$"),
    }
    ranks, longest = 2, 0.0
    for name, (env, words) in trials.items():
        ended = c.start(ranks, "pingpong", "1k", env=env, suffix=f".{name}").wait(60)
        expect_text(name, ended, f"^ *isthmus: refused: {words}")
        if len(said(ended.output)) > ranks:
            raise Failure(f"{name}: {ranks} ranks told it {len(said(ended.output))} times")
        longest = max(longest, ended.seconds)
    return f"{len(trials)} refused with what to do, the longest {longest:.1f} s"


def local_fabrics(c):
    """Lanes within the host move to libfabric's own shared memory, and to its tcp."""
    if c.transport != "isthmus":
        raise Skip("a setting of Isthmus")
    fabrics = ("memory", "shm", "tcp")
    programs = (("storm", 200, 500), ("collectives", "64k"), ("onesided", "64k", 4))
    # The other MPIs run each fabric and each program once.
    pairs = list(itertools.product(fabrics, programs) if c.mpi.name == "mpich" else zip(fabrics, programs))
    for fabric, words in pairs:
        env = {"FI_ISTHMUS_FABRIC": fabric, "FI_LOG_LEVEL": "info", "FI_LOG_PROV": "isthmus"}
        ended = c.start(4, *words, suffix=f"-{fabric}-{words[0]}", env=env).wait(60)
        must_pass(ended)
        if f"lanes go over {fabric}" not in ended.output:
            raise Failure(f"{words[0]}: no lane moved to {fabric}")
    return ", ".join(f"{words[0]} over {fabric}" for fabric, words in pairs)


CASES = {
    case.name: case
    for case in (
        Case("provider", provider, places=EVERYWHERE),
        Case("pingpong", pingpong, places=EVERYWHERE),
        Case("sends", sends, places=("sites", "lossy")),
        Case("storm", storm, places=EVERYWHERE),
        Case("wildcard", wildcard),
        Case("collectives", collectives, places=EVERYWHERE),
        Case("onesided", onesided),
        Case("litmus", litmus, mpis=("mpich", "openmpi", "intel")),
        Case("litmus-lossy", litmus, places=("lossy",), mpis=("mpich",)),
        Case("churn", churn),
        Case("last-words", last_words_read, places=("host",), mpis=("mpich",)),
        Case("overlap", overlap),
        Case("goodbye", goodbye, places=EVERYWHERE),
        Case("connect", connect, places=EVERYWHERE),
        Case("spawn", spawn, places=("host",)),
        Case("broken-lanes", broken_lanes),
        Case("local-fabrics", local_fabrics, places=("host",)),
        Case("killed-rank", killed_rank, places=("host",)),
        Case("killed-partner", killed_partner, places=EVERYWHERE),
        Case("by-udp", by_udp, places=("lossy",)),
        Case("goes-over", goes_over, places=("lossy",), mpis=("mpich", "openmpi")),
        Case("wrong-port", wrong_port, places=("host",)),
        Case("missing-peer", missing_peer, places=("host",)),
        Case("other-subnet", other_subnet),
        Case("other-version", another_version, places=("host",)),
        Case("bad-settings", bad_settings, places=("host",)),
    )
}
