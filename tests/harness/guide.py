"""docs/two-sites.md, done as it says: its files are written, and its commands run at the two sites of the lab."""

import os
import re
import tempfile
import time
from pathlib import Path

from . import process
from .cases import Case, Failure, Skip, last_words
from .mpis import ISTHMUS, ROOT, rsh_script

GUIDE = ROOT / "docs" / "two-sites.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


def block(word):
    """The block of commands that has this word."""
    found = [text for text in blocks("sh") if word in text]
    if len(found) != 1:
        raise Failure(f"docs/two-sites.md has {len(found)} blocks with {word!r}")
    return found[0]


class Site:
    """A shell at a site, in a home of its own, whose ssh and scp lead to the other one."""

    def __init__(self, c, name, homes):
        self.c, self.name, self.home = c, name, homes[name]
        self.home.mkdir(parents=True, exist_ok=True)
        tools = self.home / "bin"
        tools.mkdir(exist_ok=True)
        for command, text in {
            "isthmus": f'exec {ISTHMUS} "$@"',
            "ssh": f'exec {rsh_script()} "$@"',
            "scp": f'exec cp "{homes["b" if name == "a" else "a"]}/${{2#*:}}" "$3"',
        }.items():
            (tools / command).write_text(f"#!/bin/sh\n{text}\n")
            (tools / command).chmod(0o755)
        for text in blocks("python"):
            (self.home / re.match(r"# (\S+)", text).group(1)).write_text(text)
        # The lab's hosts are namespaces of one machine: MPICH is told what separate hosts show it.
        self.env = {"PATH": f"{tools}:{c.mpi.folder / 'bin'}:{os.environ['PATH']}", "HYDRA_IFACE": "mgmt0", "MPIR_CVAR_NOLOCAL": "1"}

    def start(self, commands, suffix):
        script = self.home / f"run{suffix}.sh"
        script.write_text(f"set -eu\ncd {self.home}\n{commands}")
        return process.Running([str(ISTHMUS), "lab", "exec", self.name, "--", "bash", str(script)], self.env, self.c.log(suffix))

    def run(self, commands, suffix, seconds=60):
        return passed(self.start(commands, suffix), seconds)


def passed(job, seconds=60):
    ended = job.wait(seconds)
    if ended.timed_out or ended.status:
        raise Failure(f"{'no end' if ended.timed_out else f'exit {ended.status}'}: {last_words(ended.output)}")
    return ended.output


def address_of(serving, seconds=20):
    """HOST:PORT, as the service prints it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := re.search(r"listening at isthmus://\d+\.\d+/([\d.]+:\d+)", serving.output()):
            return found.group(1)
        time.sleep(0.05)
    raise Failure(f"the service prints no address: {last_words(serving.output())}")


def two_sites(c):
    if c.transport != "isthmus":
        raise Skip("a guide to Isthmus")
    with tempfile.TemporaryDirectory(prefix="two-sites-") as folder:
        return follow(c, Path(folder))


def follow(c, folder):
    homes = {name: folder / name for name in ("a", "b")}
    a, b = (Site(c, name, homes) for name in ("a", "b"))

    a.run(block("isthmus doctor\n"), ".doctor")
    check = block("--peer")
    service = re.search(r"# on host b:  (.*)", check).group(1)
    serving = b.start(f"exec {service}\n", ".serve")
    try:
        told = a.run(check.replace("b:PORT", address_of(serving)), ".peer")
    finally:
        serving.end()
    if "UDP" not in told:
        raise Failure(f"doctor does not tell whether UDP passes: {last_words(told)}")

    # Hosts of the lab have one home.
    one = a.run(block("-hosts a,b"), ".hello")
    if "one job on" not in one:
        raise Failure(f"hello.py: {last_words(one)}")

    first, second = a.start(block("--part 1/2"), ".part1"), b.start(block("--part 2/2"), ".part2")
    try:
        world = passed(first)
        passed(second)
    finally:
        first.end()
        second.end()
    told = re.search(r"one job on (.*)", world)
    if not told or len(told.group(1).split()) != 5:
        raise Failure(f"the parts are no world of five ranks: {last_words(world)}")

    accepting = b.start(block("couple.py accept"), ".accept")
    try:
        connected = a.run(block("couple.py connect"), ".connect")
        accepted = passed(accepting)
    finally:
        accepting.end()
    for rank in range(2):
        for text, line in ((accepted, f"rank {rank} of accept got a message of rank {rank} of connect"),
                           (connected, f"rank {rank} of connect got a message of rank {rank} of accept")):
            if line not in text:
                raise Failure(f"no line {line!r}: {last_words(text)}")
    return "doctor, one job by ssh, one of two parts, two jobs that couple"


CASES = {"two-sites": Case("two-sites", two_sites, places=("sites",), mpis=("mpich",))}
